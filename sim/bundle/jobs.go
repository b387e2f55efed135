package bundle

import (
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// jobParts are the parts of a run of jobs, beside its history and how its workers
// ended.
var jobParts = []part{
	linesOf("enqueued.jsonl", "what enqueuers asked for, by their own books", func(e *history.Evidence) *[]history.Enqueued { return &e.Jobs.Enqueued }),
	linesOf("cancels.jsonl", "which jobs clients and operators cancelled", func(e *history.Evidence) *[]history.Cancel { return &e.Jobs.Cancels }),
	linesOf("runs.jsonl", "what handlers did with jobs, by their own books", func(e *history.Evidence) *[]history.JobRun { return &e.Jobs.Runs }),
	linesOf("told.jsonl", "what workers told of the ends of runs", func(e *history.Evidence) *[]history.Told { return &e.Jobs.Told }),
	linesOf("effects.jsonl", "what handlers wrote in the transactions that complete their jobs", func(e *history.Evidence) *[]history.Effect { return &e.Jobs.Effects }),
	linesOf("finished.jsonl", "the table of finished jobs", func(e *history.Evidence) *[]history.Finished { return &e.Jobs.Finished }),
	linesOf("unfinished.jsonl", "the table of unfinished jobs", func(e *history.Evidence) *[]history.Unfinished { return &e.Jobs.Left }),
	linesOf("attempts.jsonl", "the table of attempts", func(e *history.Evidence) *[]history.JobAttempt { return &e.Jobs.Attempts }),
	linesOf("steps.jsonl", "every change of a job's state, in order", func(e *history.Evidence) *[]history.JobStep { return &e.Jobs.Steps }),
	linesOf("claims.jsonl", "claims of queues with a cap or a pause, counted again", func(e *history.Evidence) *[]history.CappedRun { return &e.Jobs.Claims }),
	linesOf("resets.jsonl", "runs that were taken from workers that counted as dead", func(e *history.Evidence) *[]history.JobReset { return &e.Jobs.Resets }),
	linesOf("schedules.jsonl", "every change of a schedule's row, in order", func(e *history.Evidence) *[]history.ScheduleChange { return &e.Jobs.Changes }),
	linesOf("ticks.jsonl", "the jobs that schedules enqueued", func(e *history.Evidence) *[]history.Tick { return &e.Jobs.Ticks }),
	linesOf("flows.jsonl", "which runs of flows enqueuers started, by their own books", func(e *history.Evidence) *[]history.Enqueued { return &e.Jobs.Started }),
	linesOf("flowsteps.jsonl", "every change of a run of a flow and of its steps, in order", func(e *history.Evidence) *[]history.FlowChange { return &e.Jobs.Advances }),
	linesOf("flowjobs.jsonl", "the jobs that runs of flows enqueued", func(e *history.Evidence) *[]history.StepJob { return &e.Jobs.StepJobs }),
}

// partsOf are the parts of a run: those of events, or those of jobs.
func partsOf(e *history.Evidence) []part {
	if e.Jobs == nil {
		return parts
	}
	first, last := parts[0], parts[len(parts)-1]
	return append(append([]part{first}, slices.Clip(jobParts)...), last)
}
