package jobs

// State is the state of a job or of a step of a flow.
type State string

const (
	StateWaiting   State = "waiting"   // steps only: waits for other steps
	StateAvailable State = "available" // to run, now or when it is due
	StateRunning   State = "running"
	StateCompleted State = "completed"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateExpired   State = "expired" // it did not start by its GoodUntil
	StateSkipped   State = "skipped" // steps only
)

// Finished reports whether a job in this state has ended.
func (s State) Finished() bool {
	switch s {
	case StateCompleted, StateFailed, StateCancelled, StateExpired, StateSkipped:
		return true
	}
	return false
}
