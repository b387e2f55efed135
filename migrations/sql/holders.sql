-- Selects the transactions with locks of the tables in the JSON array $1.
SELECT DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction, see pg_prepared_xacts') || coalesce(' (application_name ' || quote_ident(a.application_name) || ', ' || a.state || ')', '')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND l.relation IN (SELECT to_regclass(x.name)::oid FROM json_array_elements_text($1::text::json) AS x(name))
AND l.pid IS DISTINCT FROM pg_backend_pid() AND coalesce(a.xact_start < clock_timestamp() - interval '1 second', true) ORDER BY 1
