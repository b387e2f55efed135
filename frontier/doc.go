// Package frontier finds out how far an event log may be read. Positions come
// from a sequence, so they are ordered, but commits are not. A position that
// is missing now may belong to a transaction that is still running, or to one
// that rolled back. The package proves which, from the locks that
// transactions hold on the sequence, and publishes the result as one
// immutable [Value].
//
// # The proof
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
//  3. read again, in a later snapshot: what is still missing up to h never
//     appears.
//
// A transaction that drew a position up to h did so before h became visible.
// So it was among the holders or had ended, and what has ended is visible to
// later snapshots. Each change of the order loses events:
//
//   - With the scan first, a transaction can draw after the scan, and h can be
//     seen before that transaction ends.
//   - In one statement, the scan and the rows come from different moments.
//   - In one transaction, pg_stat_activity is frozen.
//
// The last read is the reader's own: it takes the Value first and reads the
// rows afterwards. [Value.Cross] then says what the missing positions mean.
//
// # Doubt
//
// A transaction that holds a fence open for long is stale. The fence then
// closes without it. The missing positions that it may own are published as
// doubts. Consumers pass a doubt, but remember it, until an event appears there
// or the possible owners have ended.
//
// A stale transaction at rest owns nothing new. It rests while its session is
// idle in it, and once it is prepared. A scan shows its rest, a statement after
// that reads the sequence's last value L, and a later scan shows the same rest.
// The transaction ran nothing in between. So of the positions drawn before the
// later scan, it owns none above L. Later gaps above L are not in doubt because
// of it.
//
// An idle session's rest is known by the moment at which it began. An aborted
// transaction rests in the same way: ROLLBACK TO SAVEPOINT lets it draw again, and
// is a change like any other statement. A prepared transaction's rest lasts until
// it ends. It may draw until just before it is prepared, so an L counts only if it
// was read after a scan that shows it prepared. Servers before 13.5 and 14.1 then
// give it another virtualtransaction. Under the new one it is a holder that may
// own what the holders that are gone owned.
//
// An L read before the scan, or kept when the transaction runs something or is
// prepared, loses events.
//
// # Incarnation
//
// Crash recovery, promotion and a restored backup can issue positions again.
// Every statement returns the incarnation of the server (package incarnation).
// When it changes, or the connection fails, everything in memory is forgotten. A
// Value carries the incarnation as its Token and counts in that incarnation only:
// a reader of rows under it proves that they come from the same. A frontier starts
// from a durable row of the log, settled, so that history is not fenced again.
//
// # The end of the log
//
// Consumers that have come to the end of the log ask for what comes next
// (Follow). The frontier then reads the rows too before it publishes how far
// they are safe, with the store's own statement, and Value.Since has them: one
// read for all, and a notification costs a round trip less. They are final,
// since no doubt lies among them and they were read after they were found safe.
// Whoever watches open ranges, or comes from further back, reads the table.
//
// The package is the worker's own; it promises no stable API.
package frontier
