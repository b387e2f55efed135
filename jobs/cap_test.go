package jobs_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

var operator = ops.By{Operator: "somebody", Reason: "a test"}

// countRunning creates a trigger that counts the running jobs, in each transaction that changes the
// number.
func (s *stage) countRunning() {
	s.t.Helper()
	s.d.Exec(s.t, `CREATE TABLE most (n bigint)`)
	s.d.Exec(s.t, `
CREATE FUNCTION count_running() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO most SELECT count(*) FROM jobs WHERE state = 'running';
	RETURN NULL;
END $$`)
	s.d.Exec(s.t, `CREATE TRIGGER count_running AFTER UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION count_running()`)
}

// mostRunning returns the highest number of running jobs since countRunning.
func (s *stage) mostRunning() (n int) {
	s.t.Helper()
	if err := s.d.DB.QueryRow(`SELECT max(n) FROM most`).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A cap bounds how many jobs run at once, however many workers there are.
func TestCap(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.countRunning()
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetCap(t.Context(), "default", 5, operator); err != nil {
		t.Fatal(err)
	}
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	var entries []jobs.EnqueueParams
	for n := range tier.Amount(100, 300) {
		entries = append(entries, jobs.EnqueueParams{Args: task{n}})
	}
	all, err := s.EnqueueMany(t.Context(), nil, entries)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		s.run(jobs.WithQueue("default", 10), jobs.WithPrefetch(3))
	}
	for _, e := range all {
		s.ended(e.ID)
	}
	if most := s.mostRunning(); most != 5 {
		t.Errorf("%d jobs ran at once; the cap is 5", most)
	}
}

// The cap holds if the default isolation is stricter than read committed. Claims from several
// queues share only the row of the cap, so no conflict would stop them.
func TestCapOverAllQueuesUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			o, err := ops.NewJobs(s.d.DB)
			if err != nil {
				t.Fatal(err)
			}
			if err := o.SetCap(t.Context(), ops.AllQueues, 1, operator); err != nil {
				t.Fatal(err)
			}
			var over atomic.Int64
			jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
				var n int
				err := s.d.DB.QueryRowContext(ctx, `SELECT count(*) FROM jobs WHERE state = 'running'`).Scan(&n)
				if n > 1 {
					over.Add(1)
				}
				return err
			})
			var entries []jobs.EnqueueParams
			for n := range 100 {
				entries = append(entries, jobs.EnqueueParams{Args: task{n}, Options: []jobs.EnqueueOption{jobs.Queue(fmt.Sprint("q", n%4))}})
			}
			all, err := s.EnqueueMany(t.Context(), nil, entries)
			if err != nil {
				t.Fatal(err)
			}
			for q := range 4 {
				s.runOn(s.d.OpenSet(t, "default_transaction_isolation", level), jobs.WithQueue(fmt.Sprint("q", q), 5))
			}
			for _, e := range all {
				s.ended(e.ID)
			}
			if n := over.Load(); n > 0 {
				t.Errorf("%d jobs ran beside another; the cap is 1", n)
			}
		})
	}
}

// A cap applies to claims with a condition, and the status of the worker shows the cap.
func TestCapBindsConditions(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetCap(t.Context(), "default", 2, operator); err != nil {
		t.Fatal(err)
	}
	s.countRunning()
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	var entries []jobs.EnqueueParams
	for n := range 50 {
		entries = append(entries, jobs.EnqueueParams{Args: task{n}})
	}
	all, err := s.EnqueueMany(t.Context(), nil, entries)
	if err != nil {
		t.Fatal(err)
	}
	w := s.run(jobs.WithQueue("default", 40), jobs.WithHooks(jobs.Hooks{BeforeClaim: func(context.Context, string) jobs.ClaimFilter {
		return jobs.ClaimFilter{Condition: "(args->>'N')::int >= $1", Args: []any{0}}
	}}))
	for _, e := range all {
		s.ended(e.ID)
	}
	if most := s.mostRunning(); most != 2 {
		t.Errorf("%d jobs ran at once; the cap is 2", most)
	}
	if !w.Status().Queues[0].Capped {
		t.Error("the worker shows no cap")
	}
}

