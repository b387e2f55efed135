package table_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
)

// Start names every reason why it cannot run the table, each with its own text.
func TestTableThatDoesNotFit(t *testing.T) {
	t.Parallel()
	const alter = `ALTER TABLE example_jobs `
	for name, c := range map[string]struct {
		ddl  string
		want []string
	}{
		"no table":       {`DROP TABLE example_jobs CASCADE`, []string{"there is no example_jobs", "there is no example_jobs_with_repository_name"}},
		"no view":        {`DROP VIEW example_jobs_with_repository_name`, []string{"there is no example_jobs_with_repository_name that this role sees"}},
		"no columns":     {`DROP VIEW example_jobs_with_repository_name; ` + alter + `DROP cancel, DROP last_heartbeat_at; CREATE VIEW example_jobs_with_repository_name AS SELECT id FROM example_jobs`, []string{`no column cancel: ALTER TABLE "public"."example_jobs" ADD COLUMN "cancel" boolean NOT NULL DEFAULT false`, `ADD COLUMN "last_heartbeat_at" timestamptz`}},
		"types":          {`DROP VIEW example_jobs_with_repository_name; ` + alter + `ALTER started_at TYPE timestamptz(3), ALTER finished_at TYPE timestamp, ALTER execution_logs TYPE json USING NULL, ALTER cancel DROP DEFAULT, ALTER cancel TYPE text, ALTER num_resets TYPE numeric, ALTER worker_hostname TYPE varchar(30), ALTER failure_message TYPE name; CREATE VIEW example_jobs_with_repository_name AS SELECT id FROM example_jobs`, []string{"column started_at of public.example_jobs (timestamp(3) with time zone) must have microseconds", "column finished_at of public.example_jobs (timestamp without time zone) must be timestamp with time zone", "must be json[] or jsonb[]", "must be boolean", "(numeric) must be smallint, integer or bigint", "takes 30 characters, and needs 41", "(name) must be text or varchar"}},
		"not null":       {alter + `ALTER failure_message SET NOT NULL`, []string{`is NOT NULL, and is cleared at times: ALTER TABLE "public"."example_jobs" ALTER COLUMN "failure_message" DROP NOT NULL`}},
		"generated":      {`DROP VIEW example_jobs_with_repository_name; ` + alter + `DROP num_failures; ` + alter + `ADD num_failures int GENERATED ALWAYS AS (repository_id) STORED; CREATE VIEW example_jobs_with_repository_name AS SELECT id FROM example_jobs`, []string{"is GENERATED ALWAYS, and must be written"}},
		"no key":         {alter + `DROP CONSTRAINT example_jobs_pkey`, []string{`has no unique index of its own: ALTER TABLE "public"."example_jobs" ADD PRIMARY KEY ("id")`}},
		"states":         {alter + `ADD CONSTRAINT known CHECK (state IN ('queued', 'processing', 'errored', 'failed', 'completed'))`, []string{`constraint known of public.example_jobs refuses the states canceled`}},
		"an enum":        {`DROP VIEW example_jobs_with_repository_name; DROP INDEX example_jobs_due, example_jobs_processing; CREATE TYPE job_state AS ENUM ('queued', 'processing', 'completed', 'failed', 'errored'); ` + alter + `ALTER state DROP DEFAULT, ALTER state TYPE job_state USING state::job_state; CREATE VIEW example_jobs_with_repository_name AS SELECT id FROM example_jobs`, []string{"column state of public.example_jobs (public.job_state) has no value canceled: ALTER TYPE public.job_state ADD VALUE 'canceled'"}},
		"a view instead": {`ALTER TABLE example_jobs RENAME TO hidden; CREATE VIEW example_jobs AS SELECT * FROM hidden`, []string{"example_jobs is no table: give the table as TableName"}},
		"no id":          {`DROP VIEW example_jobs_with_repository_name; CREATE VIEW example_jobs_with_repository_name AS SELECT state FROM example_jobs`, []string{"example_jobs_with_repository_name has no column id, by which its rows are found"}},
		"another id":     {`DROP VIEW example_jobs_with_repository_name; CREATE VIEW example_jobs_with_repository_name AS SELECT id::text, state FROM example_jobs`, []string{"column id of public.example_jobs_with_repository_name (text) must be smallint, integer or bigint"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			db := s.d.OpenPQ(t)
			if _, err := db.ExecContext(t.Context(), c.ddl); err != nil {
				t.Fatal(err)
			}
			err := s.worker(s.d.DB, nil).Start(t.Context())
			if !errors.Is(err, table.ErrUnfit) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("Start: %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start: %v; want %q", err, want)
				}
			}
			if n := strings.Count(err.Error(), "; "); n != len(c.want)-1 && !strings.Contains(c.want[0], "refuses") {
				t.Errorf("%d findings, want %d: %v", n+1, len(c.want), err)
			}
		})
	}
}

