package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/workertest"
)

type charge struct{ Cents int }

func (charge) Kind() string { return "charge" }

// newCharges creates a database with an empty table of charges and without tables of jobs.
func newCharges(t *testing.T) *pgtest.Database {
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE charges (cents INT)`)
	return d
}

func charged(q jobs.Querier) (cents int) {
	if err := q.QueryRowContext(context.Background(), `SELECT coalesce(sum(cents), 0) FROM charges`).Scan(&cents); err != nil {
		return -1
	}
	return cents
}

func insertCharge(ctx context.Context, tx jobs.Querier, cents int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO charges VALUES ($1::int)`, cents)
	return err
}

// inspect sees the writes of a handler's transaction, which is rolled back.
func TestHandleJob(t *testing.T) {
	t.Parallel()
	d := newCharges(t)
	h := jobs.NewHandlers()
	jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[charge]) error {
		if j.ID == 0 || j.Attempt != 1 || j.Failures != 0 || j.Queue != "default" || j.Priority != 5 || j.MaxAttempts != 15 || j.RunAt.IsZero() {
			return fmt.Errorf("given %+v", j.Header)
		}
		if err := j.Log(ctx, "charging"); err != nil {
			return err
		}
		if err := j.SetResult(map[string]int{"charged": j.Args.Cents}); err != nil {
			return err
		}
		return insertCharge(ctx, tx, j.Args.Cents)
	})
	out, err := workertest.HandleJob(t.Context(), d.DB, h, charge{500}, func(tx *sql.Tx) error {
		if n := charged(tx); n != 500 {
			return fmt.Errorf("%d cents", n)
		}
		return nil
	})
	if err != nil || out.State != jobs.StateCompleted || string(out.Result) != `{"charged":500}` || len(out.Logs) != 1 || string(out.Logs[0]) != `"charging"` {
		t.Errorf("%+v, %v", out, err)
	}
	if n := charged(d.DB); n != 0 {
		t.Errorf("it leaves %d cents behind", n)
	}
	if out, err := workertest.HandleJob(t.Context(), d.DB, h, charge{1}, func(*sql.Tx) error { return errBoom }); !errors.Is(err, errBoom) || out.State != jobs.StateCompleted {
		t.Errorf("what look says: %+v, %v", out, err)
	}
}

// The handler's error decides the outcome of the job, as in a worker.
func TestHandleJobOutcomes(t *testing.T) {
	t.Parallel()
	d := newCharges(t)
	for name, c := range map[string]struct {
		handle func(ctx context.Context, tx *sql.Tx, j *jobs.Job[charge]) error
		given  workertest.GivenJob
		want   string // state, code, whether the run counts, and the delay in seconds
		is     error
		says   string
	}{
		"error":            {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return errBoom }, want: "available  true 20", is: errBoom},
		"last":             {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return errBoom }, given: workertest.GivenJob{Failures: 2}, want: "failed  true 0", is: errBoom},
		"last as enqueued": {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return errBoom }, given: workertest.GivenJob{Options: []jobs.EnqueueOption{jobs.MaxAttempts(1)}}, want: "failed  true 0", is: errBoom},
		"fail":             {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return jobs.Fail(errBoom) }, want: "failed  true 0", is: errBoom},
		"later":            {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return jobs.RetryAfter(time.Minute, errBoom) }, want: "available  true 60", is: errBoom},
		"snooze":           {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return jobs.Snooze(time.Hour) }, want: "available  false 3600", says: "snoozed"},
		"discard":          {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return jobs.Discard(errBoom) }, want: "cancelled  false 0", is: errBoom},
		"panic":            {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { panic("no") }, want: "available PANIC true 20", says: "panicked"},
		"terminal":         {handle: func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return declined{} }, want: "failed DECLINED true 0", is: declined{}},
		"timeout": {handle: func(ctx context.Context, _ *sql.Tx, _ *jobs.Job[charge]) error { <-ctx.Done(); return ctx.Err() }, want: "available TIMEOUT true 20",
			is: jobs.ErrTimeout},
		"commit": {handle: func(_ context.Context, tx *sql.Tx, _ *jobs.Job[charge]) error { return tx.Commit() }, want: "failed TX_ENDED true 0", is: jobs.ErrTxEnded},
		"commit in SQL": {handle: func(ctx context.Context, tx *sql.Tx, _ *jobs.Job[charge]) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		}, want: "failed TX_ENDED true 0", is: jobs.ErrTxEnded},
		"swallowed": {handle: func(ctx context.Context, tx *sql.Tx, _ *jobs.Job[charge]) error {
			_, _ = tx.ExecContext(ctx, `SELECT 1/0`)
			return nil
		}, want: "available  true 20", says: "aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
				h := jobs.NewHandlers()
				limit := time.Minute
				if errors.Is(c.is, jobs.ErrTimeout) {
					limit = 100 * time.Millisecond
				}
				jobs.RegisterTx(h, c.handle, jobs.MaxAttempts(3), jobs.Timeout(limit), jobs.Terminal("DECLINED"),
					jobs.Retry(func(int, error) time.Duration { return 20 * time.Second }))
				c.given.Args = charge{1}
				all, err := workertest.HandleJobs(t.Context(), db, h, []workertest.GivenJob{c.given}, func(*sql.Tx) error {
					t.Error("there is nothing to look at")
					return nil
				})
				if len(all) != 1 || err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("%s: %+v, %v", driver, all, err)
				}
				if o := all[0]; fmt.Sprintf("%s %s %t %.0f", o.State, o.Code, o.Counted, o.Again.Seconds()) != c.want {
					t.Errorf("%s: %+v, want %s", driver, o, c.want)
				}
			}
		})
	}
}

