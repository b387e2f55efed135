package table

import (
	"encoding/json"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State       observe.State
	NumHandlers int
	Running     int // slots taken by handlers, and by jobs whose outcome is being stored
	// Overdue counts the handlers that were given up, since they ignore the end of their contexts.
	// Their slots are lost until they return. OverdueSince is when the first of them got its slot,
	// by this process's clock. It is the zero time if there are none. Running names the jobs.
	Overdue      int
	OverdueSince time.Time
	Unsettled    int   // runs that have ended and whose outcome is not stored yet
	Claimed      int64 // since the start
	Completed    int64 // since the start
	Failed       int64 // runs that have failed, since the start
	Lost         int64 // runs whose job another worker got, since the start
	Reset        int64 // jobs of other workers that were reset, since the start
	// LastHeartbeat is when heartbeats of the jobs in flight were last written, by this process's
	// clock. It is the zero time before the first heartbeat.
	LastHeartbeat time.Time
	// An error is nil while its statements work. While the table refuses to change only some rows,
	// the error names these rows.
	ClaimError     error // why jobs cannot be claimed at the moment
	HeartbeatError error // why heartbeats are not written
	SettleError    error // why outcomes of jobs are not stored
	ResetError     error // why jobs of lost workers are not reset
	LoopError      error // which loop hangs: only a new process helps, see Worker.Live
	// Refused counts the rows that the table refuses to change while it changes others. The errors
	// above name them. A row of Settle counts for a minute or two, or until a later settle succeeds.
	Refused struct{ Claim, Heartbeat, Settle, Reset int }
	// LastSuccess is when statements last succeeded, by this process's clock, or the zero time. No
	// statement claims while all slots are taken, and none settles while no job ends.
	LastSuccess struct{ Claim, Heartbeat, Settle, Reset time.Time }
}

// MarshalJSON writes the fields by name, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		ClaimError     string `json:",omitempty"`
		HeartbeatError string `json:",omitempty"`
		SettleError    string `json:",omitempty"`
		ResetError     string `json:",omitempty"`
		LoopError      string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.ClaimError), errtext.Storable(s.HeartbeatError), errtext.Storable(s.SettleError), errtext.Storable(s.ResetError), errtext.Storable(s.LoopError)})
}

// RunningJob is a job that holds a slot of this worker: its PreHandle or its handler runs.
type RunningJob struct {
	Header
	Since   time.Time // when the job got its slot, by this process's clock
	Overdue bool      // the handler ignores the end of its context and was given up
}
