-- The waiting time in microseconds. since may be infinite, and later than now.
(extract(epoch FROM statement_timestamp() - least(greatest(since, statement_timestamp() - interval '36500 days'), statement_timestamp())) * 1000000)::bigint
