package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// named is a task with a name.
type named struct{ Name string }

func (named) Kind() string { return "named" }

// gate returns a channel that let closes. The end of the test closes it too.
func gate(t *testing.T) (release chan struct{}, let func()) {
	release = make(chan struct{})
	let = sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	return release, let
}

// locker cancels a job in a transaction that stays open, and so keeps the row locked.
func (s *stage) locker(id int64) *sql.Tx {
	s.t.Helper()
	tx, err := s.d.DB.Begin()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback() })
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if was, err := s.Cancel(ctx, tx, id); err != nil || was != jobs.StateRunning {
		s.t.Fatalf("cancelling job %d: it was %q, %v", id, was, err)
	}
	return tx
}

// The rows of some finished runs are locked. Their outcomes wait, and the outcomes of other jobs do
// not. A capped queue proceeds too. The lock is reported, and the outcomes are stored in the end.
func TestLockedRowDelaysNoOtherJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release, let := gate(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		<-release
		return nil
	})
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[other]) error {
		<-release
		return nil
	})
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[named]) error {
		if strings.HasPrefix(j.Args.Name, "wrong") {
			return jobs.Fail(errors.New("wrong"))
		}
		return j.SetResult(j.Args.Name)
	})
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetCap(t.Context(), "default", 5, operator); err != nil {
		t.Fatal(err)
	}
	ended, inTx := s.add(task{}), s.add(other{})
	reported := make(chan error, 100)
	w := s.run(jobs.WithObserver(observe.On(func(f observe.StatementFailed) {
		if f.Condition == observe.ConditionSettle {
			reported <- f.Err
		}
	})))
	s.until("both to run", func() bool { return w.Status().Queues[0].Running == 2 })
	tx, txInTx := s.locker(ended), s.locker(inTx)
	let()
	for range 20 {
		if i := s.ended(s.add(named{Name: "wrong"})); i.State != jobs.StateFailed {
			t.Fatalf("a wrong job is %s", i.State)
		}
		if i := s.ended(s.add(named{Name: "right"})); i.State != jobs.StateCompleted || string(i.Result) != `"right"` {
			t.Fatalf("a right job is %s, %s", i.State, i.Result)
		}
		if i := s.ended(s.add(task{})); i.State != jobs.StateCompleted {
			t.Fatalf("another job is %s", i.State)
		}
	}
	select {
	case err := <-reported:
		if !strings.Contains(err.Error(), "locked the job's row") {
			t.Errorf("reported: %v", err)
		}
	case <-time.After(patience):
		t.Error("no observer was notified of a row that is locked for long")
	}
	if st := w.Status(); st.Unsettled == 0 || st.SettleError == nil {
		t.Errorf("the status shows %d unsettled, %v", st.Unsettled, st.SettleError)
	}
	if err := errors.Join(tx.Commit(), txInTx.Commit()); err != nil {
		t.Fatal(err)
	}
	// The handlers had returned nil before the cancel took effect.
	for _, id := range []int64{ended, inTx} {
		if i := s.ended(id); i.Resets != 0 || i.Failures != 0 || i.State != jobs.StateCompleted && i.State != jobs.StateCancelled {
			t.Errorf("job %d is %s, %d resets, %d failures", id, i.State, i.Resets, i.Failures)
		}
	}
	s.until("all to be well again", func() bool { st := w.Status(); return st.SettleError == nil && st.Unsettled == 0 })
}

// A handler's transaction waits for the locked row of its job. If the row stays locked, the
// transaction is rolled back. The job runs again, without a failure.
func TestLockedRowOfATransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (attempt int)`)
	release, let := gate(t)
	jobs.RegisterTx(s.Handlers, func(_ context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
		if _, err := tx.Exec(`INSERT INTO effects VALUES ($1)`, j.Attempt); err != nil {
			return err
		}
		<-release
		return nil
	})
	id := s.add(task{})
	w := s.run()
	s.until("it to run", func() bool { return w.Status().Queues[0].Running == 1 })
	tx, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM jobs WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	let()
	s.until("its slot to be free", func() bool { return w.Status().Queues[0].Running == 0 })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt != 2 || i.Failures != 0 || i.Resets != 0 {
		t.Errorf("the job is %s in attempt %d, %d failures, %d resets", i.State, i.Attempt, i.Failures, i.Resets)
	}
	var attempts string
	if err := s.d.DB.QueryRow(`SELECT string_agg(attempt::text, ' ') FROM effects`).Scan(&attempts); err != nil || attempts != "2" {
		t.Errorf("effects of attempts %s, %v", attempts, err)
	}
}

// A batch in one transaction is rolled back too. Its other jobs run again without the job whose row
// is locked.
func TestLockedRowOfABatch(t *testing.T) {
	t.Parallel() // waits for as long as a completion does
	s := newStage(t)
	release, let := gate(t)
	jobs.RegisterBatchTx(s.Handlers, func(context.Context, *sql.Tx, []*jobs.Job[task]) error {
		<-release
		return nil
	})
	ids := []int64{s.add(task{0}), s.add(task{1}), s.add(task{2})}
	w := s.run()
	s.until("all to run", func() bool { return w.Status().Queues[0].Running == 3 })
	tx := s.locker(ids[1])
	let()
	for _, id := range []int64{ids[0], ids[2]} {
		if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt != 2 || i.Failures != 0 || i.Resets != 0 {
			t.Errorf("job %d is %s in attempt %d, %d failures, %d resets", id, i.State, i.Attempt, i.Failures, i.Resets)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if i := s.ended(ids[1]); i.State != jobs.StateCompleted || i.Failures != 0 || i.Resets != 0 {
		t.Errorf("the job that was locked is %s, %d failures, %d resets", i.State, i.Failures, i.Resets)
	}
}

// A prefetched job whose row is locked does not start; the others do.
func TestLockedRowOfAPrefetchedJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release, let := gate(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		if j.Args.N == 0 {
			<-release
		}
		return nil
	})
	first, locked, free := s.add(task{0}), s.add(task{1}), s.add(task{2})
	w := s.run(jobs.WithQueue("default", 1), jobs.WithPrefetch(2))
	s.until("two to be prefetched", func() bool { return w.Status().Queues[0].Prefetched == 2 })
	tx := s.locker(locked)
	let()
	s.ended(first)
	s.ended(free)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if i := s.ended(locked); i.State != jobs.StateCompleted || i.Failures != 0 || i.Resets != 0 {
		t.Errorf("the job is %s, %d failures, %d resets", i.State, i.Failures, i.Resets)
	}
}

// A stop does not wait for ever for a locked row, and names the jobs that it left.
func TestStopWithALockedRow(t *testing.T) {
	t.Parallel() // waits for as long as a stop does
	s := newStage(t)
	release, let := gate(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		<-release
		return nil
	})
	id := s.add(task{})
	w := jobs.NewWorker(s.d.DB, s.Handlers, quick()...)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(t.Context()) }()
	s.until("it to run", func() bool { return w.Status().Queues[0].Running == 1 })
	s.locker(id)
	let()
	w.Stop()
	select {
	case err := <-ended:
		if !errors.Is(err, jobs.ErrUnsettled) || !strings.Contains(err.Error(), "locked the job's row") {
			t.Errorf("Start returned %v", err)
		}
	case <-time.After(patience):
		t.Error("Start does not return")
	}
}
