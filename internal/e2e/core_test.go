package e2e

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	flows "github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type coreJob struct{ N int }

func (coreJob) Kind() string { return "core" }

// coreSettings are what a role or a database can have set.
var coreSettings = []struct {
	name string
	set  map[string]string
	pq   bool // also with lib/pq
}{
	{"formats", map[string]string{"DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "'Asia/Kathmandu'", "bytea_output": "escape", "extra_float_digits": "-3", "xmloption": "document"}, false},
	{"transactions", map[string]string{"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "synchronous_commit": "off", "row_security": "off"}, true},
	{"limits", map[string]string{"lock_timeout": "'1s'", "statement_timeout": "'5s'", "idle_session_timeout": "'1500ms'", "idle_in_transaction_session_timeout": "'2s'", "transaction_timeout": "'5s'"}, true},
	{"reading", map[string]string{"search_path": "pg_catalog, public", "standard_conforming_strings": "off", "escape_string_warning": "off", "backslash_quote": "off", "array_nulls": "off", "transform_null_equals": "on", "quote_all_identifiers": "on"}, true},
	{"plans", map[string]string{"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_nestloop": "off", "jit_above_cost": "0", "from_collapse_limit": "1", "join_collapse_limit": "1", "cursor_tuple_fraction": "1", "default_statistics_target": "1"}, true},
}

// Events, jobs, flows, schedules and rows go on under whatever a role or a database can have
// set. The quick tier sets all of it at once for each driver. The long tier sets each group
// alone, too, so that no setting hides the fault of another.
func TestCoreUnderEverySetting(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		all := map[string]string{}
		for _, c := range coreSettings {
			if driver == "lib/pq" && !c.pq {
				continue
			}
			maps.Copy(all, c.set)
			t.Run(c.name+", "+driver, func(t *testing.T) {
				tier.Long(t, "TestCoreUnderEverySetting, which sets all groups at once")
				t.Parallel()
				core(t, c.set, driver)
			})
		}
		t.Run("all, "+driver, func(t *testing.T) {
			t.Parallel()
			core(t, all, driver)
		})
	}
	t.Run("another pool's connections", func(t *testing.T) {
		t.Parallel()
		core(t, coreSettings[1].set, "pgxpool")
	})
}

func core(t *testing.T, set map[string]string, driver string) {
	d := newLog(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(),
		started_at timestamptz, last_heartbeat_at timestamptz, finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0, num_failures integer NOT NULL DEFAULT 0,
		execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false)`)
	for setting, value := range set {
		d.Exec(t, `DO $$ BEGIN IF EXISTS (SELECT FROM pg_settings WHERE name = '`+setting+`') THEN
			EXECUTE format('ALTER DATABASE %I SET `+setting+` = ', current_database()) || $v$`+value+`$v$; END IF; END $$`)
	}
	open := func(url string) *sql.DB {
		at := &pgtest.Database{URL: url}
		switch driver {
		case "lib/pq":
			return at.OpenPQ(t)
		case "pgxpool":
			db := at.OpenLent(t, 20)
			db.SetMaxOpenConns(20)
			return db
		}
		return at.OpenMode(t, pgx.QueryExecModeCacheStatement)
	}
	db := open(d.URL)
	// The test's own calls, which nobody repeats, have all but the limits.
	unlimited := one[string](t, d.DB, `SELECT string_agg(format('-c%%20%s%%3D0', name), '%20') FROM pg_settings WHERE name IN
		('lock_timeout', 'statement_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`)
	patient := open(d.URL + separator(d.URL) + "options=" + unlimited)

	// Events.
	var mended atomic.Bool
	bad := func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == `b\a'd` && !mended.Load() {
			return errors.New(`b\a'd`)
		}
		return nil
	}
	w := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: `a\l'l`, before: bad}, &scopedLedger{ledger{name: "some", types: []string{`Or\d'er`}}}},
		append(quick(), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))...)
	runWorker(t, w)
	appendN(t, patient, `Or\d'er`, `b\a'd`, 1)
	appendN(t, patient, "Invoice", "1", 1)
	if err := beginAppend(t, patient, "Order", "void", 1).Rollback(); err != nil {
		t.Fatal(err)
	}
	appendN(t, patient, `Or\d'er`, "1", 2)

	// Jobs, a flow and a schedule.
	client, handlers := jobs.NewClient(patient), jobs.NewHandlers()
	jobs.RegisterTx(handlers, func(_ context.Context, _ *sql.Tx, j *jobs.Job[coreJob]) error {
		if j.Attempt == 1 {
			return errors.New(`f\a'il`)
		}
		return nil
	}, jobs.Retry(jobs.Fixed(0)))
	f := flows.New[int](`f\l'ow`)
	first := flows.Add[flows.None](f, "first", func(n int) coreJob { return coreJob{n} })
	flows.Add[flows.None](f, "then", func(n int) coreJob { return coreJob{n + 1} }, flows.After(first))
	runs := flows.NewClient(client)
	scheduler := schedule.New(db, jobs.NewClient(db), schedule.Job(`s\c'hed`, schedule.Every(time.Second), func(time.Time) jobs.Args { return coreJob{} }))
	jw := jobs.NewWorker(db, handlers, flows.Advance(), jobs.WithQueue(`q\u'eue`, 2), jobs.WithQueue("default", 2), jobs.WithPollInterval(50*time.Millisecond))
	running, ended := context.WithCancelCause(t.Context()) // none of them has ended with an error
	run := func(start func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() {
			err := start(ctx)
			if err != nil {
				ended(err)
			}
			done <- err
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
	run(jw.Start)
	run(scheduler.Start)
	var ids []int64
	for range 2 { // the second time there is one
		e, err := client.Enqueue(t.Context(), nil, coreJob{1}, jobs.Queue(`q\u'eue`), jobs.Once(`k\e'y`, 0))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("a key has jobs %v", ids)
	}
	started, err := f.Start(t.Context(), runs, nil, 1)
	if err != nil {
		t.Fatal(err)
	}

	// Rows.
	rows := table.NewStore(db, table.Options[int64]{TableName: "rows", ColumnExpressions: []string{"rows.id"}, Scan: func(r table.Row) (id int64, err error) { return id, r.Scan(&id) }})
	tw := table.NewWorker(rows, table.Handler[int64]{Handle: func(ctx context.Context, j *table.Job[int64]) error { return nil }}, table.WorkerOptions{Interval: 50 * time.Millisecond})
	run(tw.Start)
	d.Exec(t, `INSERT INTO rows DEFAULT VALUES`)

	awaitHandled(t, d.DB, `a\l'l`, 2, 4, 5)
	awaitHandled(t, d.DB, "some", 1, 4, 5)
	mended.Store(true)
	if err := operator(t, &pgtest.Database{DB: patient}).RetryDeadLetters(t.Context(), `a\l'l`, 1, by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, `a\l'l`, 2, 4, 5, 1)
	if r, err := runs.Wait(running, started.Run); err != nil || r.State != jobs.StateCompleted {
		t.Fatalf("the run is %+v, %v, %v", r, err, context.Cause(running))
	}
	await(t, "the job of a key", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM jobs_history WHERE id = $1 AND state = 'completed' AND attempt >= 2`, ids[0]) == 1
	})
	await(t, "two ticks", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM jobs_history WHERE queue = 'default' AND state = 'completed' AND attempt >= 2`) >= 2+2
	})
	await(t, "the row", func() bool { return one[string](t, d.DB, `SELECT state FROM rows`) == "completed" })
}
