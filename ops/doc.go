// Package ops has the operations of operators. An [Operator] works on consumers. It pauses,
// resumes, resets and retires a consumer, and replays one of its aggregates. It skips the event
// at which a consumer is stuck, and retries or discards its dead letters. It shows the
// consumers, the workers, the log, and the transactions that hold the log back. A [Jobs] works
// on jobs. It pauses, caps and lists queues, and pauses and lists schedules. It cancels,
// retries, discards and lists jobs, and acknowledges failed jobs. It cancels, retries and lists
// runs of flows. Both need only the database. Workers and other operators may run at the same
// time, on any host.
//
// A change is one short transaction. It first locks the row that it changes. The row of a
// consumer's checkpoint is locked while a worker runs a batch; the context bounds the wait. The
// change raises the revision of the row, so that no batch commits with an older state. The
// change adds a row to the table of operations: who, why, when by the database's clock, and
// what. The transaction notifies the workers when it commits.
//
// Preview runs a change and rolls it back. IfRevision refuses a change if the consumer has
// changed since the operator decided.
//
// If an operation returns an error, nothing has changed, unless the error is an
// [UnknownOutcomeError].
package ops
