// Package queue has the statements about jobs: enqueue, claim, start, settle, cancel, reset and
// expire. Every statement is an autocommit statement of its own, READ COMMITTED, and safe to
// repeat.
//
// A claim is a random number, drawn for each claim statement. Id and claim are the fence: a
// statement that settles a job must name the claim of its run. After a promotion or a crash
// that loses commits, a counter would issue the same number again, even to the same worker. The
// table ties a claim to the state "running", so the end of a run also ends the claim.
//
// The package knows tables, states and claims. It must never know what a handler does or when a
// job is retried. Nor may it know how many jobs a worker wants or which workers are dead. Its
// callers pass numbers, delays and an SQL condition.
package queue
