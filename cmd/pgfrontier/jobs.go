package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) jobsVerbs() *cobra.Command {
	return a.group("jobs", "queues, jobs, schedules and flows of package jobs",
		a.jobsQueuesVerb(), a.jobsListVerb(), a.jobsShowVerb(), a.jobsOperationsVerb(), a.jobsSchedulesVerb(), a.jobsWorkersVerb(),
		a.jobsRetryVerb(), a.jobsCancelVerb(), a.jobsDiscardVerb(), a.jobsAcknowledgeVerb(), a.jobsPauseVerb(), a.jobsResumeVerb(), a.jobsCapVerb(), a.jobsRetentionVerb(), a.jobsRetireVerb(), a.jobsDrainVerb(), a.flowsVerbs())
}

// read asks about jobs, and prints.
func (a *app) readJobs(ctx context.Context, read func(ctx context.Context, o *ops.Jobs) (object, func() string, error)) error {
	o, err := a.jobs(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	data, text, err := read(ctx, o)
	if err != nil {
		return err
	}
	return a.print(data, text)
}

func (a *app) jobsQueuesVerb() *cobra.Command {
	return &cobra.Command{
		Use: "queues", Short: "how the queues stand", Args: cobra.NoArgs,
		Long:    "Lists the queues; * is all together. Numbers are counted up to 10,000.",
		Example: "  pgfrontier jobs queues",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.Queues(ctx)
				return object{"queues": listed(all, queueObject)}, func() string {
					t := newTable("QUEUE", ">LATER", ">DUE", ">RUNNING", ">FAILED", ">CAP", "~STATE")
					for _, q := range all {
						limit, state := "-", ""
						if q.Cap != nil {
							limit = strconv.Itoa(*q.Cap)
						}
						if q.Paused != nil {
							state = fmt.Sprintf("paused by %s: %s", q.Paused.By.Operator, q.Paused.By.Reason)
						}
						t.row(q.Name, q.Scheduled, q.Due, q.Running, q.Failed, limit, state)
					}
					return t.String()
				}, err
			})
		}),
	}
}

func queueObject(q ops.Queue) object {
	o := object{"name": q.Name, "paused": paused(q.Paused), "cap": q.Cap, "scheduled": q.Scheduled, "due": q.Due, "running": q.Running, "failed": q.Failed, "unacknowledged": q.Unacknowledged, "retention_seconds": nil}
	if q.Retention != nil {
		o["retention_seconds"] = seconds(*q.Retention)
	}
	return o
}

func (a *app) jobsShowVerb() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "one job, with its runs", Args: cobra.ExactArgs(1),
		Example: "  pgfrontier jobs show 1234",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			id, err := jobOf(args[0])
			if err != nil {
				return err
			}
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.List(ctx, ops.JobFilter{After: id - 1, Before: id + 1}, 1)
				if err == nil && len(all) == 0 {
					err = refuse("job %d: there is no such job: a finished job is deleted when its retention is over", id)
				}
				if err != nil {
					return nil, nil, err
				}
				attempts, err := o.Attempts(ctx, id)
				return object{"job": jobObject(all[0]), "attempts": listed(attempts, attemptObject)}, func() string { return jobText(all[0], attempts) }, err
			})
		}),
	}
}

func jobOf(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || id == math.MaxInt64 { // below which a filter can end
		return 0, usage("%q is no job: it is a number from 1", text)
	}
	return id, nil
}

func jobText(j ops.Job, attempts []jobs.Attempt) string {
	var f facts
	f.add("job", "%d, %s", j.ID, j.Kind)
	f.add("queue", "%s, priority %d", j.Queue, j.Priority)
	f.add("state", "%s", j.State)
	f.add("created", "%s", stamp(j.CreatedAt))
	if !j.RunAt.IsZero() {
		f.add("due", "%s", stamp(j.RunAt))
	}
	if j.StartedAt != nil {
		f.add("started", "%s", stamp(*j.StartedAt))
	}
	if j.FinishedAt != nil {
		f.add("finished", "%s", stamp(*j.FinishedAt))
	}
	if j.AcknowledgedAt != nil {
		f.add("acknowledged", "%s", stamp(*j.AcknowledgedAt))
	}
	f.add("runs", "%d, %d failed, %d lost with their worker", j.Attempt, j.Failures, j.Resets)
	if j.Worker != uuid.Nil {
		f.add("worker", "%s", j.Worker)
	}
	if j.Error != "" || j.Code != "" {
		f.add("error", "%s", strings.TrimSpace(j.Code+" "+j.Error))
	}
	f.add("args", "%s", dash(string(j.Args)))
	if j.Meta != nil {
		f.add("meta", "%s", j.Meta)
	}
	if j.Result != nil {
		f.add("result", "%s", j.Result)
	}
	if len(attempts) == 0 {
		return f.String()
	}
	t := newTable(">RUN", "ENDED", "OUTCOME", "CODE", "~ERROR")
	for _, at := range attempts {
		t.row(at.Number, stamp(at.EndedAt), at.Outcome, dash(at.Code), at.Error)
	}
	return f.String() + "\n" + t.String()
}

