package sim

import (
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// jobHandlerFaults are what handlers are told to do by the arguments of their jobs.
var jobHandlerFaults = []jobFaultRow{
	actRow(actError, "returns an error", oracle.FailingHandlers),
	actRow(actRetry, "returns an error and says when to try again", oracle.FailingHandlers, oracle.DelayingHandlers),
	actRow(actSnooze, "snoozes", oracle.SnoozingHandlers),
	actRow(actFail, "fails for good", oracle.TerminalHandlers),
	actRow(actDiscard, "discards its job", oracle.DiscardingHandlers),
	actRow(actPanic, "panics", oracle.FailingHandlers, oracle.PanickingHandlers),
	actRow(actGoexit, "ends its goroutine", oracle.FailingHandlers, oracle.PanickingHandlers),
	actRow(actLinger, "takes up to a second"),
	actRow(actHang, "waits for the end of its context", oracle.FailingHandlers, oracle.HangingHandlers),
	actRow(actUndo, "completes its job in a transaction, rolls that back and returns nil", oracle.FailingHandlers, oracle.UndoingHandlers),
}

// actRow is a fault of handlers. It is counted when a job is enqueued with it.
func actRow(act, does string, reaches ...oracle.Condition) jobFaultRow {
	return jobFaultRow{act: act, Row: fault.Row{
		Name: act, Does: "a handler " + does,
		Counts:  []history.Fault{history.Fault("jobs whose handler " + does)},
		Reaches: reaches,
	}}
}
