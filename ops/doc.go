// Package ops has what operators do. An [Operator] works on consumers: it pauses
// and resumes one, sets it to another position, skips the event at which it is
// stuck, retries or discards its dead letters, lets it handle one aggregate again,
// retires it, and shows how all consumers, the workers and the log stand, and who holds
// the log back. A [Jobs] works on jobs: it pauses, caps and lists queues, pauses and
// lists schedules, cancels, retries, discards and lists jobs, acknowledges those that
// failed, and cancels, retries and lists runs of flows. Both need the database only.
// Workers may be running, anywhere, and so may other operators.
//
// A change is one short transaction. It first locks the row of what it changes.
// That of a consumer's checkpoint it gets when the batch has ended that a worker
// may have in hand: the context bounds the wait. It raises that row's revision, so
// that no batch commits on what a worker has read before. It leaves a row in the
// table of operations: who, why, when by the database's clock, and what. The
// workers notice at once.
//
// Preview runs a change and rolls it back, and IfRevision refuses one that was decided on
// an old view.
//
// If an operation returns an error, nothing has changed, unless it is an
// [UnknownOutcomeError].
package ops