func jobObject(j ops.Job) object {
	o := object{
		"id": j.ID, "kind": j.Kind, "queue": j.Queue, "state": j.State, "priority": j.Priority, "run_at": nil, "good_until": j.GoodUntil,
		"args": j.Args, "meta": j.Meta, "unique_key": j.UniqueKey, "created_at": j.CreatedAt, "attempt": j.Attempt, "failures": j.Failures,
		"resets": j.Resets, "max_attempts": j.MaxAttempts, "max_resets": j.MaxResets, "worker": owner(j.Worker), "started_at": j.StartedAt,
		"cancel_at": j.CancelAt, "finished_at": j.FinishedAt, "acknowledged_at": j.AcknowledgedAt, "code": j.Code, "error": j.Error, "result": j.Result,
	}
	if !j.RunAt.IsZero() {
		o["run_at"] = j.RunAt
	}
	return o
}

func attemptObject(at jobs.Attempt) object {
	return object{"attempt": at.Number, "worker": owner(at.Worker), "started_at": at.StartedAt, "ended_at": at.EndedAt, "outcome": at.Outcome, "code": at.Code, "error": at.Error}
}

func (a *app) jobsListVerb() *cobra.Command {
	var f ops.JobFilter
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "list jobs, the newest first", Args: cobra.NoArgs,
		Example: "  pgfrontier jobs list --state failed --kind welcome\n  pgfrontier jobs list --queue mail --limit 10",
	}
	states := filteredJobs(c, &f)
	c.RunE = a.verb(func(ctx context.Context, _ []string) error {
		if err := states(); err != nil {
			return err
		}
		return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
			all, err := o.List(ctx, f, limit)
			return object{"jobs": listed(all, jobObject)}, func() string {
				if len(all) == 0 {
					return "none\n"
				}
				t := newTable(">ID", "KIND", "QUEUE", "STATE", ">RUNS", "CREATED", "~ERROR")
				for _, j := range all {
					state := string(j.State)
					if j.AcknowledgedAt != nil {
						state += ", acknowledged"
					}
					t.row(j.ID, j.Kind, j.Queue, state, j.Attempt, stamp(j.CreatedAt), j.Error)
				}
				return t.String()
			}, err
		})
	})
	c.Flags().Int64Var(&f.Before, "before", 0, "only those with a lower id, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	return c
}

var jobStates = []jobs.State{jobs.StateAvailable, jobs.StateRunning, jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired}

// filteredJobs gives a verb the flags of a filter for jobs. What it returns completes the
// filter once the flags are read.
func filteredJobs(c *cobra.Command, f *ops.JobFilter) (states func() error) {
	c.Flags().SortFlags = false
	given := c.Flags().StringSlice("state", nil, "only those in these states: "+strings.Join(listed(jobStates, func(s jobs.State) string { return string(s) }), ", "))
	c.Flags().StringVar(&f.Kind, "kind", "", "only those of this kind")
	c.Flags().StringVar(&f.Queue, "queue", "", "only those of this queue")
	return func() error {
		for _, text := range *given {
			found := false
			for _, s := range jobStates {
				found = found || string(s) == text
			}
			if !found {
				return usage("--state %q: there is none of this name, see -h", text)
			}
			f.States = append(f.States, jobs.State(text))
		}
		return nil
	}
}

func (a *app) jobsOperationsVerb() *cobra.Command {
	var f ops.OperationFilter
	var limit int
	c := &cobra.Command{
		Use: "operations", Short: "who changed what on jobs and queues, when and why", Args: cobra.NoArgs,
		Example: "  pgfrontier jobs operations --queue mail",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.Operations(ctx, f, limit)
				return object{"operations": listed(all, jobsOperationObject)}, func() string {
					if len(all) == 0 {
						return "no operation was recorded\n"
					}
					t := newTable(">ID", "AT", "OPERATION", ">JOB", "QUEUE", "~BY")
					for _, op := range all {
						t.row(op.ID, stamp(op.At), op.Kind, op.Job, dash(op.Queue), op.By.Operator+": "+op.By.Reason)
					}
					return t.String()
				}, err
			})
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().Int64Var(&f.Job, "job", 0, "only those on this job")
	c.Flags().StringVar(&f.Queue, "queue", "", "only those on this queue; * is all together")
	c.Flags().Int64Var(&f.Before, "before", 0, "only those with a lower id, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	return c
}

func jobsOperationObject(op ops.Operation) object {
	return object{
		"id": op.ID, "job": op.Job, "queue": op.Queue, "operation": op.Kind, "detail": json.RawMessage(op.Detail),
		"operator": op.By.Operator, "reason": op.By.Reason, "at": op.At,
	}
}
