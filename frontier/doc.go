// Package frontier finds out how far an event log may be read. A missing position may belong to a
// running transaction, or to a transaction that rolled back. The package decides between the two
// from the locks that transactions hold on the sequence. It publishes the result as one immutable
// [Value]. The package is the worker's own; it promises no stable API.
//
// # The proof
//
// A transaction that draws from a sequence takes a RowExclusiveLock on it before the draw
// (PostgreSQL, sequence.c, lock_and_open_sequence). It holds the lock until it ends, prepared
// or not. pg_locks shows the lock. A commit makes the transaction visible before it releases
// the locks (xact.c). Hence three statements, each in a transaction of its own, in this order:
//
//  1. tail: read the positions after safe. The highest is h. A run without gaps is safe at
//     once.
//  2. scan: read who holds the lock. These holders and h form a fence. Scan until all holders
//     have ended.
//  3. read again, in a later snapshot: a position up to h that is still missing never appears.
//
// A transaction that drew a position up to h did so before h became visible. So it is among
// the holders, or it had ended before the scan. Later snapshots see all transactions that have
// ended. A change of the order loses events.
//
//   - With the scan first, a transaction can draw after the scan. Then h can be seen before
//     that transaction ends.
//   - In one statement, the scan and the rows come from different moments.
//   - In one transaction, pg_stat_activity is frozen.
//
// The third statement is the reader's own: the reader takes the Value first and reads the rows
// afterwards. [Value.Cross] then decides the missing positions.
//
// # Doubt
//
// The fence closes without a transaction that holds it open for longer than StaleAfter. The missing
// positions that such a stale transaction may own are published as doubts. Consumers pass a doubt,
// and watch it until an event appears there or all possible owners have ended.
//
// A stale transaction at rest owns nothing new. A transaction rests while its session is idle
// in it, and once it is prepared. A scan shows the rest. A later statement reads the
// sequence's last value L, and a later scan shows the same rest. Then the transaction ran
// nothing between the two scans. So it owns no position above L that was drawn before the
// second scan. Later gaps above L are not in doubt because of this transaction.
//
// The start of the rest identifies the rest of an idle session. An aborted transaction rests
// in the same way. ROLLBACK TO SAVEPOINT lets it draw again, and changes the state like any
// other statement. A prepared transaction rests until it ends. A transaction may draw until
// just before it is prepared. So an L counts only if it was read after a scan that shows the
// transaction prepared. Servers before 13.5 and 14.1 give a prepared transaction another
// virtualtransaction. It is then a new holder, which may own what the ended holders owned.
//
// An L that was read before the scan loses events. So does an L that is kept after the
// transaction runs a statement or is prepared.
//
// # Incarnation
//
// Crash recovery, promotion and a restored backup can issue positions again. Every statement
// returns the incarnation of the server (package incarnation). When the incarnation changes or
// the connection fails, the frontier forgets everything in memory. A Value carries its
// incarnation as Token and is valid in that incarnation only. A reader of rows under a Value
// proves that the rows come from the same incarnation. A frontier starts from a durable row of
// the log, the settled row. So history is not fenced again.
//
// # The end of the log
//
// After [Frontier.Follow], one read serves all consumers at the end of the log, and a notification
// costs one round trip less. The rows of [Value.Since] are final: no doubt lies among them, and they
// were read, with the store's own statement, after they were found safe. A consumer with open
// ranges, or further back, reads the table.
package frontier
