package table

import ()

// State is where a job is. The column state has it.
type State string

const (
	StateQueued     State = "queued"     // waits, until process_after if that is set
	StateProcessing State = "processing" // a worker runs it
	StateErrored    State = "errored"    // has failed, and is tried again RetryAfter later
	StateFailed     State = "failed"     // has failed for good
	StateCompleted  State = "completed"  // its handler has returned nil
	StateCanceled   State = "canceled"   // somebody set cancel, and it has not completed
)

// states are all, as the column must allow them.
var states = []State{StateQueued, StateProcessing, StateErrored, StateFailed, StateCompleted, StateCanceled}
