-- Finds the prepared transaction that holds the row of consumer $1. The transaction's id is the
-- row's xmax, so no session needs to be known.
SELECT p.transaction::text, quote_literal(p.gid), p.owner::text, extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM {checkpoints} AS c JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = c.xmax AND p.database = current_database()
WHERE c.consumer_name = $1::text LIMIT 1
