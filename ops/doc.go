// Package ops has the operations of operators. An [Operator] works on consumers, their dead
// letters and the log. A [Jobs] works on jobs, queues, schedules and runs of flows. Both need only
// the database. Workers and other operators may run at the same time, on any host.
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
