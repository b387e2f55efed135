// Package flow runs several jobs that depend on each other. A program declares a flow once, as a
// set of steps. A step is a job of package jobs, with its handler, its retries and its time-
// out.
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
// [Add] adds a step. Its parameters are a function that makes the job's arguments from the input
// of the run, and the type of the result. [Handle] and [HandleTx] register the handler of the
// step, which returns the result. A handler of [jobs.Register] with SetResult works as well. A
// later step reads the result: charge.Output(ctx, flows, flow.RunOf(j.Header)). A step can only
// depend on steps that were added before, so there are no cycles.
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
// If a step has several of these options, all of them must be met, unless Any or Quorum says
// otherwise. A skipped step has not completed, so its After steps are skipped too. A step with
// Any begins once, after the first good end; the other steps run on.
//
// [Optional] lets a step fail as if it had completed. If the step is skipped, by its If or because
// of others, its After steps are skipped, too. A handler that returns [Skip] ends its step as
// skipped, and the After steps begin. [Enqueue] sets options of the job.
//
// # Lists
//
// [Map] runs a job for each element of a list, which is the result of another step. [Mapped.Outputs]
// returns their results, in the order of the list. A list is a result, so its JSON has at most a
// megabyte ([jobs.MaxArgs]). The jobs of a list with more than 10,000 elements are enqueued in
// pieces: the first job may have ended before the last job is enqueued.
//
// # How a run ends
//
// A run ends when all its steps have ended. The run has completed if all steps without a later
// After step have completed or were not needed. Otherwise the run has failed, or was cancelled. So
// a run stays failed if a step only makes up for a failure ([OnFailure]) or cleans up ([OnEnd]).
// To continue by another way, join both ways with [Any].
//
// [Client.Cancel] cancels a run: no step begins any more, also no step of OnFailure and OnEnd.
// [Client.Retry] continues a run that has ended. A run cannot be paused: pause the queue of its
// steps ([github.com/pgfrontier/worker/ops.Jobs.PauseQueue]), or cancel the run and retry it
// later. [Client.Get] returns a run with its steps, [Run.DOT] a picture.
//
// [github.com/pgfrontier/worker/ops.Jobs.Retry] refuses the finished job of a step, and names the
// run. [github.com/pgfrontier/worker/ops.Jobs.Rerun] makes a job outside of the run, whose effects
// happen again.
//
// # Advance
//
// [Advance] is an option of workers. Without such a worker, no run advances. After the end of a step
// is stored, the worker records its effect on the dependents. About once a second one of them
// sweeps, for ends that were not recorded. Such a worker serves all flows of its tables, also flows
// without handlers in this worker: jobs.NewWorker(db, nil, flow.Advance()) runs no jobs.
//
// # Changes
//
// A run keeps the shape in which it was started. If a program changes the steps or dependencies
// of a flow, its runs are of a new version. Runs of old versions continue beside them, and the
// handlers of the new program run their steps as well. So keep the handler of a kind until no run
// needs it. Give a new kind to arguments or results whose meaning changes. If an old run does not
// have a step, Output of the step returns [ErrNotFound].
//
// # What is guaranteed
//
//   - A run that was committed ends, if its jobs do.
//   - A step is enqueued at most once, except by a retry, and not before what it waits
//     for has ended. One statement enqueues the step and records the end.
//   - Which steps run, and how the run ends, depends on how jobs end, not on when.
//   - Flow statements do not deadlock. All lock the run first, several runs in the order of
//     their IDs, and jobs last. A worker passes over locked runs. So an open transaction of
//     [Client.Cancel] or [Client.Retry] delays only its own run.
//
// As with all jobs, a handler may run more than once. The effects in the transaction of
// [HandleTx] happen once.
//
// # Tables
//
// The tables are in the schema of the table of jobs:
//
//	jobs_flows       the shapes of flows, each version
//	jobs_flow_runs   the runs
//	jobs_flow_steps  their steps, and the jobs of lists; finished runs stay for WithRetention
//	jobs_flow_sweep  which worker sweeps next
//
// The Meta of a step's job names the run and the step. The ID of a run is below 2^33. Restart a
// sequence that has come that far, once runs with low IDs have been deleted.
package flow
