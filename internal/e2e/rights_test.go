package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// tryStart starts a worker, stops it once it runs, and returns what Start said
// and what was logged.
func (d *deployment) tryStart(t *testing.T, db *sql.DB, opts ...worker.Option) (log string, err error) {
	t.Helper()
	return d.tryStartOf(t, db, &partitionedEffect{effect{name: "c"}, 1}, opts...)
}

func (d *deployment) tryStartOf(t *testing.T, db *sql.DB, c consumer.Consumer, opts ...worker.Option) (log string, err error) {
	t.Helper()
	var out pgtest.Lines
	opts = append(opts, worker.WithSlog(newLogger(&out)))
	w := worker.New(db, d.log, []consumer.Consumer{c}, d.options(opts...)...)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	for {
		select {
		case err := <-done:
			return out.String(), errors.Join(err, ctx.Err())
		case <-time.After(time.Millisecond):
			if w.Status().State == observe.StateRunning {
				w.Stop()
			}
		}
	}
}

// A worker needs the rights to split also if its code knows nothing of partitions, once an
// operator has fixed a number of them.
func TestRightsToSplitWhatIsNotPartitioned(t *testing.T) {
	t.Parallel()
	d := deploy(t, inSchemas)
	d.grant(t)
	db := d.open(t, d.login(t, "working", d.roles.Worker))
	d.Exec(t, `REVOKE DELETE ON `+d.names.ConsumerCheckpoints+` FROM `+ident.Quote(d.roles.Worker))
	plain := &effect{name: "c"}
	if _, err := d.tryStartOf(t, db, plain); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO `+d.names.ConsumerCheckpoints+` (consumer_name, last_position, partitions) VALUES ('c', 0, 2)
		ON CONFLICT (consumer_name) DO UPDATE SET partitions = 2`)
	if _, err := d.tryStartOf(t, db, plain); !errors.Is(err, worker.ErrPrivileges) || !strings.Contains(err.Error(), "GRANT DELETE ON") {
		t.Errorf("Start returned %v, want the missing privilege", err)
	}
}

var granted = regexp.MustCompile(`^GRANT (.+) ON (SCHEMA |SEQUENCE )?(\S+) TO .*;$`)

// Start names each privilege that is missing, and nothing else; all of them when
// all are missing; and what it names is enough.
func TestStartNamesEveryMissingPrivilege(t *testing.T) {
	t.Parallel()
	d := deploy(t, inSchemas)
	d.grant(t)
	login := d.login(t, "working", d.roles.Worker)
	db := d.open(t, login)
	lease := worker.WithLeaderStrategy(worker.LeaderStrategyLease)
	if log, err := d.tryStart(t, db, lease); err != nil || strings.Contains(log, "pg_read_all_stats") {
		t.Fatalf("with all privileges: %v\n%s", err, log)
	}
	text, err := migrations.Grants(&migrations.Config{Names: d.names}, migrations.Roles{Worker: d.roles.Worker})
	if err != nil {
		t.Fatal(err)
	}
	role, taken := ident.Quote(d.roles.Worker), 0
	for line := range strings.Lines(text) {
		m := granted.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		for privilege := range strings.SplitSeq(m[1], ", ") {
			taken++
			d.Exec(t, `REVOKE `+privilege+` ON `+m[2]+m[3]+` FROM `+role)
			_, err := d.tryStart(t, db, lease)
			want := "GRANT " + privilege + " ON " + m[2] + strings.ReplaceAll(m[3], `"`, "") + " TO " + ident.Quote(login)
			if !errors.Is(err, worker.ErrPrivileges) || !strings.HasSuffix(err.Error(), "all of them): "+want) {
				t.Errorf("without %s on %s Start returned %v, want %s", privilege, m[3], err, want)
			}
			if m[3] == `"infra"."worker_leader_election"` {
				if _, err := d.tryStart(t, db); err != nil {
					t.Errorf("without %s on %s, which the advisory strategy does not use: %v", privilege, m[3], err)
				}
			}
			d.Exec(t, `GRANT `+privilege+` ON `+m[2]+m[3]+` TO `+role)
		}
	}
	if taken < 30 {
		t.Errorf("%d privileges were taken away", taken)
	}

	d.login(t, "writing", d.roles.Writer)
	d.Exec(t, `REVOKE pg_read_all_stats FROM `+role)
	if log, err := d.tryStart(t, db, lease); err != nil || !strings.Contains(log, "GRANT pg_read_all_stats") || !strings.Contains(log, "writing") {
		t.Errorf("without pg_read_all_stats: %v\n%s", err, log)
	}
	d.Exec(t, `DROP OWNED BY `+role)
	_, err = d.tryStart(t, db, lease)
	if !errors.Is(err, worker.ErrPrivileges) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("without any privilege Start returned %v", err)
	}
	_, list, _ := strings.Cut(err.Error(), "all of them): ")
	for statement := range strings.SplitSeq(list, "; ") {
		d.Exec(t, statement)
	}
	if _, err := d.tryStart(t, db, lease); err != nil {
		t.Errorf("with what Start asked for it returned %v", err)
	}
}