// No job of a paused queue runs, even without a cap. Settings of an operator apply to running
// workers.
func TestPauseAndCapApplyToRunningWorkers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var now, most atomic.Int64
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			continue
		}
		time.Sleep(time.Millisecond) // the work of the job
		now.Add(-1)
		return nil
	})
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	w := s.run(jobs.WithQueue("default", 10))
	s.ended(s.add(task{}))
	if err := o.PauseQueue(t.Context(), "default", operator); err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for n := range 50 {
		ids = append(ids, s.add(task{n}))
	}
	s.until("the worker to see that the queue is paused", func() bool { return w.Status().Queues[0].Paused })
	if i, err := s.Get(t.Context(), ids[0]); err != nil || i.State != jobs.StateAvailable {
		t.Errorf("a job of a paused queue is %s, %v", i.State, err)
	}
	if err := o.SetCap(t.Context(), "default", 1, operator); err != nil {
		t.Fatal(err)
	}
	most.Store(0)
	if err := o.ResumeQueue(t.Context(), "default", operator); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		s.ended(id)
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d jobs ran at once, the cap is 1", n)
	}
	s.until("the worker to see the cap", func() bool { return w.Status().Queues[0].Capped })
}

// The bound of a worker covers all its queues together. Jobs with a smaller priority number run
// first.
func TestConcurrencyAndOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("%d", j.Args.N)
		return nil
	})
	var ids []int64
	for _, n := range []int{9, 5, 1, 5, 9, 1} {
		ids = append(ids, s.add(task{n}, jobs.Priority(n)))
	}
	ids = append(ids, s.add(task{5}))
	s.run(jobs.WithQueue("default", 1))
	for _, id := range ids {
		s.ended(id)
	}
	if got := fmt.Sprint(s.notes()); got != "[1 1 5 5 5 9 9]" {
		t.Errorf("they ran in the order %s", got)
	}
	var now, most atomic.Int64
	other := newStage(t)
	jobs.Register(other.Handlers, func(context.Context, *jobs.Job[task]) error {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(time.Millisecond)
		now.Add(-1)
		return nil
	})
	ids = nil
	for n := range 40 {
		ids = append(ids, other.add(task{n}, jobs.Queue(fmt.Sprint("q", n%4))))
	}
	other.run(jobs.WithQueue("q0", 5), jobs.WithQueue("q1", 5), jobs.WithQueue("q2", 5), jobs.WithQueue("q3", 5), jobs.WithConcurrency(2))
	for _, id := range ids {
		other.ended(id)
	}
	if n := most.Load(); n > 2 {
		t.Errorf("%d jobs ran at once, allowed were 2", n)
	}
}

// A worker that stands still may hold the lock of a cap for a while. A worker that has waited for
// the lock claims below its floors soon. So jobs that become visible late are not overtaken for
// long.
func TestWaitForACapDelaysNoLowWalk(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetCap(t.Context(), "default", 5, operator); err != nil {
		t.Fatal(err)
	}
	s.run()
	s.ended(s.add(task{}))
	tx, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM jobs_queues WHERE name = 'default' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	waited := s.add(task{})
	pgtest.AwaitBlocked(t, s.d.DB)
	if _, err := tx.Exec(`SELECT pg_sleep(1.5)`); err != nil { // the owner of the lock is slow
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.ended(waited)
	late := s.add(task{}, jobs.At(time.Now().Add(-time.Minute)))
	for range 80 {
		s.ended(s.add(task{}, jobs.In(100*time.Millisecond)))
		if i, err := s.Get(t.Context(), late); err != nil || i.State.Finished() {
			return
		}
	}
	t.Error("80 jobs in turn overtook one that was visible late")
}

// Workers start at once, with a default isolation stricter than read committed. PostgreSQL aborts a
// statement that waits for another worker's, and the worker retries it.
func TestStartUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
			other, err := s.d.DB.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer other.Rollback()
			if _, err := other.Exec(`INSERT INTO jobs_token ("only", token, database) SELECT true, gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`); err != nil {
				t.Fatal(err)
			}
			id := s.add(task{1})
			s.runOn(s.d.OpenSet(t, "default_transaction_isolation", level))
			pgtest.AwaitBlocked(t, s.d.DB)
			if err := other.Commit(); err != nil {
				t.Fatal(err)
			}
			s.ended(id)
		})
	}
}

// PostgreSQL aborts a client's statement for a worker's, with a default isolation stricter than
// read committed. The client goes on waiting.
func TestWaitUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		s := newStage(t)
		jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[named]) error { return j.SetResult("done") })
		id := s.add(named{"a"})
		claims, err := s.d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claims.Exec(`UPDATE jobs SET meta = '{}' WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		client := jobs.NewClient(s.d.OpenSet(t, "default_transaction_isolation", level))
		waited := make(chan error, 1)
		go func() {
			_, err := jobs.Wait[string](t.Context(), client, id)
			waited <- err
		}()
		pgtest.AwaitBlocked(t, s.d.DB)
		if err := claims.Commit(); err != nil {
			t.Fatal(err)
		}
		s.run()
		if err := <-waited; err != nil {
			t.Errorf("%s: %v", level, err)
		}
	}
}
