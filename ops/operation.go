package ops

import (
	"encoding/json"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// By names the operator of a change and the reason. Both are required.
type By struct {
	Operator string // a person, or a program; at most 200 bytes
	Reason   string // at most 2,000 bytes
}

const (
	maxOperator = 200 // bytes
	maxReason   = 2_000
)

func (b By) check() error {
	return errtext.Join(checkText("By.Operator", b.Operator, maxOperator), checkText("By.Reason", b.Reason, maxReason))
}

// Kind is the kind of an operation.
type Kind string

const (
	KindPause   Kind = "pause"
	KindResume  Kind = "resume"
	KindReset   Kind = "reset"
	KindSkip    Kind = "skip"
	KindRetry   Kind = "retry"   // dead letters
	KindDiscard Kind = "discard" // a dead letter
	KindReplay  Kind = "replay"  // an aggregate
	KindRetire  Kind = "retire"
	KindRename  Kind = "rename"
	KindBegin   Kind = "begin"
	KindShadow  Kind = "shadow"
	KindSwitch  Kind = "switch"
	// A worker records KindScope when its build selects other types than the build before.
	// KindReplayTypes delivers the events that were passed without the types.
	KindScope       Kind = "scope"
	KindReplayTypes Kind = "replay types"
	// KindPartition fixes the number of partitions. A worker records KindSplit and KindMerge
	// when it has replaced units of a consumer.
	KindPartition Kind = "partition"
	KindSplit     Kind = "split"
	KindMerge     Kind = "merge"
	KindRaise     Kind = "raise"     // a sequence that was below its table's ids
	KindTerminate Kind = "terminate" // a session that held the consumers back
	KindDrain     Kind = "drain"     // a worker
	KindRepair    Kind = "repair"    // by a worker, which set back a checkpoint that a handler had committed
)

// These are operations on jobs and queues. KindPause and KindResume also apply to a queue or a
// schedule, and KindRetire to a schedule. KindRetry and KindDiscard also apply to a job.
// KindCancel and KindRetry also apply to runs of flows: their detail has the run.
const (
	KindCap       Kind = "cap"
	KindRetention Kind = "retention"
	KindCancel    Kind = "cancel"
	KindRerun     Kind = "rerun" // a retry that ignores the refusals
	// KindAcknowledge: an operator has seen the failed jobs of a queue.
	KindAcknowledge Kind = "acknowledge"
)

// Operation is a recorded operation on a consumer, or on jobs.
type Operation struct {
	ID       int64  // grows over all consumers, and over all jobs
	Consumer string // or a unit of it; empty: of none, as of KindTerminate and KindDrain
	Job      int64  // 0: not on one job
	Queue    string // empty: not on one queue
	Kind     Kind
	Detail   json.RawMessage // an object, whose fields depend on Kind
	By       By
	At       time.Time // by the database's clock
}

// OperationFilter selects operations. The zero OperationFilter selects all operations.
type OperationFilter struct {
	Consumer string // for an Operator: operations on the consumer and its units; empty: all
	Job      int64  // for a Jobs: operations on the job, and the retry that created it; 0: all
	Queue    string // for a Jobs: AllQueues is operations on AllQueues only; empty: all
	Before   int64  // only those with a lower ID; 0: all. For the next page, the last ID of this page
}

// Pause is the time from which a consumer is paused, the operator and the reason.
type Pause struct {
	Since time.Time
	By    By
}

// pauseInto returns the destinations of the columns paused_at, paused_by and paused_reason. The
// pause is nil if the first is NULL.
func pauseInto(p **Pause) []any {
	var pause Pause
	paused := func(column any) error {
		err := pgdriver.UTC(&pause.Since).Scan(column)
		if column != nil {
			*p = &pause
		}
		return err
	}
	return []any{pgdriver.Destination(paused), pgdriver.OrZero(&pause.By.Operator), pgdriver.OrZero(&pause.By.Reason)}
}
