package table

// State is the state of a job, as in the column state.
type State string

const (
	StateQueued     State = "queued"     // waits, until process_after if that is set
	StateProcessing State = "processing" // a worker runs it
	StateErrored    State = "errored"    // has failed, and is retried after RetryAfter
	StateFailed     State = "failed"     // has failed for good
	StateCompleted  State = "completed"  // its handler has returned nil
	StateCanceled   State = "canceled"   // cancel was set, and the job has not completed
)

// states are all states; the column must allow them.
var states = []State{StateQueued, StateProcessing, StateErrored, StateFailed, StateCompleted, StateCanceled}
