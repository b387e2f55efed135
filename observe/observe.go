// Package observe has what workers report: one struct for each kind of event. Logs, metrics and
// alarms read them. The workers of packages worker, jobs, jobs/table and jobs/schedule report
// nothing in another way.
//
// An [Observer] is a function. It selects the events that it needs by their types:
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

import (
	"log/slog"
)

// Event is something that a worker reports: one of the structs of this package. Later versions may
// add some.
type Event interface {
	level() slog.Level
	line() (message string, attrs []slog.Attr)
}

// Level returns the severity of an event. Error and Warn report what is wrong, Info reports
// changes, and Debug reports what happens all the time.
func Level(e Event) slog.Level { return e.level() }

// Observer is called with each event. The worker's own goroutines call it, several at a time.
// Return soon: the caller waits. Do not call Stop and wait.
//
// A panic, or runtime.Goexit (which FailNow of package testing calls), ends the call and not the
// worker. The first one for each type of event is reported as [HookPanicked].
type Observer func(Event)

// On returns an Observer that calls f with the events of type E, and ignores all others.
func On[E Event](f func(E)) Observer {
	return func(e Event) {
		if e, ok := e.(E); ok {
			f(e)
		}
	}
}

// Condition is a state in which something does not work, or waits. One event reports that it
// begins, and again for each further attempt; [Recovered] reports once that it has ended.
type Condition string

// Conditions, with the event that reports each.
const (
	ConditionFrontier     Condition = "frontier"     // FrontierFailed: no new events can be seen
	ConditionTransaction  Condition = "transaction"  // FrontierBlocked: a transaction stays open
	ConditionNotify       Condition = "notify"       // NotifyFailed
	ConditionCoordination Condition = "coordination" // CoordinationFailed
	ConditionUnowned      Condition = "unowned"      // ConsumerUnowned
	ConditionDatabase     Condition = "database"     // Retrying, TaskFailed, TableFailed: statements fail, or the database cannot be reached
	ConditionBatch        Condition = "batch"        // Retrying: a handler failed, or PostgreSQL ended its batch as the victim of a conflict
	ConditionKey          Condition = "key"          // Retrying: the partition key of a consumer panics
	ConditionPaused       Condition = "paused"       // ConsumerPaused; an operator's resume ends it
	ConditionOverdue      Condition = "overdue"      // HandlerOverdue; the handler's return ends it
	ConditionLock         Condition = "lock"         // ConsumerWaiting: for the lock of another transaction
	ConditionDoubts       Condition = "doubts"       // ConsumerWaiting: at WithMaxOpenRanges
	ConditionScope        Condition = "scope"        // ConsumerWaiting: for a worker whose build selects more
	ConditionStart        Condition = "start"        // ConsumerWaiting: to begin at the head of the log, for transactions that have drawn positions
	ConditionQueue        Condition = "queue"        // QueueFailed
	ConditionSettle       Condition = "settle"       // SettleFailed, TableFailed: the ends of jobs cannot be stored
	ConditionClaim        Condition = "claim"        // TableFailed: jobs cannot be claimed
	ConditionHeartbeat    Condition = "heartbeat"    // TableFailed: heartbeats of running jobs cannot be stored
	ConditionReset        Condition = "reset"        // TableFailed: jobs of lost workers cannot be reset
)

// SkipState is what is known of positions that a consumer has passed without an event.
type SkipState string

const (
	SkipVoid SkipState = "void" // proven never to appear
	SkipOpen SkipState = "open" // in doubt when they were passed; the worker watches them
	SkipLate SkipState = "late" // events appeared after the positions were passed, and were delivered
)
