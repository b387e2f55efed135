// Package schedule enqueues jobs at times: each tick of a schedule is one job, however
// many processes have the schedule.
//
//	client := jobs.NewClient(db)
//	scheduler := schedule.New(db, client,
//		schedule.Job("digest", schedule.Daily(7, 0, berlin), func(tick time.Time) jobs.Args { return Digest{Day: tick} }),
//		schedule.Job("poll", schedule.Every(time.Minute), func(time.Time) jobs.Args { return Poll{} }, schedule.Enqueue(jobs.Unique("poll"))),
//	)
//	err := scheduler.Start(ctx)
//
// Run a Scheduler in every process that runs jobs, or in some. None leads: the tables
// keep the next tick of each schedule. The process that moves it on, in a statement that
// compares it with what the process has read, enqueues the job in the same transaction.
// So a tick is enqueued once, and none is lost with a process. All times are those of
// the database's clock.
//
// # Missed ticks
//
// When no process runs, or the database is away, ticks are missed. Then the latest one
// is enqueued late, and the others are not: see [CatchUp].
//
// While an operator has paused a schedule its ticks pass: nothing is enqueued for them
// later ([github.com/pgfrontier/worker/ops.Jobs.PauseSchedule]).
//
// # Changes
//
// A schedule is known by its name. A Start with other times than the tables know sets
// the next tick by the new ones, and programs that still have the old ones enqueue
// nothing for it, and log that. So the program that started last decides. A schedule that is removed
// from the program stops with the last process that has it.
//
// Times are compared by a hash of a sample of two past years and of the text of the [Spec], if that
// has a method String. The next tick is compared as well. Two Specs without String that differ
// neither in the sample nor in the next tick are taken for the same schedule: Start then changes
// nothing, and a program that still runs with the old one goes on. Give such a Spec a method String.
package schedule
