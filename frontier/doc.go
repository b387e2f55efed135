// Package frontier finds out how far an event log may be read. Positions come
// from a sequence, so they are ordered, but commits are not: a position that
// is missing now may belong to a transaction that is still running, or to one
// that rolled back. The package proves which, from the locks that
// transactions hold on the sequence, and publishes the result as one
// immutable Value.
//
// # Why it is so
//
// A transaction that draws from a sequence holds a RowExclusiveLock on it
// from before the draw until it ends (PostgreSQL, sequence.c,
// lock_and_open_sequence), prepared or not, and pg_locks shows the lock. At
// its commit it becomes visible before it releases its locks (xact.c). Hence
// three statements, each in a transaction of its own, in this order:
//
//  1. tail: the positions after safe; the highest is h. A run without gaps is
//     safe at once.
//  2. scan: who holds the lock? These holders and h are a fence. Scan until
//     they have ended.
//  3. look again, in a later snapshot: what is still missing up to h never
//     appears.
//
// Whoever drew a position up to h did so before h became visible, so it was
// among the holders or had ended, and who has ended is visible to later
// snapshots. Each change of the order loses events: with the scan first, a
// transaction can draw after it and h be seen before it ends; in one
// statement, the scan and the rows stem from different moments; in one
// transaction, pg_stat_activity is frozen.
//
// The last look is the reader's own: it takes the Value first and reads the
// rows afterwards. Crossing then says what the missing positions are.
//
// The package is the worker's own; it promises no stable API.
package frontier
