-- The waiting time in microseconds. since may be -infinity.
(extract(epoch FROM statement_timestamp() - greatest(since, statement_timestamp() - interval '36500 days')) * 1000000)::bigint
