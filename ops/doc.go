// Package ops has the operations of operators. An [Operator] works on consumers. It pauses,
// resumes, resets and retires a consumer, and replays one of its aggregates. It skips the event
// at which a consumer is stuck, and retries or discards its dead letters. It shows the
// consumers, the workers, the log, and the transactions that hold the log back. A [Jobs] works
// on jobs. It pauses and lists queues and schedules, and caps queues. It cancels, retries,
// discards and lists jobs, and acknowledges failed jobs. It cancels, retries and lists runs of
// flows. Both need only the database. Workers and other operators may run at the same time, on
// any host.
//
// A change is one short transaction. It first locks the row that it changes. A worker's batch
// locks the row of its consumer's checkpoint; the context bounds the wait. The change raises
// the row's revision, so that no batch commits with an older state. It adds a row to the table
// of operations: who, why, when by the database's clock, and what. Its COMMIT notifies the
// workers.
//
// Preview runs a change and rolls it back. IfRevision refuses a change if the consumer has
// changed since the operator decided.
//
// If an operation returns an error, nothing has changed, unless the error is an
// [UnknownOutcomeError].
package ops
