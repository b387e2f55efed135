// Package queue keeps the durable side of jobs: how they are enqueued, claimed,
// started, settled, cancelled, taken from a dead worker and expired. It has all of
// that in SQL, every statement an autocommit one of its own, READ COMMITTED, that
// may be repeated.
//
// A claim is a random number, drawn for each claim statement. Id and claim are the
// fence: a statement that settles a job must name the claim under which it runs. A number
// that counts up would not do: after a crash that takes commits back, or a
// promotion, it is issued again, even to the same worker. The table ties a claim to
// the state "running", so what ends a run ends the claim.
//
// It knows tables, states and claims. It must never know what a handler does, when
// a job is tried again, how many a worker wants, or who is dead: its callers
// decide, and hand it numbers, delays and an SQL condition.
package queue
