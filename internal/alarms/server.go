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
	err = db.QueryRowContext(ctx, texts.Statement("read_only", nil), t.Nodes.SQL(), jobs.Workers.SQL()).Scan(&here, &roles)
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
	}, texts.Statement("full", nil), t.Nodes.SQL(), jobs.Workers.SQL())
	if err != nil || len(all) == 0 {
		return c, err
	}
	return all[0], nil
}
