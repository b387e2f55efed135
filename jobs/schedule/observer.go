package schedule

import (
	"context"

	"github.com/pgfrontier/worker/observe"
)

// source returns the name of a Scheduler in events. A Scheduler has no row in a table.
func source() observe.Worker { return observe.Worker{Kind: observe.KindSchedule} }

// WithObserver adds observers of the Scheduler's events beside its logger, and returns the
// Scheduler. Call it before Start.
func (s *Scheduler) WithObserver(o ...observe.Observer) *Scheduler {
	s.observing = append(s.observing, o...)
	return s
}

// taskFailed reports err, unless err is nil or due to the end of ctx.
func (s *Scheduler) taskFailed(ctx context.Context, task string, err error) {
	if err != nil && ctx.Err() == nil {
		s.observers.Notify(observe.TaskFailed{Worker: source(), Task: task, Err: err})
	}
}
