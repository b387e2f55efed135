package jobs

import (
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// source returns the name of this worker in events.
func (w *Worker) source() observe.Worker { return observe.Worker{Kind: observe.KindJobs, ID: w.id} }

// about returns the subject of a condition of a queue, or of the worker if queue is empty.
func about(condition observe.Condition, queue string) runtime.Subject {
	return runtime.Subject{Condition: condition, Queue: queue}
}
