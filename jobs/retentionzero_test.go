package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// unkept is a stage whose queue "default" has retention 0. It records which jobs the history gets,
// since the leader removes their rows at once.
func unkept(t *testing.T) *stage {
	t.Helper()
	s := newStage(t)
	s.retain("default", 0)
	s.d.Exec(t, `CREATE TABLE recorded (id bigint)`)
	s.d.Exec(t, `CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO recorded VALUES (NEW.id); RETURN NEW; END$$`)
	s.d.Exec(t, `CREATE TRIGGER record AFTER INSERT ON jobs_history FOR EACH ROW EXECUTE FUNCTION record()`)
	return s
}

func (s *stage) retain(queue string, d time.Duration) {
	s.t.Helper()
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := o.SetRetention(s.t.Context(), queue, d, operator); err != nil {
		s.t.Fatal(err)
	}
}

// noteEnds is an option that notes how the worker says that each job has ended.
func (s *stage) noteEnds() jobs.Option {
	return jobs.WithObserver(observe.On(func(d observe.JobDone) { s.note("%d %s", d.ID, d.State) }),
		observe.On(func(l observe.JobLost) { s.note("%d lost", l.ID) }))
}

// recorded reports whether the history has got a job.
func (s *stage) recorded(id int64) (is bool) {
	s.t.Helper()
	if err := s.d.DB.QueryRow(`SELECT EXISTS (SELECT FROM recorded WHERE id = $1)`, id).Scan(&is); err != nil {
		s.t.Fatal(err)
	}
	return is
}

// A job of a queue of retention 0 that completes gets no row in the history, unless something reads
// the row or goes with it.
func TestRetentionZeroWritesNoHistory(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *stage, *jobs.Job[task]) error { return nil }
	for name, test := range map[string]struct {
		handle   func(context.Context, *stage, *jobs.Job[task]) error
		state    jobs.State
		recorded bool
	}{
		"completed": {nothing, jobs.StateCompleted, false},
		"failed":    {func(context.Context, *stage, *jobs.Job[task]) error { return jobs.Fail(errRefused) }, jobs.StateFailed, true},
		"retried": {func(_ context.Context, _ *stage, j *jobs.Job[task]) error {
			if j.Attempt == 1 {
				return jobs.RetryAfter(0, errRefused)
			}
			return nil
		}, jobs.StateCompleted, true},
		"with a result": {func(_ context.Context, _ *stage, j *jobs.Job[task]) error { return j.SetResult(7) }, jobs.StateCompleted, true},
		"with a log":    {func(ctx context.Context, _ *stage, j *jobs.Job[task]) error { return j.Log(ctx, "entry") }, jobs.StateCompleted, true},
		"awaited": {func(ctx context.Context, s *stage, j *jobs.Job[task]) error {
			_, err := s.d.DB.ExecContext(ctx, `UPDATE jobs SET awaited = true WHERE id = $1`, j.ID)
			return err
		}, jobs.StateCompleted, true},
		"by CompleteTx": {func(ctx context.Context, s *stage, j *jobs.Job[task]) error {
			tx, err := s.d.DB.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := j.CompleteTx(ctx, tx); err != nil {
				return err
			}
			return tx.Commit()
		}, jobs.StateCompleted, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := unkept(t)
			jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error { return test.handle(ctx, s, j) })
			one, others := s.add(task{}), []int64{s.add(task{}), s.add(task{})} // statements for one job and for several
			s.run(s.noteEnds())
			for _, id := range append(others, one) {
				s.until("the end of the job", func() bool { return s.noted("%d %s", id, test.state) == 1 })
				if got := s.recorded(id); got != test.recorded {
					t.Errorf("the history got job %d: %t, want %t", id, got, test.recorded)
				}
			}
			s.until("all rows to be removed", func() bool {
				var left int
				err := s.d.DB.QueryRow(`SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM jobs_history) + (SELECT count(*) FROM jobs_attempts) + (SELECT count(*) FROM jobs_logs)`).Scan(&left)
				return err == nil && left == 0
			})
		})
	}
}