// Start refuses row-level security on each table of the library, though a policy shows all
// rows today, and takes a role that it does not apply to.
func TestStartRefusesRowSecurity(t *testing.T) {
	t.Parallel()
	d := deploy(t, inSchemas)
	d.grant(t)
	login := d.login(t, "working", d.roles.Worker)
	db, role := d.open(t, login), ident.Quote(login)
	for _, table := range []string{`"progress"."consumer_dead_letters"`, `"log"."events"`} {
		d.Exec(t, `ALTER TABLE `+table+` ENABLE ROW LEVEL SECURITY`)
		d.Exec(t, `CREATE POLICY all_rows ON `+table+` USING (true)`)
		_, err := d.tryStart(t, db)
		if !errors.Is(err, worker.ErrPrivileges) || !strings.HasSuffix(err.Error(), "or ALTER TABLE "+strings.ReplaceAll(table, `"`, "")+" DISABLE ROW LEVEL SECURITY") ||
			!strings.Contains(err.Error(), "hides rows from role "+role+": ALTER ROLE "+role+" BYPASSRLS") {
			t.Errorf("with row-level security on %s Start returned %v", table, err)
		}
		d.Exec(t, `ALTER ROLE `+role+` BYPASSRLS`)
		if _, err := d.tryStart(t, db); err != nil {
			t.Errorf("with BYPASSRLS: %v", err)
		}
		d.Exec(t, `ALTER ROLE `+role+` NOBYPASSRLS`)
		d.Exec(t, `ALTER TABLE `+table+` DISABLE ROW LEVEL SECURITY`)
	}
}

// A schema that the role may not use hides its tables from the search path.
func TestStartNamesAClosedSchema(t *testing.T) {
	t.Parallel()
	d := deploy(t, store.Names{})
	d.grant(t)
	db := d.open(t, d.login(t, "working", d.roles.Worker))
	d.Exec(t, `REVOKE USAGE ON SCHEMA public FROM `+ident.Quote(d.roles.Worker))
	for _, c := range []consumer.Consumer{&effect{name: "c"}, &partitionedEffect{effect{name: "c"}, 1}} {
		if _, err := d.tryStartOf(t, db, c); !errors.Is(err, worker.ErrPrivileges) || !strings.Contains(err.Error(), "all of them): GRANT USAGE ON SCHEMA public TO ") {
			t.Errorf("Start returned %v", err)
		}
	}
}

func (d *deployment) needs(t *testing.T, lease bool) (all []rights.Need) {
	t.Helper()
	names, err := tables.Parse(d.names)
	if err != nil {
		t.Fatal(err)
	}
	table, column := d.log.PositionColumn()
	return append(rights.Worker(names, lease, true), rights.Log(table, column, true)...)
}

