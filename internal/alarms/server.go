package alarms

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Condition is a fault of the server, and its remedy.
type Condition struct{ Text, Remedy string }

// ReadOnly reports transactions that are read-only by default. The default may be that of the
// server, of this database, or of a role that may write the heartbeats of workers. The zero
// Condition means none.
func ReadOnly(ctx context.Context, db store.Querier, t tables.Tables, jobs tables.Jobs) (c Condition, err error) {
	var here bool
	var roles string
	err = db.QueryRowContext(ctx, `
WITH settings AS (
	SELECT s.setrole FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS c
	WHERE c ~* '^default_transaction_read_only=(on|t|true|y|yes|1)$' AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
)
SELECT (SELECT setting::bool AND source NOT IN ('user', 'database user', 'client', 'session') FROM pg_settings WHERE name = 'default_transaction_read_only')
	OR EXISTS (SELECT FROM settings WHERE setrole = 0), coalesce((
	SELECT string_agg(DISTINCT quote_ident(r.rolname), ', ') FROM settings AS s JOIN pg_roles AS r ON r.oid = s.setrole
	WHERE r.rolcanlogin AND (`+mayWrite("1")+` OR `+mayWrite("2")+`)), '')`, t.Nodes.SQL(), jobs.Workers.SQL()).Scan(&here, &roles)
	switch {
	case err != nil:
		return c, err
	case here:
		return Condition{"transactions are read-only by default, and workers write",
			"ALTER DATABASE ... RESET default_transaction_read_only, or ALTER ROLE ... RESET default_transaction_read_only; then end the workers' sessions, which keep the setting"}, nil
	case roles != "":
		return Condition{"transactions are read-only by default for " + roles + ", who may write as a worker",
			"ALTER ROLE " + roles + " RESET default_transaction_read_only; then end the sessions of that role, which keep the setting"}, nil
	}
	return c, nil
}

// mayWrite returns a condition: role r may write the heartbeats in the table $n.
func mayWrite(n string) string {
	return `coalesce(has_column_privilege(r.oid, to_regclass($` + n + `::text)::oid, 'heartbeat_at', 'UPDATE'), false)`
}

// Full reports that a connection limit is reached: of the server, of this database, or of a role
// that may write heartbeats of workers. The zero Condition means that sessions are allowed.
func Full(ctx context.Context, db store.Querier, t tables.Tables, jobs tables.Jobs) (c Condition, err error) {
	all, err := pgdriver.QueryAll(ctx, db, func(r *sql.Rows) (c Condition, err error) {
		var what, name string
		var used, limit int
		if err := r.Scan(&what, &name, &used, &limit); err != nil {
			return c, err
		}
		c.Text = fmt.Sprintf("the connection limit of %s is reached: %d sessions of %d", strings.TrimSpace(what+" "+name), used, limit)
		c.Remedy = "end idle sessions, see pg_stat_activity, or raise the limit: " + map[string]string{
			"the server": "max_connections", "database": "ALTER DATABASE " + ident.Quote(name) + " CONNECTION LIMIT N", "role": "ALTER ROLE " + ident.Quote(name) + " CONNECTION LIMIT N"}[what]
		return c, nil
	}, `
SELECT what, name, used, most FROM (
	SELECT 'role' AS what, r.rolname::text AS name, (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid = r.oid) AS used, r.rolconnlimit AS most
	FROM pg_roles AS r WHERE r.rolconnlimit >= 0 AND r.rolcanlogin AND NOT r.rolsuper AND (`+mayWrite("1")+` OR `+mayWrite("2")+`)
	UNION ALL SELECT 'database', datname::text, (SELECT count(*) FROM pg_stat_activity AS a WHERE a.datid = d.oid AND coalesce(a.backend_type, 'client backend') = 'client backend'), datconnlimit
	FROM pg_database AS d WHERE datname = current_database() AND datconnlimit >= 0
	UNION ALL SELECT 'the server', '', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
) AS limits WHERE used >= most ORDER BY what, name LIMIT 1`, t.Nodes.SQL(), jobs.Workers.SQL())
	if err != nil || len(all) == 0 {
		return c, err
	}
	return all[0], nil
}
