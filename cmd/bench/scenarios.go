package main

import "context"

// scenario is a measurement.
type scenario struct {
	name, about string
	run         func(context.Context, *lab) ([]row, error)
}

var scenarios = []scenario{
	{"latency", "50 single appends a second: from the return of COMMIT to the call of the handler", latency},
	{"rollback", "an append that rolls back, then 20 commits: from the return of the last COMMIT until all 20 are handled", rollback},
	{"load", "20 writers at full speed, one append in five rolls back: the lag of each event behind its COMMIT", load},
	{"stale", "a transaction stays open among 21 other appends; four consumers on two workers, default options (without -long, a shorter StaleGapThreshold)", stale},
	{"idle-holder", "a transaction that has drawn a position stays idle while as many appends roll back as commit", idleHolder},
	{"unrelated", "a transaction that appends nothing stays open, in this database and in another", unrelated},
	{"scoped", "a consumer of 1% of an old log against one of all of it; handlers do nothing", scoped},
	{"catch-up", "a handler that does nothing reads a small and a large old log; the control reads the same rows with database/sql, each in its own process", catchUp},
	{"bulk", "a BatchConsumer counts events by aggregate with one upsert a batch; the control is a loop without the library that reads, applies, and moves a checkpoint in one transaction", bulk},
	{"upsert", "the same with one upsert an event, through Handle", upsert},
	{"pgx", "the consumer of upsert with a pgx.Tx; the control is the same with a *sql.Tx", native},
	{"partitions", "one consumer over an old log, in 1, 2, 4 and 8 partitions on one worker, whose handler sleeps for 1 ms, writes one upsert, or does nothing; the first also with a process for each partition", partitions},
	{"partitions-head", "one consumer at the head of the log, 1,000 appends a second, in 1 and in 8 partitions on one worker: statements that the worker sends for an event, and the lag behind the COMMIT", partitionsAtHead},
	{"partitions-quiet", "one consumer on a quiet log, 10 appends a second, in 8 and in 64 partitions on one worker: transactions that the server counts, without the appends, and how long a Waiter waits for single appends", partitionsOfQuietLog},
	{"rescale", "one consumer in 4, then 8, then 3 partitions, on two workers, 1,000 appends a second, with a handler that sleeps for 1 ms: the lag behind the COMMIT, and how long each change takes", rescale},
	{"rebuild", "one consumer at the head of the log, 1,000 appends a second, on one worker with a shadow that goes over an old log with one upsert an event, and while that is paused", rebuild},
	{"many", "1, 8 and 50 consumers of one worker at the head of the log, 1,000 appends a second: cost of an event in the database, without the writers' sessions, with a shared read and with a read for each consumer", many},
	{"idle", "no events: statements a second of one worker, and transactions that the server counts", idle},
	{"rolling", "six consumers on two processes, 100 appends a second. A process joins: until it has handled an event of each of its consumers. The leader gets SIGTERM: until the other process has handled an event of each consumer", rolling},
	{"kill", "six consumers on two processes, default options; the leader gets SIGKILL: until the other process has handled an event of each consumer", kill},
	{"scale", "many workers that only coordinate (coord.Coordinators with code for all consumers), on a server of their own", scale},
	{"outage", "the server stops and returns under 20 writers at full speed and two workers with four consumers: until each consumer has handled a new event", outage},
	{"jobs-backlog", "package jobs: a worker with 100 slots and handlers that do nothing, before a small backlog and a large one, in turns; fsync is on", jobsOfBacklog},
	{"jobs-held", "the same while a transaction of another session holds a snapshot, so that vacuum removes nothing, and without", jobsHeld},
	{"jobs-foreign", "the same behind jobs of a kind that the worker has no code for, and without; and when a job starts that is enqueued then", jobsForeign},
	{"jobs-history", "the same while finished jobs are removed whose time is over, and without", jobsHistory},
	{"jobs-flow", "the same with steps of flows, eight side by side and one that joins them, and with plain jobs; and plain jobs with a worker that advances flows, and one that does not", jobsFlow},
}

// tasks are what other processes of scenarios do.
var tasks = map[string]func(context.Context, role) (found any, err error){
	"share":  shareTask,
	"spread": spreadTask,
	"many":   manyTask,
	"walk":   walkTask,
	"read":   readTask,
	"jobs":   jobsTask,
}
