package table_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs/table"
)

// Tables work with each driver and each of its query modes. Where possible, they also work behind a
// proxy that pools transactions.
func TestDrivers(t *testing.T) {
	t.Parallel()
	quick := []string{"direct pgx cache_statement", "direct lib/pq", "pgbouncer pgx simple_protocol"}
	run := func(name string, open pgtest.Opener, bounced bool) {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(quick, name) {
				tier.Long(t, "TestDrivers, over three of them")
			}
			t.Parallel()
			testDriver(t, open, bounced)
		})
	}
	for name, open := range pgtest.ThroughBouncer {
		run("direct "+name, open, false)
		run("pgbouncer "+name, open, true)
	}
	for name, open := range pgtest.BrokenByBouncer {
		run("direct "+name, open, false)
	}
}

func testDriver(t *testing.T, open pgtest.Opener, bounced bool) {
	s := newStage(t)
	at := s.d
	if bounced {
		at = s.d.Bounced(t, map[string]string{"default_pool_size": "8"})
	}
	db := open(t, at)
	db.SetMaxIdleConns(10)
	s.o.StalledMaxAge = time.Second
	store := table.NewStore(db, s.o)
	s.h.PreDequeue = func(context.Context) (bool, table.Condition, error) {
		return true, table.Condition{SQL: "j.repository_id < $2 OR j.repository_id > $1 + 100", Args: []any{5, 20}}, nil
	}
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		switch j.Record.Repository {
		case "repo 2":
			if j.NumFailures == 0 {
				return errors.New(`it's "odd" \ ü`)
			}
		case "repo 3":
			n, err := j.Log(ctx, map[string]string{"it's": `"odd" \ ü`})
			return errors.Join(err, j.UpdateLog(ctx, n, []int{n}))
		case "repo 4":
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := j.CompleteTx(ctx, tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		case "repo 5":
			<-ctx.Done()
			return ctx.Err()
		case "repo 6":
			s.note("requeued")
			return table.RequeueAfter(time.Hour)
		}
		return nil
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 6 FROM generate_series(0, 59) AS i`)
	lost := s.add(abandoned + `0, false`)
	hid := s.add(`(repository_id, queued_at) VALUES (500, now() - interval '1 hour')`) // so the row is hidden for long
	w := s.worker(db, func(o *table.WorkerOptions) { o.NumHandlers = 40 })
	stop := s.start(w)
	s.until("what runs until it is cancelled", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE repository_id = 5 AND state = 'processing'`) == "10"
	})
	s.d.Exec(t, `UPDATE example_jobs SET cancel = true WHERE repository_id = 5`)
	s.becomes(lost, table.StateCompleted)
	s.until("all to end", func() bool {
		ok, err := store.Exists(t.Context(), table.StateProcessing, table.StateErrored)
		if err != nil {
			t.Fatal(err)
		}
		n, err := store.CountByState(t.Context(), table.StateCompleted)
		if err != nil {
			t.Fatal(err)
		}
		return !ok && n == 41 && s.text(`SELECT count(*)::text FROM example_jobs WHERE process_after > now()`) == "11"
	})
	s.want("what was cancelled", "10", `SELECT count(*)::text FROM example_jobs WHERE repository_id = 5 AND state = 'canceled' AND num_failures = 0`)
	s.want("what failed once", "10", `SELECT count(*)::text FROM example_jobs WHERE repository_id = 2 AND num_failures = 1`)
	s.want("what was logged", "10", `SELECT count(*)::text FROM example_jobs WHERE repository_id = 3 AND execution_logs::text = '{[1]}'`)
	s.want("what was requeued", "10", `SELECT count(*)::text FROM example_jobs WHERE repository_id = 6 AND process_after > now()`)
	s.want("what is hidden", "queued", `SELECT state FROM example_jobs WHERE id = $1 AND process_after > now()`, hid)
	if d, err := store.MaxDurationInQueue(t.Context()); err != nil || d != 0 {
		t.Errorf("in queue for %v, %v", d, err)
	}
	if err := store.Requeue(t.Context(), lost, time.Now().Add(-time.Minute)); err != nil {
		t.Error(err)
	}
	s.until("it to run again", func() bool { return w.Status().Completed == 42 })
	s.until("no trouble", func() bool {
		st := w.Status()
		return st.ClaimError == nil && st.HeartbeatError == nil && st.SettleError == nil && st.ResetError == nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Start refuses a proxy that cannot work, and names the remedy.
func TestPgBouncerRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	bounced := s.d.Bounced(t, map[string]string{"default_pool_size": "6"})
	for name, open := range pgtest.BrokenByBouncer {
		err := s.worker(open(t, bounced), nil).Start(t.Context())
		if !errors.Is(err, table.ErrPreparedStatements) || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
			t.Errorf("%s: Start returned %v", name, err)
		}
	}
}

// Start refuses settings of the role whose formats pgx cannot read.
func TestStartRefusesFormatsThatTheDriverCannotRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(context.Context, *table.Job[example]) error { return nil }
	err := s.worker(s.d.InMode(pgx.QueryExecModeExec).OpenSet(t, "DateStyle", "SQL, DMY"), nil).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set DateStyle to ISO and bytea_output to hex") {
		t.Errorf("Start returned %v", err)
	}
}

// Settings of the role that change the names of types do not make a table unfit. A read-only
// session is refused.
func TestSettingsOfTheRole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(context.Context, *table.Job[example]) error { return nil }
	err := s.worker(s.d.OpenSet(t, "default_transaction_read_only", "on"), nil).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "RESET default_transaction_read_only") {
		t.Errorf("where nothing can be written Start returned %v", err)
	}
	s.start(s.worker(s.d.OpenSet(t, "quote_all_identifiers", "on"), nil))
	s.becomes(s.add(""), table.StateCompleted)
}