// Applying the remedies of the error to a table with rows makes no jobs of these rows.
func TestRemediesMakeNoJobsOfRows(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE exports (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, invoice text)`)
	d.Exec(t, `INSERT INTO exports (invoice) SELECT 'old' FROM generate_series(1, 100)`)
	ran := make(chan string, 200)
	store := table.NewStore(d.DB, table.Options[string]{
		TableName: "exports", ColumnExpressions: []string{"exports.invoice"}, OrderByExpression: "exports.id",
		Scan: func(row table.Row) (invoice string, err error) { return invoice, row.Scan(&invoice) },
	})
	err := store.Check(t.Context())
	if !errors.Is(err, table.ErrUnfit) {
		t.Fatal(err)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 13 { // the first line is the summary, and one column exists
		t.Fatalf("%d lines: %v", len(lines), err)
	}
	for _, line := range lines[1:] {
		_, remedy, _ := strings.Cut(line, ": ")
		remedy, _, _ = strings.Cut(remedy, ", or if")
		remedy, _, _ = strings.Cut(remedy, " (so ")
		for statement := range strings.SplitSeq(remedy, "; ") {
			d.Exec(t, statement)
		}
	}
	w := table.NewWorker(store, table.Handler[string]{Handle: func(_ context.Context, j *table.Job[string]) error { ran <- j.Record; return nil }}, quick())
	s := &stage{t: t, d: d}
	s.start(w)
	d.Exec(t, `INSERT INTO exports (invoice) VALUES ('new')`)
	s.until("the new row to complete", func() bool { return w.Status().Completed > 0 })
	d.Exec(t, `INSERT INTO exports (invoice) VALUES ('new')`)
	s.until("another to complete", func() bool { return w.Status().Completed > 1 })
	for len(ran) > 0 {
		if invoice := <-ran; invoice != "new" {
			t.Errorf("it ran the row %q", invoice)
		}
	}
}

// Names with capitals match as written, or else as in SQL without quotes. The error names a similar
// relation.
func TestNamesWithCapitals(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.script(`DROP VIEW example_jobs_with_repository_name;
		ALTER TABLE example_jobs RENAME TO "ExampleJobs";
		ALTER TABLE "ExampleJobs" RENAME state TO "jobState";
		ALTER TABLE "ExampleJobs" RENAME id TO "ID";
		CREATE VIEW "ShownJobs" AS SELECT j.*, 'x' AS more FROM "ExampleJobs" AS j`)
	o := table.Options[string]{
		TableName: "Public.ExampleJobs", ViewName: "ShownJobs S", ColumnExpressions: []string{"S.more"},
		AlternateColumnNames: map[string]string{"id": "ID", "state": "jobState", "cancel": "Cancel"},
		OrderByExpression:    `"ExampleJobs"."ID"`,
		Scan:                 func(row table.Row) (more string, err error) { return more, row.Scan(&more) },
	}
	check := func(want string) {
		t.Helper()
		if err := table.NewStore(s.d.DB, o).Check(t.Context()); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("Check: %v, want %q", err, want)
		}
	}
	check(`there is no public.examplejobs that this role sees, but "ExampleJobs"`) // the schema is public
	o.TableName = "public.ExampleJobs"
	check("")
	store := table.NewStore(s.d.DB, o)
	w := table.NewWorker(store, table.Handler[string]{Handle: func(_ context.Context, j *table.Job[string]) error { s.note("%s", j.Record); return nil }}, quick())
	s.start(w)
	s.d.Exec(t, `INSERT INTO "ExampleJobs" DEFAULT VALUES`)
	s.until("it to complete", func() bool { return w.Status().Completed == 1 })
	if n, err := store.CountByState(t.Context(), table.StateCompleted); n != 1 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	o.TableName = "examplejobs"
	check(`there is no examplejobs that this role sees, but "ExampleJobs": write its capitals`)
	o.TableName = "ExampleJobs"
	o.AlternateColumnNames["state"] = "jobstate"
	check(`has no column jobstate, but "jobState": AlternateColumnNames: {"state": "jobState"}`)
	o.AlternateColumnNames["state"] = "jobState"
	delete(o.AlternateColumnNames, "id")
	check(`has no column id, but "ID": AlternateColumnNames: {"id": "ID"}`)
	o.AlternateColumnNames["id"], o.AlternateColumnNames["queued_at"] = "ID", "Started_At"
	check(`queued_at and started_at are both column "started_at"`)
	o.AlternateColumnNames["queued_at"] = "enqueued"
	check(`or if it has another name, give that in AlternateColumnNames`)
}

// Columns with a case-insensitive collation work: no two states, and no two workers, differ in case
// alone.
func TestCollationsOfTheColumns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	s.d.Exec(t, `DROP VIEW example_jobs_with_repository_name`)
	for _, column := range []string{"state", "worker_hostname", "failure_message"} {
		s.d.Exec(t, `ALTER TABLE example_jobs ALTER COLUMN `+column+` TYPE text COLLATE caseless`)
	}
	s.d.Exec(t, `CREATE VIEW example_jobs_with_repository_name AS SELECT j.*, 'r' AS repository_name FROM example_jobs AS j`)
	s.o.ColumnExpressions[3] = "j.worker_hostname" // PostgreSQL searches no text under such a collation
	s.o.StalledMaxAge = 2 * time.Second
	var left sync.Map
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		if _, tried := left.LoadOrStore(j.Record.ID, true); j.Record.Repository == "r" && !tried {
			return errors.New("again")
		}
		return nil
	}
	states := map[int64]table.State{
		s.add(""):                                  table.StateCompleted,
		s.add(`(state) VALUES ('QUEUED')`):         table.StateCompleted,
		s.add(`(cancel) VALUES (true)`):            table.StateCanceled,
		s.add(`(state) VALUES ('waits for more')`): "waits for more",
		// The worker of this row is dead. Its name differs from a live worker's only in case.
		s.add(`(state, started_at, last_heartbeat_at, worker_hostname) VALUES ('processing', now() - interval '1 hour', now() - interval '1 hour', 'HERE')`): table.StateCompleted,
	}
	s.run(nil)
	s.run(nil)
	for id, state := range states {
		s.becomes(id, state)
	}
}

// Start refuses a temporary table, which only one session sees.
func TestTemporaryTable(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.d.OpenPQ(t)
	db.SetMaxOpenConns(3)
	db.SetMaxIdleConns(3)
	var conns [3]*sql.Conn
	for i := range conns {
		var err error
		if conns[i], err = db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[i].ExecContext(t.Context(), `CREATE TEMPORARY TABLE example_jobs (LIKE public.example_jobs INCLUDING ALL)`); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	if err := s.worker(db, nil).Start(t.Context()); !errors.Is(err, table.ErrUnfit) || !strings.Contains(err.Error(), "example_jobs is temporary") {
		t.Errorf("Start: %v", err)
	}
	s.o.TableName = "public.example_jobs j"
	if err := table.NewStore(db, s.o).Check(t.Context()); err != nil {
		t.Errorf("with its schema: %v", err)
	}
}

// Expressions that PostgreSQL refuses are reported, each under its option.
func TestExpressionsThatDoNotFit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.Condition, s.o.OrderByExpression, s.o.ColumnExpressions = "j.nothing = 1", "j.repository_name", []string{"j.id", "x.id"}
	err := table.NewStore(s.d.DB, s.o).Check(t.Context())
	for _, want := range []string{"Condition: PostgreSQL says: ", "j.nothing", "OrderByExpression: PostgreSQL says: ", "j.repository_name", "ColumnExpressions: PostgreSQL says: ", `"x"`} {
		if !errors.Is(err, table.ErrUnfit) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Expressions that PostgreSQL refuses only as part of a statement are reported too.
func TestExpressionsThatDoNotFitTogether(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, c := range map[string]struct {
		change func(o *table.Options[example])
		want   []string
	}{
		"an aggregate in the order": {func(o *table.Options[example]) { o.OrderByExpression = "count(*)" }, []string{"OrderByExpression and Condition in a claim, where they must be about one row: PostgreSQL says: "}},
		"a window in the order":     {func(o *table.Options[example]) { o.OrderByExpression = "rank() OVER (ORDER BY j.id)" }, []string{"in a claim", "FOR NO KEY UPDATE is not allowed with window functions"}},
		"a set in the order":        {func(o *table.Options[example]) { o.OrderByExpression = "generate_series(1, j.repository_id)" }, []string{"in a claim", "set-returning"}},
		"an aggregate of the view":  {func(o *table.Options[example]) { o.ColumnExpressions = []string{"count(*)"} }, []string{"ColumnExpressions, which must be about one row: PostgreSQL says: "}},
		"a group in the condition":  {func(o *table.Options[example]) { o.Condition = "true GROUP BY j.id" }, []string{"Condition"}},
		"a limit behind the order":  {func(o *table.Options[example]) { o.OrderByExpression = "j.id LIMIT 5" }, []string{"in a claim"}},
	} {
		s.o = options()
		c.change(&s.o)
		err := table.NewStore(s.d.DB, s.o).Check(t.Context())
		for _, want := range c.want {
			if !errors.Is(err, table.ErrUnfit) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
	}
}

// Invalid options are reported at once, all of them.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	scans := s.o.Scan
	handle := s.h.Handle
	for name, c := range map[string]struct {
		change func(o *table.Options[example], h *table.Handler[example], w *table.WorkerOptions)
		want   string
	}{
		"no table name": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) { o.TableName = "" }, `TableName: "" is no name`},
		"a long name": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.TableName = "a b c d"
		}, `TableName: "a b c d" is no name`},
		"an odd alias": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.ViewName = "v AS x;y"
		}, "ViewName: "},
		"SQL as a name": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.TableName = "jobs;drop"
		}, "TableName: "},
		"a column": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.AlternateColumnNames = map[string]string{"status": "state"}
		}, `AlternateColumnNames: there is no column "status"`},
		"no column": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.AlternateColumnNames = map[string]string{"state": "a b"}
		}, `AlternateColumnNames: state: "a b"`},
		"a column twice": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.AlternateColumnNames = map[string]string{"state": "id"}
		}, `id and state are both column "id"`},
		"no expressions": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.ColumnExpressions = nil
		}, "ColumnExpressions: there are none"},
		"an empty one": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.ColumnExpressions = []string{"id", " "}
		}, "ColumnExpressions: number 2 is empty"},
		"no scan":      {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) { o.Scan = nil }, "Scan is nil"},
		"retries only": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) { o.RetryAfter = 0 }, "MaxNumRetries is 3 and RetryAfter is 0s"},
		"a pause only": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.MaxNumRetries = 1
		}, "MaxNumRetries is 1 and RetryAfter is 1ms"},
		"retries below 0": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.MaxNumRetries = -1
		}, "MaxNumRetries: -1 is out of range"},
		"stalled at once": {func(o *table.Options[example], _ *table.Handler[example], _ *table.WorkerOptions) {
			o.StalledMaxAge = time.Millisecond
		}, "StalledMaxAge: 1ms is out of range"},
		"no handler":  {func(_ *table.Options[example], h *table.Handler[example], _ *table.WorkerOptions) { h.Handle = nil }, "the Handle of the Handler is nil"},
		"no handlers": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) { w.NumHandlers = -1 }, "NumHandlers: -1 is out of range"},
		"a rare heartbeat": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.HeartbeatInterval = 4 * time.Second
		}, "HeartbeatInterval: 4s is out of range, StalledMaxAge (10s) must be three of it"},
		"an interval": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) { w.Interval = -1 }, "Interval: -1ns is out of range"},
		"a bound": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.MaximumRuntimePerJob = -1
		}, "MaximumRuntimePerJob: -1ns is out of range"},
		"a number": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.NumTotalJobs = -1
		}, "NumTotalJobs: -1 is out of range"},
		"a time": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.MaxActiveTime = -1
		}, "MaxActiveTime: -1ns is out of range"},
		"a stop": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.ShutdownTimeout = -1
		}, "ShutdownTimeout: -1ns is out of range"},
		"a hostname": {func(_ *table.Options[example], _ *table.Handler[example], w *table.WorkerOptions) {
			w.WorkerHostname = "a\x00"
		}, "WorkerHostname: "},
	} {
		s.o, s.h = options(), table.Handler[example]{Handle: handle}
		s.o.Scan = scans
		o := quick()
		c.change(&s.o, &s.h, &o)
		err := table.NewWorker(table.NewStore(s.d.DB, s.o), s.h, o).Start(t.Context())
		if !errors.Is(err, table.ErrInvalidConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Start: %v; want %q", name, err, c.want)
		}
	}
	s.o, s.h = options(), table.Handler[example]{Handle: handle}
	for name, w := range map[string]*table.Worker{
		"no store": table.NewWorker(nil, s.h, quick()),
		"no db":    table.NewWorker(table.NewStore(nil, s.o), s.h, quick()),
	} {
		if err := w.Start(t.Context()); !errors.Is(err, table.ErrInvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := options()
	bad.TableName, bad.MaxNumRetries = "", -1
	store := table.NewStore(s.d.DB, bad)
	_, counted := store.CountByState(t.Context())
	_, exists := store.Exists(t.Context())
	_, longest := store.MaxDurationInQueue(t.Context())
	for call, err := range map[string]error{
		"Start": table.NewWorker(store, s.h, quick()).Start(t.Context()), "Check": store.Check(t.Context()), "Requeue": store.Requeue(t.Context(), 1, time.Time{}),
		"CountByState": counted, "Exists": exists, "MaxDurationInQueue": longest,
	} {
		if !errors.Is(err, table.ErrInvalidConfig) || !strings.Contains(err.Error(), "TableName: ") || !strings.Contains(err.Error(), "MaxNumRetries: -1") {
			t.Errorf("%s with two bad options: %v", call, err)
		}
	}
	err := table.NewWorker(table.NewStore(s.d.DB, s.o), s.h, table.WorkerOptions{Interval: -1, NumHandlers: -1}).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "Interval: -1ns") || !strings.Contains(err.Error(), "NumHandlers: -1") {
		t.Errorf("a worker with two bad options: %v", err)
	}
	small := s.d.OpenPQ(t)
	small.SetMaxOpenConns(2)
	if err := s.worker(small, nil).Start(t.Context()); !errors.Is(err, table.ErrInvalidConfig) || !strings.Contains(err.Error(), "db allows 2 open connections") {
		t.Errorf("a small pool: %v", err)
	}
	if err := s.worker(s.d.OpenLent(t, 4), nil).Start(t.Context()); !errors.Is(err, table.ErrInvalidConfig) || !strings.Contains(err.Error(), "pgxpool.Pool") {
		t.Errorf("another pool's connections: %v", err)
	}
}

// A policy may hide rows from a worker. Start refuses a table all of whose rows are hidden.
func TestStartRefusesRowSecurityWithoutAPolicy(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db := s.openPGX(s.refuse(`ALTER TABLE example_jobs ENABLE ROW LEVEL SECURITY`, ""))
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	err := s.worker(db, nil).Start(ctx)
	for _, words := range []string{"row-level security of public.example_jobs hides all rows", "SELECT, UPDATE: CREATE POLICY", "BYPASSRLS", "ALTER TABLE public.example_jobs DISABLE ROW LEVEL SECURITY"} {
		if !errors.Is(err, table.ErrPrivileges) || !strings.Contains(err.Error(), words) {
			t.Errorf("Start returned %v, without %q", err, words)
		}
	}
	s.script(`CREATE POLICY tenant ON example_jobs USING (id % 2 = 1)`)
	first, second := s.add(""), s.add("")
	stop := s.start(s.worker(db, nil))
	s.becomes(first, table.StateCompleted)
	if err := stop(); err != nil || s.state(second) != string(table.StateQueued) {
		t.Errorf("the other tenant's job is %s; Start returned %v", s.state(second), err)
	}
}

// A role needs the privileges that Start reports as missing, and no others.
func TestRole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	name := s.text(`SELECT right(current_database(), 20)::text`) + " worker"
	role := ident.Quote(name)
	s.d.Exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'of-the-logins'`)
	t.Cleanup(func() {
		s.d.Exec(t, `DROP OWNED BY `+role)
		s.d.Exec(t, `DROP ROLE `+role)
	})
	u, err := url.Parse(s.d.URL)
	if err != nil {
		t.Fatal("the connection string is no URL")
	}
	u.User = url.UserPassword(name, "of-the-logins")
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		t.Fatal("pgx does not take the connection string")
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })

	err = s.worker(db, nil).Start(t.Context())
	if !errors.Is(err, table.ErrUnfit) || !strings.Contains(err.Error(), "GRANT USAGE ON its SCHEMA") {
		t.Fatalf("without anything: %v", err)
	}
	qualified := s.o
	qualified.TableName = "public.example_jobs j"
	if err := table.NewStore(db, qualified).Check(t.Context()); !errors.Is(err, table.ErrPrivileges) || !strings.Contains(err.Error(), `GRANT USAGE ON SCHEMA "public"`) {
		t.Errorf("without anything, with the schema's name: %v", err)
	}
	s.d.Exec(t, `GRANT USAGE ON SCHEMA public TO `+role)
	err = s.worker(db, nil).Start(t.Context())
	if !errors.Is(err, table.ErrPrivileges) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("with the schema: %v", err)
	}
	_, list, _ := strings.Cut(err.Error(), fmt.Sprint(table.ErrPrivileges, ": "))
	if strings.Contains(list, "INSERT") || strings.Contains(list, "DELETE") {
		t.Errorf("it asks for %s", list)
	}
	for statement := range strings.SplitSeq(list, "; ") {
		s.d.Exec(t, statement)
	}
	s.d.Exec(t, `REVOKE UPDATE ON example_jobs FROM `+role)
	const all = `state, failure_message, queued_at, started_at, last_heartbeat_at, finished_at, process_after, num_resets, num_failures, execution_logs, worker_hostname`
	s.d.Exec(t, `GRANT UPDATE (`+all+`) ON example_jobs TO `+role) // privileges on columns suffice
	s.o.StalledMaxAge = 600 * time.Millisecond
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		if j.NumFailures == 0 {
			return errRefused
		}
		if _, err := j.Log(ctx, "logged"); err != nil {
			return err
		}
		return j.UpdateLog(ctx, 1, "logged again")
	}
	stop := s.start(s.worker(db, nil))
	id, lost := s.add(""), s.add(abandoned+`0, false`)
	s.becomes(id, table.StateCompleted)
	s.becomes(lost, table.StateCompleted)
	if err := stop(); err != nil {
		t.Error(err)
	}
	for column := range strings.SplitSeq(all, ", ") {
		s.d.Exec(t, `REVOKE UPDATE (`+column+`) ON example_jobs FROM `+role)
		if err := table.NewStore(db, s.o).Check(t.Context()); !errors.Is(err, table.ErrPrivileges) || !strings.Contains(err.Error(), column) {
			t.Errorf("without %s: %v", column, err)
		}
		s.d.Exec(t, `GRANT UPDATE (`+column+`) ON example_jobs TO `+role)
	}
}
