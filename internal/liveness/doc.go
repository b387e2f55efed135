// Package liveness keeps a row for each worker in a table, with heartbeats, and
// tells who is dead.
//
// A worker is dead when its last heartbeat is older than HeartbeatTimeout. Each worker's
// row has its own time-out: while a deployment changes it, workers with both run. With
// session locks there is a faster sign. A worker holds a lock of its own and
// sends its heartbeats through the session that holds it. When the lock is free
// at two looks in a row, the session has ended.
//
// A free lock proves death only if the server has not restarted since: after a
// restart all locks are free. So the last heartbeat must be of the present
// incarnation, see incarnation.WroteRow. That is enough to give a worker's work
// to others. To end what it has begun, its next heartbeat must be overdue as
// well: a worker that lives may have lost no more than its connection.
//
// All times are compared by the database's clock. If that clock is set back, the heartbeats
// sent before lie in the future. A worker that finds its own there sends another at once. Who
// watches all workers counts any other as sent when it is seen first, see Watch.
//
// A heartbeat is part of whatever statement the worker executes anyway: the
// package gives SQL for that, and judges the answer.
//
// The package knows the table of the workers, the table of the token and advisory locks. It writes the
// table of the workers that stopped, and never reads there who lives. It must never know what workers
// do: consumers, jobs, who leads and who is given what.
package liveness
