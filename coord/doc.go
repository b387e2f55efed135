// Package coord decides which worker runs which unit, with PostgreSQL as the only coordinator.
// An assignment decides which worker tries a unit, and how soon. It does not ensure that a
// unit's work is done once. Two workers may briefly believe that they own the same unit.
//
// A worker has a row with its heartbeat and the units that its code has. One worker leads
// and deals the units. The others read their assignments. All times are compared by the
// database's clock.
//
// # Leadership
//
// The leadership is a session advisory lock, or a lease where sessions are unreliable. A
// leader may have lost its leadership without knowing. So a write of assignments proves the
// leadership in the statement that writes. With a lock, the backend that executes the
// statement holds it. With a lease, the statement locks its row, and the lease has not
// expired.
//
// # Liveness
//
// Package liveness decides which workers are dead, by heartbeats and session locks. The leader gives
// the units of dead workers to others.
//
// # Partitions
//
// A unit may be split into partitions (package partition). A worker's row says how many
// partitions its code demands. The leader deals the partitions that are wanted: the number
// that an operator has fixed, or the number that all workers with the code demand. The leader
// writes the number into the assignment of the unit. The owner of the unit then splits or
// merges it. So the leader deals only units with checkpoints, and a worker runs no other
// unit.
//
// # Connections
//
// A worker keeps one connection of the pool for all statements of its coordination, with
// both strategies. So heartbeats wait for no other work. After any error the worker discards
// the connection and takes another. A dead connection, or a connection to a standby, is
// therefore not used again.
//
// # Cost
//
// With default settings, an idle worker executes 1.2 short statements a second, a leader with
// a lease 1.4. The statements use an index or a table with one row per worker. The heartbeat
// is part of one of these statements. The leader detects a killed worker within about a
// second. Package changes announces joins, leaves and rebalances.
//
// The package is the worker's own; it promises no stable API.
package coord
