WITH settings AS (
	SELECT s.setrole FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS c
	WHERE c ~* '^default_transaction_read_only=(on|t|true|y|yes|1)$' AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
)
SELECT (SELECT setting::bool AND source NOT IN ('user', 'database user', 'client', 'session') FROM pg_settings WHERE name = 'default_transaction_read_only')
	OR EXISTS (SELECT FROM settings WHERE setrole = 0), coalesce((
	SELECT string_agg(DISTINCT quote_ident(r.rolname), ', ') FROM settings AS s JOIN pg_roles AS r ON r.oid = s.setrole
	WHERE r.rolcanlogin AND ({may_write 1} OR {may_write 2})), '')
