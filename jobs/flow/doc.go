// Package flow runs several jobs that depend on each other. A program declares a flow once, as a
// set of steps. A step is a job of package jobs, with its handler, its retries and its timeout.
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
// [Add] adds a step, and [Map] one that is many jobs. [Handle] and [HandleTx] register the handler of
// the step, which returns the result. A handler of [jobs.Register] with SetResult works as well. A
// later step reads the result: charge.Output(ctx, flows, flow.RunOf(j.Header)). A step can only
// depend on steps that were added before, so there are no cycles.
//
// [After], [OnFailure], [OnEnd] and [If] say when a step begins. If a step has several of these
// options, all of them must be met, or as many as [Any] or [Quorum] says. If they can no longer be
// met, the step is skipped, and so are its After steps. [Optional] lets a step fail, and [Skip] lets
// a handler skip its step, without an effect on the After steps. docs/jobs.md has recipes.
//
// # How a run ends
//
// A run ends when all its steps have ended, and its State ([Run]) depends on those without a later
// After step. So a run stays failed if a step only makes up for a failure ([OnFailure]) or cleans up
// ([OnEnd]). To continue by another way, join both ways with [Any].
//
// # Changes
//
// A run keeps the shape in which it was started. Runs of old versions of a flow continue beside new
// ones, and the handlers of the new program run their steps as well. So keep the handler of a kind
// until no run needs it. Give a new kind to results whose meaning changes, as to arguments.
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
