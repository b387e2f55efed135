package history

// Fault is something that a run does to its writers and workers, as it is
// counted and printed.
type Fault string

// The faults that the oracle knows, and those that both packages sim and chaos count. All others
// are in the tables of these packages.
const (
	Killed        Fault = "worker processes killed"
	LeadersKilled Fault = "worker processes killed that led"
	Stopped       Fault = "worker processes stopped past their time-outs, and continued"
	Crashes       Fault = "worker crashes, in a batch"
	CommitCrashes Fault = "worker crashes, at its commit"
	IdleCrashes   Fault = "worker crashes, between batches"
	Cuts          Fault = "live workers cut off, recovered"
	Stalls        Fault = "live workers stalled"
	Swallowed     Fault = "connections of live workers that died in silence"
	Breaches      Fault = "handlers that ended their transaction"
	ServerCrashes Fault = "server crashes"
	// BackendCrashes end all backends, and the server recovers.
	BackendCrashes Fault = "server crashes after the death of a backend"
)

// Count is how often a fault happened.
type Count struct {
	Fault Fault `json:"fault"`
	Count int64 `json:"count"`
}

// Where a fault is injected into a worker, as an Injection says it.
const (
	AfterGuard      = "before anything was handled"
	InBatch         = "in the middle of a batch"
	BeforeStatement = "before a statement was sent"
	AfterStatement  = "after a statement, its answer lost"
	BeforeCommit    = "before the COMMIT was sent"
	AfterCommit     = "after the COMMIT, its answer lost"
)

// Where a fault is injected into a worker of jobs, beside its COMMIT.
const (
	InRun       = "while a handler runs"
	BeforeClaim = "before a claim was sent"
	AfterClaim  = "after a claim, its answer lost"
	BeforeEnd   = "before the end of a run was sent"
	AfterEnd    = "after the end of a run, the answer lost"
	BeforeTick  = "before a schedule was moved on"
	AfterTick   = "after a schedule was moved on, before the COMMIT"
	BeforeTell  = "before the end of a flow's step was told"
	AfterTell   = "after the end of a flow's step was told, the answer lost"
)
