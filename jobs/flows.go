package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// init gives package jobs/flow access to this package.
func init() {
	jobflow.Of = func(client any) jobflow.Client {
		c := client.(*Client)
		return jobflow.Client{DB: c.db, Names: c.names, Tables: c.tables, Queue: c.queue, Ends: &c.ends, Err: c.err}
	}
	jobflow.Job = func(args, options any) (queue.NewJob, error) {
		return EnqueueParams{Args: args.(Args), Options: options.([]EnqueueOption)}.stepJob()
	}
	jobflow.Encode = encode
	jobflow.ExtensionOption = func(make func() jobflow.Extension) any {
		return option(func(c *config) { c.extensions = append(c.extensions, make()) })
	}
}

// stepJob returns the job of a step of a flow. The job has no key and no time of its own. Its time
// of enqueueing is known only to the statement that enqueues it.
func (e EnqueueParams) stepJob() (queue.NewJob, error) {
	s, err := e.spec()
	switch j := s.job; {
	case err != nil:
		return j, err
	case s.unique > 0 || s.once != nil:
		return j, fmt.Errorf("%w: a step of a flow has no Unique and no Once: give its run a key", ErrInvalid)
	case j.At != nil || j.GoodUntil != nil:
		return j, fmt.Errorf("%w: a step of a flow has no At and no GoodUntil, only In: its time of enqueueing is not known in advance", ErrInvalid)
	case s.meta != nil:
		return j, fmt.Errorf("%w: a step of a flow has no Meta: its run has it", ErrInvalid)
	}
	return s.job, nil
}

// extensionWorker returns the view of the worker that extensions get.
func (w *Worker) extensionWorker() jobflow.Worker {
	return jobflow.Worker{
		Tables: w.tables, Retention: w.cfg.retention, Limit: w.limit,
		On: w.on, Wake: func() { w.loops.each((*servedQueue).poll) }, Failed: w.taskFailed,
		RunEnded: func(r jobflow.EndedRun) {
			w.observers.Notify(observe.FlowRunEnded{Run: r.Run, Flow: r.Flow, State: r.State, Took: time.Duration(r.Took) * time.Microsecond})
		},
	}
}

func (w *Worker) prepareExtensions(ctx context.Context, conn *sql.Conn) error {
	for _, c := range w.cfg.extensions {
		if err := c.Prepare(ctx, conn, w.extensionWorker()); err != nil {
			return err
		}
	}
	return nil
}
