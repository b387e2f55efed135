package schedule

import (
	"context"

	"github.com/pgfrontier/worker/observe"
)

// source names a Scheduler in events. It has no row in a table.
func source() observe.Worker { return observe.Worker{Kind: observe.KindSchedule} }

// WithObserver adds observers of the ticks, before Start, and returns the Scheduler. The logger
// stays.
func (s *Scheduler) WithObserver(o ...observe.Observer) *Scheduler {
	s.observing = append(s.observing, o...)
	return s
}

// taskFailed reports err, unless it is nil or due to the end of ctx.
func (s *Scheduler) taskFailed(ctx context.Context, task string, err error) {
	if err != nil && ctx.Err() == nil {
		s.observers.Notify(observe.TaskFailed{Worker: source(), Task: task, Err: err})
	}
}
