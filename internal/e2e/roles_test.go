package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// deployment is a database whose roles may do what they need, and no more.
type deployment struct {
	*pgtest.Database
	names store.Names
	roles migrations.Roles
	log   *storepostgres.Store

	mu       sync.Mutex
	recorded map[statement]bool
	denied   []string
}

// statement is what a login has executed.
type statement struct{ login, sql string }

// inSchemas has each kind of table in a schema of its own.
var inSchemas = store.Names{
	Schema:              "infra",
	ConsumerCheckpoints: "progress.consumer_checkpoints", ConsumerGapSkips: "audit.consumer_gap_skips",
	Events: "log.events", AggregateHeads: "log.aggregate_heads",
}

// deploy makes the tables, and roles without any rights. Nobody may use the
// schema public unless told so.
func deploy(t *testing.T, names store.Names) *deployment {
	t.Helper()
	d := &deployment{Database: pgtest.Empty(t), names: names, recorded: map[statement]bool{}}
	if err := migrations.Apply(t.Context(), d.DB, &migrations.Config{Names: names}); err != nil {
		t.Fatal(err)
	}
	d.log = storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNames(names), storepostgres.WithNotifyChannel("worker_events")))
	d.Exec(t, `CREATE SCHEMA effects`)
	d.Exec(t, `CREATE TABLE effects.ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`)
	d.Exec(t, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	// So that the test itself need not name them.
	d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = public, effects, infra, progress, audit, log', current_user, current_database()); END $$`)
	d.DB.SetMaxIdleConns(0)
	d.DB.SetMaxIdleConns(4)
	d.roles = migrations.Roles{
		Writer: d.role(t, "writer", "NOLOGIN"), Worker: d.role(t, "worker", "NOLOGIN"),
		Operator: d.role(t, "operator", "NOLOGIN"), Reader: d.role(t, "reader", "NOLOGIN"),
	}
	return d
}

// role makes a role with a name that must be quoted.
func (d *deployment) role(t *testing.T, kind, options string) (name string) {
	t.Helper()
	name = fmt.Sprintf(`%s's "%s"`, one[string](t, d.DB, `SELECT right(current_database(), 20)::text`), kind)
	quoted := ident.Quote(name)
	d.Exec(t, `CREATE ROLE `+quoted+` `+options)
	t.Cleanup(func() {
		d.Exec(t, `DROP OWNED BY `+quoted)
		d.Exec(t, `DROP ROLE `+quoted)
	})
	return name
}

// grant gives all roles what migrations.Grants says, twice.
func (d *deployment) grant(t *testing.T) {
	t.Helper()
	text, err := migrations.Grants(&migrations.Config{Names: d.names}, d.roles)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.OpenPQ(t).ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

const secret = "of-the-logins"

// login makes a role that logs in, a member of others.
func (d *deployment) login(t *testing.T, kind string, groups ...string) (name string) {
	t.Helper()
	name = d.role(t, kind+" login", `LOGIN PASSWORD '`+secret+`'`)
	for _, g := range groups {
		d.Exec(t, `GRANT `+ident.Quote(g)+` TO `+ident.Quote(name))
	}
	return name
}

func (d *deployment) url(t *testing.T, login string) string {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal("the connection string is no URL")
	}
	u.User = url.UserPassword(login, secret)
	return u.String()
}

// open opens a pool of a login.
func (d *deployment) open(t *testing.T, login string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(d.url(t, login))
	if err != nil {
		t.Fatal("pgx does not take the connection string")
	}
	config.Tracer = d
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// TraceQueryStart records the SQL.
func (d *deployment) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recorded[statement{conn.Config().User, q.SQL}] = true
	return ctx
}

// executed reports whether a login has executed a statement with some text in it.
func (d *deployment) executed(text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.recorded {
		if strings.Contains(s.sql, text) {
			return true
		}
	}
	return false
}

// TraceQueryEnd records what is denied.
func (d *deployment) TraceQueryEnd(_ context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if q.Err != nil && strings.Contains(q.Err.Error(), "42501") {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.denied = append(d.denied, q.Err.Error())
	}
}

// noneDenied fails the test if a statement of a login was denied.
func (d *deployment) noneDenied(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, text := range d.denied {
		t.Errorf("denied: %s", text)
	}
	d.denied = nil
}

// options name the tables.
func (d *deployment) options(more ...worker.Option) []worker.Option {
	return append(append(quick(), worker.WithNames(d.names)), more...)
}

// begin appends n events and leaves the transaction open.
func (d *deployment) begin(t *testing.T, db *sql.DB, id string, n int) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]store.Event, n)
	for i := range events {
		events[i] = event("Order", id)
	}
	if _, err := d.log.Append(context.Background(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

func commit(t *testing.T, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func newLogger(out *pgtest.Lines) *slog.Logger { return slog.New(slog.NewTextHandler(out, nil)) }
