package ops

import (
	"context"

	"github.com/pgfrontier/worker/store/consumer"
)

// The refusals, which tests tell apart within a class.
var (
	ErrNoCheckpoint = errNoCheckpoint
	ErrNoBlocker    = errNoBlocker
	ErrNoWorker     = errNoWorker
	ErrNoJob        = errNoJob
	ErrNoFlowRun    = errNoFlowRun
	ErrNoEvents     = errNoEvents
	ErrNoEvent      = errNoEvent
	ErrNoSchedule   = errNoSchedule
	ErrPaused       = errPaused
	ErrNotPaused    = errNotPaused
	ErrAtPosition   = errAtPosition
	ErrDraining     = errDraining
)

// ListSQL returns the statement of List, to test its plan.
func (o *Jobs) ListSQL(f JobFilter, limit int) (query string, args []any) { return o.listSQL(f, limit) }

// OperationsSQL returns the statement of Operations.
func (o *Jobs) OperationsSQL(f OperationFilter, limit int) (query string, args []any) {
	return o.operationsSQL(f, limit)
}

// WorkersSQL returns the statement of Workers.
func (o *Jobs) WorkersSQL() string { return o.sql.workers }

// QueuesSQL returns the statement of Queues.
func (o *Jobs) QueuesSQL() string { return o.sql.queues }

// ReadsSQL returns the statements of an Operator's reads by name, to test their plans. The
// second element has the parameters for EXECUTE.
func (o *Operator) ReadsSQL() map[string][2]string {
	filter := DeadLetterFilter{EventType: "none"}
	deadLetters, _ := o.deadLettersSQL("c", filter, true, 10)
	all, _ := o.deadLettersSQL("c", DeadLetterFilter{}, true, 10)
	matching, _ := o.matchingSQL("c", DeadLetterFilter{}, 10)
	operations, _ := o.operationsSQL(OperationFilter{Before: 1}, 1)
	operationsOf, _ := o.operationsSQL(OperationFilter{Consumer: "c", Before: 1}, 1)
	return map[string][2]string{
		"operations":          {operations, `(9223372036854775807, 10)`},
		"operations of one":   {operationsOf, `(9223372036854775807, 10, 'c')`},
		"log":                 {o.logSQL(), ``},
		"workers":             {o.sql.workers, ``},
		"consumers":           {o.sql.consumers, ``},
		"gaps":                {o.gapsSQL(false), `('c', 9223372036854775807, 10)`},
		"gaps, a later page":  {o.gapsSQL(false), `('c', 9000, 10)`},
		"open gaps":           {o.gapsSQL(true), `('c', 9223372036854775807, 10)`},
		"next":                {o.sql.next, `('c')`},
		"letters":             {all, `('c', 10)`},
		"letters of a filter": {deadLetters, `('c', 10, 'Happened')`},
		"matching letters":    {matching, `('c', 10)`},
	}
}

// RetryManySQL returns the statement of RetryDeadLettersWhere.
func (o *Operator) RetryManySQL() string { return o.sql.retryMany }

// DiscardManySQL returns the statement of DiscardDeadLettersWhere.
func (o *Operator) DiscardManySQL() string { return o.sql.discardMany }

// UntilReady is untilReady, without a limit of its own.
func UntilReady(ctx context.Context, try func() error) error { return untilReady(ctx, 0, try) }

// Hold repeats a try within the hold of a shadow, which is the longer the more holds were before.
func Hold(ctx context.Context, before int, try func() error) error {
	return untilReady(ctx, holdOf(before), try)
}

// NotYet is the error of a try that may succeed a moment later.
func NotYet(err error) error { return &notYet{err: err} }

// RebuildTime computes the estimate of VerifySample.
var RebuildTime = rebuildTime

// AddToSample adds the result for one aggregate.
func AddToSample(s *Sample, found Verified) { s.add(found) }

// EventsInScope counts the events of the estimate.
func (o *Operator) EventsInScope(ctx context.Context, of consumer.Consumer) (int64, error) {
	return o.eventsInScope(ctx, of)
}
