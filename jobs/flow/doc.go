// Package flow runs several jobs that depend on each other. A flow is made once, of
// steps; each step is a job of package jobs, with its handler, its retries and its time-out.
//
//	var (
//		order  = flow.New[Order]("order")
//		charge = flow.Add[Receipt](order, "charge", func(o Order) Charge { return Charge{o.ID} })
//		pack   = flow.Add[flow.None](order, "pack", func(o Order) Pack { return Pack{o.ID} })
//		ship   = flow.Add[flow.None](order, "ship", func(o Order) Ship { return Ship{o.ID} }, flow.After(charge, pack))
//	)
//
//	flow.Handle(handlers, charge, func(ctx context.Context, j *jobs.Job[Charge]) (Receipt, error) { ... })
//	worker := jobs.NewWorker(db, handlers, flow.Advance())
//
//	flows := flow.NewClient(jobs.NewClient(db))
//	started, err := order.Start(ctx, flows, tx, Order{ID: 7}) // in the transaction that makes order 7
//	run, err := flows.Wait(ctx, started.Run)
//
// # Steps
//
// [Add] adds a step, with the arguments of its job made of what the run begins with, and
// the type of its result. [Handle] and [HandleTx] register its handler, which returns
// that; a handler of [jobs.Register] with SetResult will do as well. A later step reads
// it: charge.Output(ctx, flows, flow.RunOf(j.Header)). A step can only depend on steps
// that were added before, so there are no circles.
//
//	option            the step begins                     otherwise it is skipped, because
//	----------------  ----------------------------------  --------------------------------
//	After(a, b)       when a and b have completed         one has not
//	OnFailure(a)      when a has failed, was cancelled,   it is not needed
//	                  or was skipped because of such
//	OnEnd(a)          when a has ended, however           -
//	If(a, pattern)    when a has completed, and its       it is not needed, or a has
//	                  result contains the pattern         not completed
//	Any()             when one of these has come true     none can any more
//	Quorum(n)         when n of these have                so many can not any more
//
// Several of these on one step must all come true, unless Any or Quorum says otherwise.
// A step that is skipped has not completed, so those After it are skipped too. A step
// that is Any's begins once, with the first; the others run on.
//
// [Client.Cancel] keeps all of these from beginning that have not, also OnFailure and OnEnd.
//
// [Optional] lets a step fail as if it had completed: those After it begin. It is about the
// step's own failure. A step of [If] on it is skipped, since there is no result; and where
// the step itself is skipped, by its If or because of others, those After it are, too. A
// handler that returns [Skip] ends its step as skipped and lets those After it begin.
// [Enqueue] gives the job options.
//
// # Lists
//
// [Map] does a job for each element of a list that another step has as its result. The
// elements are the arguments. The jobs are enqueued when the list is complete: once,
// however often the step that made the list was tried. [Mapped.Outputs] has their results, in the order of the list. A list is a
// result, so it is a megabyte of JSON at most ([jobs.MaxArgs]). The jobs of a list with more
// than 10,000 elements are enqueued in pieces: the first of them may have ended before the last
// one is enqueued.
//
// # How a run ends
//
// A run ends when all its steps have. It has completed if each step that no other comes
// After has completed, or was not needed. Otherwise it has failed, or was cancelled. So a
// step that makes up for the failure of another ([OnFailure]), or cleans up behind it
// ([OnEnd]), leaves the run failed. To go on by another way, join both with [Any].
//
// [Client.Cancel] ends a run. [Client.Retry] makes one that has ended go on, from the
// steps whose failure made it fail, or those that it is given. There is no pause of a run:
// pause the queue of its steps ([github.com/pgfrontier/worker/ops.Jobs.PauseQueue]), or cancel
// it and retry it later. [Client.Get] returns a run with its
// steps, as data for a table, and [Run.DOT] as a picture.
//
// A retry of a step's job by its own id ([github.com/pgfrontier/worker/ops.Jobs.Retry])
// is a job beside the run: the run takes no note of it.
//
// # Advance
//
// [Advance] is an option of workers. Such a worker tells the steps that depend on it of
// each end, right after that is stored, and about once a second one of all workers looks
// for ends that were not told: of jobs that a dead worker had, that were cancelled,
// or that have failed with their worker. Nobody leads. Any worker with Advance will do
// for all flows of its tables, also for those that it has no handlers for; without one,
// no run gets on. It needs no handlers: jobs.NewWorker(db, nil, flow.Advance()) runs no
// jobs, and finds the ends of those that others run within about a second.
//
// # Changes
//
// A run keeps the shape in which it was started. A program in which the flow has other
// steps, or other dependencies, starts runs of a new version, beside old programs and
// old runs; that is how a rolling deployment goes. Nothing is refused. The handlers of the
// new program do the steps of old runs as well: keep a kind's handler until no run needs
// it, and give a new kind to arguments or results whose meaning changes. Output of a step
// that an old run does not have is [ErrNotFound].
//
// # What is guaranteed
//
//   - A run that was committed ends, if its jobs do.
//   - A step is enqueued at most once, except by a retry, and not before what it waits
//     for has ended. That is one statement, which also takes note of the end.
//   - Which steps run, and how the run ends, depends on how jobs end, not on when.
//   - No flow statement waits for another crosswise: all lock the run first, those of
//     several runs in the order of their ids, and jobs last. A worker passes over runs that
//     others have locked: an open transaction of [Client.Cancel] or [Client.Retry] holds up
//     its own run only.
//
// As with all jobs, a handler may run more than once. The effects in the transaction of
// [HandleTx] happen once.
//
// # Tables
//
// They stand beside that of the jobs:
//
//	jobs_flows       the shapes of flows, each version
//	jobs_flow_runs   the runs
//	jobs_flow_steps  their steps, and the jobs of lists; finished runs stay for WithRetention
//	jobs_flow_sweep  whose turn it is to look
//
// A step's job has the run and the step in its Meta. Plain jobs have nothing of all that:
// no column, no statement.
package flow
