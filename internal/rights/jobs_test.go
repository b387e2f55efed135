package rights_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	config = migrations.Config{Names: store.Names{Jobs: "infra.work"}}
	events = must(tables.Parse(store.Names{}))
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// deployment is a database with the tables of jobs and of consumers.
type deployment struct {
	*pgtest.Database
	t     *testing.T
	names tables.Jobs

	mu       sync.Mutex
	recorded map[string]map[string]bool // SQL by login
	denied   []string
}

func deploy(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{Database: pgtest.New(t), t: t, recorded: map[string]map[string]bool{}}
	if err := migrations.ApplyJobs(t.Context(), d.DB, &config); err != nil {
		t.Fatal(err)
	}
	d.names = must(tables.ParseJobs(config.Names))
	return d
}

const secret = "of-the-logins"

// role creates a login role whose name must be quoted.
func (d *deployment) role(kind string) (name string) {
	d.t.Helper()
	name = fmt.Sprintf(`%s's "%s"`, d.scan(`SELECT right(current_database(), 20)::text`), kind)
	d.Exec(d.t, `CREATE ROLE `+ident.Quote(name)+` LOGIN PASSWORD '`+secret+`'`)
	d.t.Cleanup(func() {
		d.Exec(d.t, `DROP OWNED BY `+ident.Quote(name))
		d.Exec(d.t, `DROP ROLE `+ident.Quote(name))
	})
	return name
}

func (d *deployment) scan(query string, args ...any) (text string) {
	d.t.Helper()
	if err := d.DB.QueryRowContext(context.Background(), query, args...).Scan(&text); err != nil {
		d.t.Fatalf("%v in %s", err, query)
	}
	return text
}

// open opens a pool for a login that records its statements.
func (d *deployment) open(login string) *sql.DB {
	d.t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		d.t.Fatal("the connection string is no URL")
	}
	u.User = url.UserPassword(login, secret)
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		d.t.Fatal("pgx does not take the connection string")
	}
	config.Tracer = d
	db := stdlib.OpenDB(*config)
	d.t.Cleanup(func() { _ = db.Close() })
	return db
}

// TraceQueryStart records the statement.
func (d *deployment) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	login := conn.Config().User
	if d.recorded[login] == nil {
		d.recorded[login] = map[string]bool{}
	}
	d.recorded[login][q.SQL] = true
	return ctx
}

// TraceQueryEnd records a denied statement.
func (d *deployment) TraceQueryEnd(_ context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if q.Err != nil && strings.Contains(q.Err.Error(), "42501") {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.denied = append(d.denied, q.Err.Error())
	}
}

// noneDenied fails the test if a statement of a login was denied.
func (d *deployment) noneDenied() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, text := range d.denied {
		d.t.Errorf("denied: %s", text)
	}
	d.denied = nil
}

// forgive drops the record of statements that were denied on purpose.
func (d *deployment) forgive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.denied = nil
}

// mayNot fails the test if the login may execute one of the statements.
func (d *deployment) mayNot(db *sql.DB, statements ...string) {
	d.t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(d.t.Context(), s); err == nil || !strings.Contains(err.Error(), "42501") {
			d.t.Errorf("%s: %v, want it denied", s, err)
		}
	}
	d.forgive()
}

// part is one privilege on a column, a table or a sequence.
type part struct{ on, table, column string }

// parts splits needs into single privileges.
func (d *deployment) parts(needs []rights.Need) (all []part) {
	d.t.Helper()
	for _, n := range needs {
		switch {
		case strings.HasPrefix(n.Table, "pg_catalog."): // granted to all roles
		case n.Serial != "":
			all = append(all, part{n.Privilege + ` ON SEQUENCE ` + d.scan(`SELECT pg_get_serial_sequence($1, $2)`, n.Table, n.Serial), n.Table, ""})
		case n.Columns == nil:
			all = append(all, part{n.Privilege + ` ON ` + n.Table, n.Table, ""})
		default:
			for _, c := range n.Columns {
				if c == "*" {
					c = d.scan(`SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped`, n.Table)
				}
				for name := range strings.FieldsSeq(c) {
					all = append(all, part{n.Privilege + ` (` + ident.Quote(name) + `) ON ` + n.Table, n.Table, name})
				}
			}
		}
	}
	return all
}

// checkParts grants a login its needs, calls play, and then revokes each part. At least one
// statement of play must then be denied.
func (d *deployment) checkParts(login string, needs []rights.Need, play func(db *sql.DB)) {
	d.t.Helper()
	role, parts := ident.Quote(login), d.parts(needs)
	d.Exec(d.t, `GRANT USAGE ON SCHEMA infra TO `+role)
	for _, p := range parts {
		d.Exec(d.t, `GRANT `+p.on+` TO `+role)
	}
	play(d.open(login))
	d.noneDenied()
	denies := d.explainer(login)
	for _, p := range parts {
		if strings.HasPrefix(p.on, "USAGE") {
			continue // EXPLAIN does not check sequences
		}
		d.Exec(d.t, `REVOKE `+p.on+` FROM `+role)
		if !denies(p) {
			d.t.Errorf("no statement of %s needs %s", login, p.on)
		}
		d.Exec(d.t, `GRANT `+p.on+` TO `+role)
	}
	d.forgive()
}

// explainer returns a function that reports whether a statement about the table of a part is
// denied. It plans recorded statements of the login. Statements that name the column come
// first, then the shortest ones. Each is planned again after every change of a privilege.
func (d *deployment) explainer(login string) func(p part) bool {
	t := d.t
	t.Helper()
	conn, err := d.open(login).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	run := func(query string) error {
		_, err := conn.ExecContext(context.WithoutCancel(t.Context()), query)
		return err
	}
	if err := run(`SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	planned := map[string]string{} // how it was planned, by SQL
	d.mu.Lock()
	var recorded []string
	for s := range d.recorded[login] {
		recorded = append(recorded, s)
	}
	d.mu.Unlock()
	slices.SortFunc(recorded, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	var queries []string
	for i, query := range recorded {
		name := fmt.Sprint("s", i)
		if run(`PREPARE `+name+` AS `+query) != nil {
			continue // a statement that cannot be planned
		}
		var parameters int
		if err := conn.QueryRowContext(t.Context(), `SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1`, name).Scan(&parameters); err != nil {
			t.Fatal(err)
		}
		how := `EXPLAIN EXECUTE ` + name
		if parameters > 0 {
			how += `(` + strings.TrimSuffix(strings.Repeat("NULL,", parameters), ",") + `)`
		}
		if err := run(how); err != nil {
			t.Fatalf("%v in %s", err, query)
		}
		planned[query] = how
		queries = append(queries, query)
	}
	return func(p part) bool {
		for _, names := range []bool{true, false} {
			for _, query := range queries {
				if strings.Contains(query, p.column) == names && (strings.Contains(query, p.table) || strings.Contains(query, strings.ReplaceAll(p.table, `"`, ""))) {
					if run(planned[query]) != nil {
						return true
					}
				}
			}
		}
		return false
	}
}
