package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/workertest"
)

// Metrics counts the outcomes of jobs.
type Metrics struct{ completed, failed, again atomic.Int64 }

// Done counts an outcome and returns at once, since the worker waits for the observer.
func (m *Metrics) Done(d observe.JobDone) {
	switch jobs.State(d.State) {
	case jobs.StateCompleted:
		m.completed.Add(1)
	case jobs.StateFailed:
		m.failed.Add(1)
	case jobs.StateAvailable:
		m.again.Add(1)
	}
}

// An observer turns events into metrics and alarms, and a logger logs the same events.
func ExampleWithObserver() {
	ctx := context.Background()
	db, drop := database(``)
	defer drop()
	for _, name := range []string{"Ann", "Bob", ""} {
		_, err := jobs.NewClient(db).Enqueue(ctx, nil, Welcome{Name: name})
		check(err)
	}
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[Welcome]) error {
		if j.Args.Name == "" {
			return jobs.Fail(errors.New("nobody to greet"))
		}
		return nil
	})

	m := &Metrics{}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelError,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "took" || a.Key == slog.TimeKey { // differs between runs
				return slog.Attr{}
			}
			return a
		},
	}))
	// Drain runs a worker until all jobs are done. A program passes the options to NewWorker.
	_ = workertest.Drain(ctx, db, handlers, jobs.WithObserver(observe.On(m.Done)), jobs.WithLogger(logger))
	fmt.Println(m.completed.Load(), "completed,", m.failed.Load(), "failed")
	// Output:
	// level=ERROR msg="job failed" job=3 kind=welcome queue=default attempt=1 state=failed failures=1 error="nobody to greet"
	// 2 completed, 1 failed
}
