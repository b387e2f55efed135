package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// What package jobs/flow needs of this one.
func init() {
	jobflow.Of = func(client any) jobflow.Client {
		c := client.(*Client)
		return jobflow.Client{DB: c.db, Tables: c.tables, Queue: c.queue, Ends: &c.ends, Err: c.err}
	}
	jobflow.Job = func(args, options any) (queue.NewJob, error) {
		return Entry{Args: args.(Args), Options: options.([]EnqueueOption)}.alone()
	}
	jobflow.Encode = encode
	jobflow.Beside = func(make func() jobflow.Companion) any {
		return option(func(c *config) { c.companions = append(c.companions, make()) })
	}
}

// alone is the job of an entry that has neither a key nor a time of its own: only the
// statement that enqueues it knows when that is.
func (e Entry) alone() (queue.NewJob, error) {
	s, err := e.spec()
	switch j := s.job; {
	case err != nil:
		return j, err
	case s.unique > 0 || s.once != nil:
		return j, fmt.Errorf("%w: a step of a flow has no Unique and no Once: give its run a key", ErrInvalid)
	case j.At != nil || j.GoodUntil != nil:
		return j, fmt.Errorf("%w: a step of a flow has no At and no GoodUntil, only In: nobody knows when it is enqueued", ErrInvalid)
	case s.meta != nil:
		return j, fmt.Errorf("%w: a step of a flow has no Meta: its run has it", ErrInvalid)
	}
	return s.job, nil
}

// companion is what companions know of a worker.
func (w *Worker) companion() jobflow.Worker {
	return jobflow.Worker{
		Tables: w.tables, Retention: w.cfg.retention, Limit: w.limit,
		On: w.on, Wake: w.lookForJobs, Failed: w.taskFailed,
		RunEnded: func(r jobflow.EndedRun) {
			w.observers.Notify(observe.FlowRunEnded{Run: r.Run, Flow: r.Flow, State: r.State, Took: time.Duration(r.Took) * time.Microsecond})
		},
	}
}

func (w *Worker) prepareCompanions(ctx context.Context, conn *sql.Conn) error {
	for _, c := range w.cfg.companions {
		if err := c.Prepare(ctx, conn, w.companion()); err != nil {
			return err
		}
	}
	return nil
}

// tellCompanions tells that a job has finished.
func (w *Worker) tellCompanions(state queue.State, meta json.RawMessage) {
	if len(meta) == 0 || !State(state).Finished() {
		return
	}
	for _, c := range w.cfg.companions {
		c.Ended(meta)
	}
}

// lookForJobs makes every queue look for new jobs.
func (w *Worker) lookForJobs() {
	for _, l := range w.loops {
		l.news.Store(true)
		l.nudge()
	}
}