// The retention of a queue comes before the retention of all queues.
func TestRetentionZeroOfAllQueues(t *testing.T) {
	t.Parallel()
	s := unkept(t)
	s.retain(ops.AllQueues, 0)
	s.retain("kept", time.Hour)
	s.d.Exec(t, `INSERT INTO jobs_queues (name, max_running) VALUES ('capped', 5)`)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	want := map[string]bool{"default": false, "kept": true, "capped": false, "plain": false}
	ids, opts := map[string]int64{}, []jobs.Option{s.noteEnds()}
	for queue := range want {
		ids[queue] = s.add(task{}, jobs.Queue(queue))
		opts = append(opts, jobs.WithQueue(queue, 1))
	}
	s.run(opts...)
	for queue, id := range ids {
		s.until("the end of the job", func() bool { return s.noted("%d completed", id) == 1 })
		if got := s.recorded(id); got != want[queue] {
			t.Errorf("the history got the job of queue %s: %t, want %t", queue, got, want[queue])
		}
	}
}

// Keys hold without the history: a key of Once for ever, a unique key until the job has ended.
func TestKeysWithRetentionZero(t *testing.T) {
	t.Parallel()
	s := unkept(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	once, unique := s.add(task{1}, jobs.Once("k", 0)), s.add(task{2}, jobs.Unique("u"))
	s.run(s.noteEnds())
	for _, id := range []int64{once, unique} {
		s.until("the end of the job", func() bool { return s.noted("%d completed", id) == 1 })
	}
	if e, err := s.Enqueue(t.Context(), nil, task{1}, jobs.Once("k", 0)); err != nil || !e.Existing || e.ID != once {
		t.Errorf("Once again: %+v, %v", e, err)
	}
	if _, err := s.Enqueue(t.Context(), nil, task{3}, jobs.Once("k", 0)); !errors.Is(err, jobs.ErrKeyReused) {
		t.Errorf("Once with other arguments: %v", err)
	}
	if e, err := s.Enqueue(t.Context(), nil, task{2}, jobs.Unique("u")); err != nil || e.Existing {
		t.Errorf("Unique after the end: %+v, %v", e, err)
	}
	if s.recorded(once) || s.recorded(unique) {
		t.Error("the history got the jobs")
	}
	if _, err := s.Get(t.Context(), once); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
}

// The answer to a completion is lost. The worker repeats the statement, finds no trace of the jobs,
// and reports them as completed.
func TestLostAnswerWithRetentionZero(t *testing.T) {
	t.Parallel()
	s := unkept(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	db, hole := s.openHole(t)
	var ids []int64
	for n := range 5 {
		ids = append(ids, s.add(task{n}))
	}
	hole.SwallowAnswer("'completed' FROM gone")
	s.runOn(db, s.noteEnds())
	for _, id := range ids {
		s.until("the end of the job", func() bool { return s.noted("%d completed", id) == 1 })
	}
	if hole.Fallen() == 0 || len(s.notes()) != len(ids) {
		t.Errorf("%d connections have died, and the worker says %q", hole.Fallen(), s.notes())
	}
}

// The commit of a handler's transaction gets no answer. Afterwards no table has the job, and the
// worker reports it as completed.
func TestLostCommitWithRetentionZero(t *testing.T) {
	t.Parallel()
	s := unkept(t)
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[task]) error { return nil })
	db, hole := s.openHole(t)
	id := s.add(task{})
	hole.SwallowAnswer("commit\x00")
	s.runOn(db, s.noteEnds())
	s.until("the end of the job", func() bool { return len(s.notes()) > 0 })
	if got := s.notes(); len(got) != 1 || got[0] != fmt.Sprint(id, " completed") || s.recorded(id) || hole.Fallen() == 0 {
		t.Errorf("%d connections have died, and the worker says %q", hole.Fallen(), got)
	}
}