type declined struct{}

func (declined) Error() string { return "the card was declined" }
func (declined) Code() string  { return "DECLINED" }

// A handler without a transaction needs no database unless inspect is set.
func TestHandleJobWithoutTx(t *testing.T) {
	t.Parallel()
	d := newCharges(t)
	h := jobs.NewHandlers()
	jobs.Register(h, func(ctx context.Context, j *jobs.Job[charge]) error {
		if j.Args.Cents == 0 {
			return nil
		}
		tx, err := d.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := insertCharge(ctx, tx, j.Args.Cents); err != nil {
			return err
		}
		if err := j.CompleteTx(ctx, tx); err != nil || j.Args.Cents == 13 {
			return err
		}
		if err := tx.Commit(); err != nil || j.Args.Cents == 8 {
			return errors.Join(errBoom, err)
		}
		return nil
	})
	if out, err := workertest.HandleJob(t.Context(), nil, h, charge{}, nil); err != nil || out.State != jobs.StateCompleted {
		t.Errorf("without a database: %+v, %v", out, err)
	}
	if _, err := workertest.HandleJob(t.Context(), d.DB, h, charge{7}, func(tx *sql.Tx) error {
		if n := charged(tx); n != 7 {
			return fmt.Errorf("%d cents", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if out, err := workertest.HandleJob(t.Context(), d.DB, h, charge{8}, nil); err != nil || out.State != jobs.StateCompleted {
		t.Errorf("completed and committed, and then an error: %+v, %v", out, err)
	}
	if out, err := workertest.HandleJob(t.Context(), d.DB, h, charge{13}, nil); err == nil || out.State != jobs.StateAvailable || !strings.Contains(err.Error(), "has not committed") {
		t.Errorf("completed and rolled back: %+v, %v", out, err)
	}
	if _, err := workertest.HandleJob(t.Context(), nil, h, charge{7}, nil); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("nobody knows whether it was committed: %v", err)
	}
}

// A batch is one call, and Settle gives one job its own outcome.
func TestHandleJobs(t *testing.T) {
	t.Parallel()
	d := newCharges(t)
	h := jobs.NewHandlers()
	jobs.RegisterBatchTx(h, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[charge]) error {
		for _, j := range all {
			switch {
			case j.Args.Cents < 0:
				j.Settle(jobs.Fail(errBoom))
			case j.Args.Cents == 0:
				return errBoom
			default:
				if err := insertCharge(ctx, tx, j.Args.Cents); err != nil {
					return err
				}
			}
		}
		return nil
	}, jobs.BatchSize(3))
	given := func(cents ...int) (all []workertest.GivenJob) {
		for _, n := range cents {
			all = append(all, workertest.GivenJob{Args: charge{n}})
		}
		return all
	}
	all, err := workertest.HandleJobs(t.Context(), d.DB, h, given(1, -1, 2), func(tx *sql.Tx) error {
		if n := charged(tx); n != 3 {
			return fmt.Errorf("%d cents", n)
		}
		return nil
	})
	if !errors.Is(err, errBoom) || len(all) != 3 || all[0].State != jobs.StateCompleted || all[1].State != jobs.StateFailed || all[2].State != jobs.StateCompleted {
		t.Errorf("%+v, %v", all, err)
	}
	all, err = workertest.HandleJobs(t.Context(), d.DB, h, given(1, 0), nil)
	if !errors.Is(err, errBoom) || len(all) != 2 || all[0].State != jobs.StateAvailable || all[1].State != jobs.StateAvailable {
		t.Errorf("the whole batch: %+v, %v", all, err)
	}
	if all, err := workertest.HandleJobs(t.Context(), d.DB, h, given(1, 2, 3, 4), nil); err == nil || len(all) > 0 || !strings.Contains(err.Error(), "takes 3 jobs at once, it is given 4") {
		t.Errorf("too many: %v, %v", all, err)
	}
}

// HandleJob refuses invalid arguments before it calls a handler.
func TestHandleJobRefuses(t *testing.T) {
	t.Parallel()
	d := newCharges(t)
	h := jobs.NewHandlers()
	for says, err := range map[string]error{
		"the handlers are nil": func() error { _, err := workertest.HandleJob(t.Context(), d.DB, nil, charge{}, nil); return err }(),
		`kind "charge" has no handler`: func() error {
			_, err := workertest.HandleJob(t.Context(), d.DB, h, charge{}, nil)
			return err
		}(),
		"the arguments are nil": func() error { _, err := workertest.HandleJob(t.Context(), d.DB, h, nil, nil); return err }(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "workertest: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %s", err, says)
		}
	}
	jobs.RegisterTx(h, func(context.Context, *sql.Tx, *jobs.Job[charge]) error { return nil })
	if _, err := workertest.HandleJob(t.Context(), nil, h, charge{}, nil); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("without a database: %v", err)
	}
}
