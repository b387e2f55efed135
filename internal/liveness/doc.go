// Package liveness keeps a row with heartbeats for each worker, and decides which workers are
// dead.
//
// A worker is dead when its last heartbeat is older than its HeartbeatTimeout. Each worker's
// row has its own timeout, because workers with both values run while a deployment changes it.
// Session locks detect a death sooner. A worker holds a session lock, and sends its heartbeats
// through the session that holds the lock. If the lock is free at two polls in a row, the
// session has ended.
//
// A free lock proves a death only if the server has not restarted since: after a restart all
// locks are free. So the last heartbeat must be of the current incarnation, see
// incarnation.WroteRow. This proof suffices to give a worker's work to others. To end work
// that the worker has begun, its next heartbeat must be overdue as well. A live worker may
// have lost only its connection.
//
// All times are compared by the database's clock. If this clock is set back, earlier
// heartbeats lie in the future. A worker that finds its own heartbeat in the future sends
// another at once. The leader counts another worker's heartbeat in the future as sent when the
// leader first reads it, see Watch.
//
// A heartbeat is part of a statement that the worker executes anyway. The package provides the
// SQL for this part and evaluates the answer.
//
// The package knows the tables of the workers and of the token, and advisory locks. It only
// writes the table of stopped workers. It must not know consumers, jobs, leadership or
// assignments.
package liveness
