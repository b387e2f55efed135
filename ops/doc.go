// Package ops has what operators do to consumers: pause and resume one, set it
// to another position, skip the event at which it is stuck, retry or discard
// its dead letters, retire it, and list how all consumers stand. It needs the
// database only. Workers may be running, anywhere, and so may other operators.
//
// A change is one short transaction. It first locks the consumer's checkpoint
// row: it waits for the batch that a worker may have in hand, which the
// context bounds. It raises the row's revision, so that no batch commits on
// what a worker has read before. It leaves a row in the table of operations:
// who, why, when by the database's clock, and what. The workers notice at
// once.
//
// If an operation returns an error, nothing has changed, unless it is an
// [UnknownOutcomeError].
package ops
