// Package coord decides which worker runs which unit, with PostgreSQL as the
// only coordinator. It decides who tries, and how soon; that a unit's work is
// done once is not its affair, so two workers may believe for a moment that
// the same unit is theirs.
//
// Every worker has a row with its heartbeat and the units it has code for. One
// of them leads and deals the units out; the others read what they were given.
// All times are compared by the database's clock.
//
// # Leadership
//
// It is a session advisory lock, or a lease where sessions cannot be relied
// on. Whoever leads may not know yet that it does so no more; therefore each
// write of assignments proves the leadership in the statement that writes: the
// lock is held by the very backend that executes it, or the lease, its row
// locked, has not expired.
//
// # Liveness
//
// A worker is dead when its last heartbeat is older than HeartbeatTimeout.
// With advisory locks there is a faster sign. A worker holds a lock of its own
// and sends its heartbeats through the session that holds it; when the lock is
// free at two looks in a row, the session has ended. That means death only if
// the server lives that gave the lock: after a restart all locks are free. So
// the last heartbeat must be younger than the server's start and, as a crash
// does not change that, younger than the token that every crash and promotion
// removes, in the order of transaction ids. That is enough to give the units to
// others. To end a batch, its worker's next heartbeat must be overdue as well: a
// worker that lives may have lost no more than its connection.
//
// # Connections
//
// Each worker keeps one connection of the pool for all statements of its
// coordination, with both strategies: heartbeats wait for nobody. After any
// error it is closed and another one taken, so that a dead connection, or one
// that leads to a standby, is not met again.
//
// # Cost
//
// An idle worker of default settings, the leader too, executes 1.2 short
// statements a second, with a lease the leader 1.4; each on an index or on
// tables as small as the number of workers. A heartbeat is part of one of them.
// It notices within about a second who was killed. Who comes or leaves says so, and so does the leader when it has dealt
// units out: package changes.
//
// The package is the worker's own; it promises no stable API.
package coord
