// Package schedule enqueues jobs at scheduled times. Each tick of a schedule is one job, however
// many processes have the schedule.
//
//	client := jobs.NewClient(db)
//	scheduler := schedule.New(db, client,
//		schedule.Job("digest", schedule.Daily(7, 0, berlin), func(tick time.Time) jobs.Args { return Digest{Day: tick} }),
//		schedule.Job("poll", schedule.Every(time.Minute), func(time.Time) jobs.Args { return Poll{} }, schedule.Enqueue(jobs.Unique("poll"))),
//	)
//	err := scheduler.Start(ctx)
//
// Run a Scheduler in all processes that run jobs, or in some of them. There is no leader: the
// tables store the next ticks of schedules. A process advances a schedule by a statement that
// compares the stored tick with the tick that the process has read. The same transaction enqueues
// the job. So a tick is enqueued once, and no tick is lost with a process. All times are by the
// database's clock. [CatchUp] says what happens to ticks that were missed.
//
// # Changes
//
// A schedule is identified by its name. If a program starts with other times than the tables
// have, its Start sets the next tick by the new times. Programs with the old times then enqueue
// nothing for the schedule, and log this. So the program that started last decides. A schedule
// that is removed from the program stops with the last process that has it.
//
// Times are compared by a hash of a sample of two past years and of the text of the [Spec], if
// the Spec has a method String. The next tick is compared as well. Two Specs without String may
// agree in the sample and in the next tick. Then they count as the same schedule: Start changes
// nothing, and a program with the old Spec goes on. Give such a Spec a method String.
package schedule
