// Package observe defines the events that workers report: one struct per kind of
// event. Logs, metrics and alarms read them. The workers of packages worker, jobs,
// jobs/table and jobs/schedule report in no other way.
//
// An [Observer] is a function. It selects its events by their types:
//
//	worker.WithObserver(func(e observe.Event) {
//		switch e := e.(type) {
//		case observe.BatchDone:
//			events.Add(e.Consumer, e.Events)
//		case observe.ConsumerPaused:
//			page("consumer paused", e.Consumer, e.Reason)
//		}
//	})
//
// [On] makes an Observer of a function that takes one type.
package observe

import "log/slog"

// Event is one of the structs of this package. Later versions may add some.
type Event interface {
	level() slog.Level
	line() (message string, attrs []slog.Attr)
}

// Level returns the severity of an event. Error and Warn report failures, Info reports
// changes, and Debug reports routine work.
func Level(e Event) slog.Level { return e.level() }

// Observer is called with each event. The worker's own goroutines call it, several at a
// time. An Observer must return soon, because the caller waits. It must not call Stop and
// wait for the end.
//
// A panic, or runtime.Goexit (which FailNow of package testing calls), ends the call but
// not the worker. The first one for each type of event is reported as [HookPanicked].
type Observer func(Event)

// On returns an Observer that calls f with the events of type E, and ignores all others.
func On[E Event](f func(E)) Observer {
	return func(e Event) {
		if e, ok := e.(E); ok {
			f(e)
		}
	}
}

// Condition is a state in which something fails or waits. An event reports its begin, and
// each further attempt. [Recovered] reports its end once.
type Condition string

// Conditions, with the events that report them.
const (
	ConditionFrontier     Condition = "frontier"     // FrontierFailed: no new events can be read
	ConditionTransaction  Condition = "transaction"  // FrontierBlocked: a transaction stays open
	ConditionNotify       Condition = "notify"       // NotifyFailed
	ConditionCoordination Condition = "coordination" // CoordinationFailed
	ConditionUnowned      Condition = "unowned"      // ConsumerUnowned
	ConditionDatabase     Condition = "database"     // Retrying, TaskFailed, StatementFailed: statements fail, or the database cannot be reached
	ConditionBatch        Condition = "batch"        // Retrying: a handler failed, or PostgreSQL aborted its batch (a deadlock, a serialization failure)
	ConditionKey          Condition = "key"          // Retrying: the partition key of a consumer panics
	ConditionPaused       Condition = "paused"       // ConsumerPaused; an operator's resume ends it
	ConditionOverdue      Condition = "overdue"      // HandlerOverdue; the handler's return ends it
	ConditionLock         Condition = "lock"         // ConsumerWaiting: for the lock of another transaction
	ConditionDoubts       Condition = "doubts"       // ConsumerWaiting: at WithMaxOpenRanges
	ConditionScope        Condition = "scope"        // ConsumerWaiting: for a worker whose build selects more
	ConditionStart        Condition = "start"        // ConsumerWaiting: to begin at the head of the log, for transactions that have drawn positions
	ConditionQueue        Condition = "queue"        // StatementFailed: the jobs of a queue cannot be claimed or counted
	ConditionSettle       Condition = "settle"       // StatementFailed: the outcomes of jobs cannot be stored
	ConditionClaim        Condition = "claim"        // StatementFailed: jobs cannot be claimed
	ConditionHeartbeat    Condition = "heartbeat"    // StatementFailed: heartbeats of running jobs cannot be stored
	ConditionReset        Condition = "reset"        // StatementFailed: jobs of dead workers cannot be reset
)

// SkipState is the state of positions that a consumer has passed without an event.
type SkipState string

const (
	SkipVoid SkipState = "void" // proven to stay empty
	SkipOpen SkipState = "open" // in doubt when the consumer passed them; the worker watches them
	SkipLate SkipState = "late" // events appeared after the consumer had passed the positions, and were delivered
)