// A part is one privilege on one column, table or sequence.
type part struct{ privilege, table, column, sequence string }

func (p part) on() string {
	switch {
	case p.sequence != "":
		return p.privilege + ` ON SEQUENCE ` + p.sequence
	case p.column != "":
		return p.privilege + ` (` + ident.Quote(p.column) + `) ON ` + p.table
	}
	return p.privilege + ` ON ` + p.table
}

// parts takes needs apart.
func (d *deployment) parts(t *testing.T, lease bool) (all []part) {
	t.Helper()
	for _, n := range d.needs(t, lease) {
		switch {
		case strings.HasPrefix(n.Table, "pg_catalog."): // everybody's
		case n.Serial != "":
			all = append(all, part{privilege: n.Privilege, table: n.Table, sequence: one[string](t, d.DB, `SELECT pg_get_serial_sequence($1, $2)`, n.Table, n.Serial)})
		case n.Columns == nil:
			all = append(all, part{privilege: n.Privilege, table: n.Table})
		default:
			for _, c := range n.Columns {
				names := c
				if c == "*" {
					names = one[string](t, d.DB, `SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped`, n.Table)
				}
				for name := range strings.FieldsSeq(names) {
					all = append(all, part{privilege: n.Privilege, table: n.Table, column: name})
				}
			}
		}
	}
	return all
}

// A worker does all that it ever does with privileges on the columns that Start
// asks for. Without any of them some statement would fail.
func TestPrivilegesOnColumns(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]worker.LeaderStrategy{"advisory": worker.LeaderStrategyAdvisory, "lease": worker.LeaderStrategyLease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, inSchemas)
			d.grant(t)
			login := d.login(t, "working")
			role, parts := ident.Quote(login), d.parts(t, strategy == worker.LeaderStrategyLease)
			for _, schema := range []string{"infra", "progress", "audit", "log"} {
				d.Exec(t, `GRANT USAGE ON SCHEMA `+schema+` TO `+role)
			}
			for _, p := range parts {
				d.Exec(t, `GRANT `+p.on()+` TO `+role)
			}
			f := startFlow(t, d, login, worker.WithLeaderStrategy(strategy))
			f.play(t)
			d.noneDenied(t)

			denies := d.explainer(t, login)
			for _, p := range parts {
				// Sequences are not planned. A worker reads of repairs only after
				// one whose answer was lost.
				if p.privilege == "USAGE" || p.privilege == "SELECT" && (p.column == "operator" || p.column == "detail") {
					continue
				}
				d.Exec(t, `REVOKE `+p.on()+` FROM `+role)
				if !denies(p.table) {
					t.Errorf("no statement needs %s", p.on())
				}
				d.Exec(t, `GRANT `+p.on()+` TO `+role)
			}
		})
	}
}

// explainer returns what plans the statements of a login that name a table, and
// reports whether one of them is denied.
func (d *deployment) explainer(t *testing.T, login string) func(table string) bool {
	t.Helper()
	conn, err := d.open(t, login).Conn(t.Context())
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
	planned := map[string]string{} // how, by SQL
	d.mu.Lock()
	recorded := make([]string, 0, len(d.recorded))
	for s := range d.recorded {
		if s.login == login {
			recorded = append(recorded, s.sql)
		}
	}
	d.mu.Unlock()
	for i, query := range recorded {
		name := fmt.Sprint("s", i)
		if run(`PREPARE `+name+` AS `+query) != nil {
			continue // it is none that can be planned
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
	}
	if len(planned) < 20 {
		t.Fatalf("only %d statements were recorded", len(planned))
	}
	return func(table string) bool {
		for query, how := range planned {
			if strings.Contains(query, table) || strings.Contains(query, strings.ReplaceAll(table, `"`, "")) {
				if err := run(how); err != nil {
					return true
				}
			}
		}
		return false
	}
}
