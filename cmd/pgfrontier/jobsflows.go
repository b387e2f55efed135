package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) flowsVerbs() *cobra.Command {
	return a.group("flows", "runs of flows, see package jobs/flow", a.flowsListVerb(), a.flowsShowVerb(), a.flowsCancelVerb(), a.flowsRetryVerb())
}

func (a *app) flowsListVerb() *cobra.Command {
	var f flow.Filter
	var state string
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "list runs, the newest first", Args: cobra.NoArgs,
		Example: "  pgfrontier jobs flows list --state failed\n  pgfrontier jobs flows list --flow order --limit 10",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			f.State = jobs.State(state)
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.FlowRuns(ctx, f, limit)
				return object{"runs": listed(all, runObject)}, func() string {
					if len(all) == 0 {
						return "none\n"
					}
					t := newTable(">RUN", "FLOW", "STATE", ">UNFINISHED", "CREATED", "~KEY")
					for _, r := range all {
						t.row(r.ID, r.Flow, r.State, r.Unfinished, stamp(r.CreatedAt), dash(r.Key))
					}
					return t.String()
				}, err
			})
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&state, "state", "", "only those in this state: running, completed, failed, cancelled")
	c.Flags().StringVar(&f.Flow, "flow", "", "only those of this flow")
	c.Flags().Int64Var(&f.Before, "before", 0, "only those with a lower id, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	return c
}

func (a *app) flowsShowVerb() *cobra.Command {
	var dot bool
	c := &cobra.Command{
		Use: "show RUN", Short: "one run, with its steps", Args: cobra.ExactArgs(1),
		Example: "  pgfrontier jobs flows show 7\n  pgfrontier jobs flows show 7 --dot | dot -Tsvg > run.svg",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			id, err := runOf(args[0])
			if err != nil {
				return err
			}
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				r, err := o.FlowRun(ctx, id)
				if dot {
					return object{"dot": r.DOT()}, func() string { return printable(r.DOT()) }, err
				}
				one := runObject(r)
				one["steps"] = listed(r.Steps, stepObject)
				return object{"run": one}, func() string { return runText(r) }, err
			})
		}),
	}
	c.Flags().BoolVar(&dot, "dot", false, "as a graph, in the language of Graphviz")
	return c
}

func (a *app) flowsCancelVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "cancel RUN", Short: "end a run", Args: cobra.ExactArgs(1),
		Example: `  pgfrontier jobs flows cancel 7 --reason "ordered twice"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			id, err := runOf(args[0])
			if err != nil {
				return err
			}
			return a.onJobs(ctx, "cancel", args[0], "Its jobs that have not run do not run.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				return nil, o.CancelFlowRun(ctx, id, by)
			})
		}),
	})
}

func (a *app) flowsRetryVerb() *cobra.Command {
	var from []string
	c := a.changes(&cobra.Command{
		Use: "retry RUN", Short: "let a run that has ended go on", Args: cobra.ExactArgs(1),
		Long:    "Lets a run that has ended go on, from the steps that made it fail, or from those\nthat are named.",
		Example: "  pgfrontier jobs flows retry 7 --reason \"the bank answers\"\n  pgfrontier jobs flows retry 7 --from pay,ship --reason \"the wrong address\"",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			id, err := runOf(args[0])
			if err != nil {
				return err
			}
			final := ""
			if len(from) > 0 {
				final = "What these steps, and those after them, did before may be done twice."
			}
			return a.onJobs(ctx, "retry", args[0], final, func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				return nil, o.RetryFlowRun(ctx, id, by, from...)
			})
		}),
	})
	c.Flags().StringSliceVar(&from, "from", nil, "these steps, and what comes after them")
	return c
}

func runOf(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage("%q is no run: it is a number from 1", text)
	}
	return id, nil
}

func runText(r flow.Run) string {
	var f facts
	f.add("run", "%d of %s, version %s", r.ID, r.Flow, r.Version)
	f.add("state", "%s, %d unfinished", r.State, r.Unfinished)
	if r.Key != "" {
		f.add("key", "%s", r.Key)
	}
	f.add("created", "%s", stamp(r.CreatedAt))
	if r.CancelAt != nil {
		f.add("cancelled", "%s", stamp(*r.CancelAt))
	}
	if r.FinishedAt != nil {
		f.add("finished", "%s", stamp(*r.FinishedAt))
	}
	t := newTable("STEP", "STATE", ">JOB", ">RUNS", "CODE", "~ERROR")
	for _, s := range r.Steps {
		stepRow(t, s.Name, s)
		for _, item := range s.Items {
			stepRow(t, fmt.Sprintf("%s/%d", s.Name, item.Item), item)
		}
	}
	return f.String() + "\n" + t.String()
}

func stepRow(t *table, name string, s flow.StepInfo) {
	job := "-"
	if s.Job != 0 {
		job = fmt.Sprint(s.Job)
	}
	t.row(name, s.State, job, s.Attempt, dash(s.Code), s.Error)
}

func runObject(r flow.Run) object {
	return object{
		"id": r.ID, "flow": r.Flow, "flow_version": r.Version, "state": r.State, "key": r.Key, "unfinished": r.Unfinished,
		"created_at": r.CreatedAt, "cancel_at": r.CancelAt, "finished_at": r.FinishedAt,
	}
}

func stepObject(s flow.StepInfo) object {
	o := object{
		"name": s.Name, "kind": s.Kind, "state": s.State, "job": nil, "attempt": s.Attempt, "failures": s.Failures,
		"started_at": s.StartedAt, "finished_at": s.FinishedAt, "code": s.Code, "error": s.Error, "result": s.Result, "optional": s.Optional,
	}
	if s.Job != 0 {
		o["job"] = s.Job
	}
	if len(s.Items) > 0 {
		o["jobs"], o["items"] = s.Jobs, listed(s.Items, func(item flow.StepInfo) object {
			one := stepObject(item)
			one["item"] = item.Item
			return one
		})
	}
	return o
}

func (a *app) jobsRetentionVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "retention QUEUE TIME|forever|none", Short: "how long a queue's finished jobs are kept", Args: cobra.ExactArgs(2),
		Long:    "Keeps the finished jobs of a queue, or with * of all that have none of their own,\nfor a time such as 72h. With none it is again what the workers say.",
		Example: "  pgfrontier jobs retention mail 72h --reason \"the audit\"\n  pgfrontier jobs retention mail none --reason \"it is over\"",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			d, err := time.ParseDuration(args[1])
			switch {
			case args[1] == "forever":
				d = ops.Forever
			case err != nil && args[1] != "none":
				return usage("%q is no retention: it is a time such as 72h, forever, or none", args[1])
			}
			final := "Finished jobs that are older are deleted, also those that have failed."
			if d == ops.Forever {
				final = ""
			}
			return a.onJobs(ctx, "retention", args[0], final, func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				if args[1] == "none" {
					return nil, o.RemoveRetention(ctx, args[0], by)
				}
				return nil, o.SetRetention(ctx, args[0], d, by)
			})
		}),
	})
}

func (a *app) jobsRetireVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "retire SCHEDULE", Short: "forget a schedule that no program has any more", Args: cobra.ExactArgs(1),
		Example: `  pgfrontier jobs retire nightly --reason "the report is gone"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onJobs(ctx, "retire", args[0], "A process that still has it makes it again, from the present on.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				return nil, o.RemoveSchedule(ctx, args[0], by)
			})
		}),
	})
}
