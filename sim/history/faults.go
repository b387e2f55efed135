package history

// Fault is something that a run does to its writers and workers, as it is
// counted and printed.
type Fault string

// The faults, in the order in which they are printed.
const (
	Commits        Fault = "transactions committed"
	Rollbacks      Fault = "appends rolled back"
	Delays         Fault = "commits delayed"
	LateDraws      Fault = "commits delayed, with a draw in between"
	Idlers         Fault = "draws after idling in a transaction"
	Savepoints     Fault = "savepoints rolled back"
	Several        Fault = "transactions over several aggregates"
	StaleVersions  Fault = "appends to a stale version"
	Conflicts      Fault = "other conflicts and lock time-outs"
	Prepared       Fault = "transactions prepared"
	PreparedUndone Fault = "prepared transactions rolled back"
	LostCommits    Fault = "writers' commits with no answer"

	BrokenOff Fault = "transactions that the server broke off"

	Killed        Fault = "worker processes killed"
	Stopped       Fault = "worker processes stopped past their time-outs, and continued"
	Crashes       Fault = "worker crashes, in a batch"
	CommitCrashes Fault = "worker crashes, at its commit"
	IdleCrashes   Fault = "worker crashes, between batches"
	Vanished      Fault = "of these with connections left half open"
	Cuts          Fault = "live workers cut off, recovered"
	Slowed        Fault = "live workers far from the server for a while"
	Stalls        Fault = "live workers stalled"
	Swallowed     Fault = "connections of live workers that died in silence"
	Restarts      Fault = "workers stopped and started"
	SlowStarts    Fault = "workers too slow to start, replaced"
	Flaps         Fault = "consumers moved away in a batch"

	EndedBatches   Fault = "backends ended, of a batch"
	EndedLocks     Fault = "backends ended, with a worker's or the leader's lock"
	EndedScanners  Fault = "backends ended, of a frontier"
	EndedListeners Fault = "backends ended, of a listener"
	LostLetters    Fault = "notifications lost"
	LateLetters    Fault = "notifications delayed"
	Unregistered   Fault = "registrations deleted"
	Unassigned     Fault = "assignments deleted"
	Deposed        Fault = "leaders stalled while an assignment waited"
	Deafened       Fault = "workers whose consumers were moved away unheard"
	HandlerErrors  Fault = "handlers that failed"
	HandlerPanics  Fault = "handlers that panicked"
	PickyHandlers  Fault = "handlers that failed at an event which did not come first"
	Pauses         Fault = "consumers paused for a moment by an operator"
	ServerCrashes  Fault = "server crashes"
	BackendCrashes Fault = "server crashes after the death of a backend"
	Saved          Fault = "servers stopped for a cold copy"
	Restored       Fault = "servers set back to a cold copy"
	Lagging        Fault = "connections that led to a lagging standby"
	Splits         Fault = "connections that led to a second primary"
	Breaches       Fault = "handlers that ended their transaction"
	AsyncCommits   Fault = "transactions committed asynchronously"
	AsyncWorkers   Fault = "workers that commit asynchronously"

	SetBack       Fault = "consumers set back by an operator"
	SetForward    Fault = "consumers set forward by an operator"
	SkippedEvents Fault = "events skipped by an operator"
)

// EveryFault is all that the simulation counts, in this order.
var EveryFault = []Fault{Commits, Rollbacks, Delays, LateDraws, Idlers, Savepoints, Several, StaleVersions, Conflicts,
	Prepared, PreparedUndone, LostCommits, BrokenOff, Crashes, CommitCrashes, IdleCrashes, Vanished, Cuts, Slowed, Stalls, Swallowed, Restarts, SlowStarts, Flaps,
	EndedBatches, EndedLocks, EndedScanners, EndedListeners, LostLetters, LateLetters, Unregistered, Unassigned, Deposed, Deafened, HandlerErrors, HandlerPanics, PickyHandlers, Pauses,
	Breaches, ServerCrashes, BackendCrashes, Saved, Restored, Lagging, Splits, AsyncCommits, AsyncWorkers, SetBack, SetForward, SkippedEvents}

// Count is how often a fault happened.
type Count struct {
	Fault Fault `json:"fault"`
	Count int64 `json:"count"`
}

// Where a fault strikes a worker, as an Injection says it.
const (
	AfterGuard      = "before anything was handled"
	InBatch         = "in the middle of a batch"
	BeforeStatement = "before a statement was sent"
	AfterStatement  = "after a statement, its answer lost"
	BeforeCommit    = "before the COMMIT was sent"
	AfterCommit     = "after the COMMIT, its answer lost"
)
