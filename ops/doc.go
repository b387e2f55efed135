// Package ops holds what operators do to consumers: pause and resume one, set
// it to another position, skip the event that it is stuck at, look after dead
// letters, retire one, and see how all of it stands. It needs the database
// only; workers may be running, anywhere, and so may other operators.
//
// A change is one short transaction. It first locks the consumer's checkpoint
// row, and thereby waits for the batch that a worker may have in hand, which
// the context bounds; it raises the row's revision, so that what a worker has
// read before counts no more; and it leaves a row in the table of operations:
// who, why, when by the database's clock, and what. The workers notice at
// once. If an operation returns an error, nothing has changed, unless it is an
// *UnknownOutcomeError.
package ops
