package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) drainVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "drain WORKER", Short: "take one worker out of service", Args: cobra.ExactArgs(1),
		Long:    "Asks a worker to finish its current batches, to release its consumers, and to take no\nothers until its process is ended. WORKER is HOST/PID as the verb workers shows it, or\nthe id.",
		Example: `  pgfrontier drain pod-7/1 --reason "the node goes"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			return a.drains(ctx, args[0], o.Workers, o.DrainWorker, func(ctx context.Context, id uuid.UUID, by ops.By) ([]effect, error) {
				all, err := o.Preview(func(o *ops.Operator) error { return o.DrainWorker(ctx, id, by) })
				return effectsOf(all), err
			})
		}),
	})
}

func (a *app) jobsDrainVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "drain WORKER", Short: "take one worker of jobs out of service", Args: cobra.ExactArgs(1),
		Long:    "Asks a worker of jobs to finish its current jobs, and to claim no others until its\nprocess is ended. WORKER is HOST/PID as jobs workers shows it, or the id.",
		Example: `  pgfrontier jobs drain pod-7/1 --reason "the node goes"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			o, err := a.jobs(ctx)
			if err != nil {
				return err
			}
			return a.drains(ctx, args[0], o.Workers, o.DrainWorker, func(ctx context.Context, id uuid.UUID, by ops.By) ([]effect, error) {
				all, err := o.Preview(func(o *ops.Jobs) error { return o.DrainWorker(ctx, id, by) })
				return listed(all, func(op ops.Operation) effect { return effect{Kind: op.Kind, Detail: op.Detail} }), err
			})
		}),
	})
}

// drains asks one of the workers to drain.
func (a *app) drains(ctx context.Context, name string, workers func(context.Context) ([]ops.Worker, error), drain func(context.Context, uuid.UUID, ops.By) error, would func(context.Context, uuid.UUID, ops.By) ([]effect, error)) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	bounded, cancel := a.bound(ctx)
	defer cancel()
	all, err := workers(bounded)
	if err != nil {
		return err
	}
	id, err := workerNamed(all, name)
	if err != nil {
		return err
	}
	return a.carry(ctx, plan{
		what: "drain", name: name,
		preview: func(ctx context.Context) (preview, error) {
			effects, err := would(ctx, id, by)
			return preview{effects: effects}, err
		},
		do: func(ctx context.Context, _ *preview) (object, error) {
			return object{"worker": id}, drain(ctx, id, by)
		},
	})
}

// workerNamed finds a worker by HOST/PID or its id.
func workerNamed(all []ops.Worker, name string) (found uuid.UUID, err error) {
	n := 0
	for _, w := range all {
		if name == w.ID.String() || name == fmt.Sprintf("%s/%d", dash(w.Host), w.PID) {
			found = w.ID
			n++
		}
	}
	switch {
	case n == 0:
		return found, refuse("worker %q: no such worker is registered: the verb workers lists those that are; a worker that stops takes its row away", name)
	case n > 1:
		return found, usage("%q is %d workers: name one by its id, which -o json of the workers shows", name, n)
	}
	return found, nil
}

func (a *app) jobsWorkersVerb() *cobra.Command {
	return &cobra.Command{
		Use: "workers", Short: "the workers of jobs that are registered", Args: cobra.NoArgs,
		Long:    "Shows the workers of jobs, the latest heartbeat first, with how many kinds each has\ncode for, and what it says is wrong. Below are the workers that stopped within the\nlast 15 minutes, and how.",
		Example: `  pgfrontier jobs workers`,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.Workers(ctx)
				if err != nil {
					return nil, nil, err
				}
				stopped, err := o.StoppedWorkers(ctx)
				return workersObject(all, stopped), func() string { return workersTable(all, stopped, jobsComplaints) }, err
			})
		}),
	}
}
