package console

import "github.com/pgfrontier/worker/ops"

// Level is what an operator may see and change. Each level includes the lower levels.
type Level int

const (
	None     Level = iota // nothing
	Read                  // all but payloads. Texts of errors are shown, and may hold values of users
	Payloads              // payloads and metadata of events, arguments and results of jobs, queries of blockers, rows that differ
	Operate               // changes
)

// Grant names an operator, and what the operator may see and change.
type Grant struct {
	Operator string // is recorded with changes; at most 200 bytes. Without one nothing is changed
	Level    Level
	// Allow narrows Operate: it reports whether a change may be made. nil: all may be.
	Allow func(Action) bool
}

// What an [Action] is on.
const (
	OnConsumer  = "consumer"
	OnJob       = "job"
	OnQueue     = "queue"
	OnSchedule  = "schedule"
	OnFlow      = "flow"
	OnWorker    = "worker"     // of consumers
	OnJobWorker = "job worker" // of jobs
)

// Action is a change that an operator requests.
type Action struct {
	On   string // OnConsumer, OnJob, OnQueue, OnSchedule, OnFlow, OnWorker or OnJobWorker
	Kind ops.Kind
	Name string // of the consumer, the queue or the schedule; empty for the form of a new consumer; the ID of the worker; of a job, that of its queue; of a run, that of its flow. ops.AllQueues: of all queues, also of jobs by a filter that names none
}

func (g Grant) allows(a Action) bool {
	return g.Level >= Operate && g.Operator != "" && (g.Allow == nil || g.Allow(a))
}
