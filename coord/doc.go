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
// on. A leader may have lost its leadership without knowing. So each write of
// assignments proves the leadership in the statement that writes: the lock is
// held by the very backend that executes it, or the lease, its row locked, has
// not expired.
//
// # Liveness
//
// Package liveness tells who is dead: by the age of heartbeats, and with
// advisory locks also by a worker's session lock that is free at two looks in a
// row. The leader gives the units of the dead to others.
//
// # Partitions
//
// A unit may be cut into partitions: package partition. Each worker's row says
// how many its code wishes for. The leader deals the partitions that are wanted:
// what an operator has fixed, or what all wish who have the code. It tells the
// owner of each unit their number; the owner replaces units. So the leader deals
// what the checkpoints show, and a worker never runs a unit that is not there.
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
// It notices within about a second who was killed. Joins, departures and
// rebalances are announced: package changes.
//
// The package is the worker's own; it promises no stable API.
package coord
