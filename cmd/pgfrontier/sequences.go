package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) sequencesVerb() *cobra.Command {
	var raise bool
	c := a.changes(&cobra.Command{
		Use: "sequences", Short: "the sequences that lie below the ids of their tables", Args: cobra.NoArgs,
		Long: `Lists the sequences of the tables of consumers and jobs that lie below an id
which is there already. Ids come again then: after a switch to a logical replica,
a restore in part, or TRUNCATE ... RESTART IDENTITY. The log is the doctor's.

--raise raises each to the highest id. It locks each table for a moment, and takes
the owner of the tables.`,
		Example: "  pgfrontier sequences\n  pgfrontier sequences --raise --reason \"switched to the replica\"",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if raise {
				return a.raiseSequences(ctx)
			}
			bounded, cancel := a.bound(ctx)
			defer cancel()
			all, err := a.sequences(bounded)
			if err != nil {
				return err
			}
			return a.print(object{"sequences": listed(all, sequenceObject)}, func() string {
				if len(all) == 0 {
					return "none lies below an id\n"
				}
				t := newTable("TABLE", "SEQUENCE", ">LAST", ">HIGHEST")
				for _, s := range all {
					t.row(s.Table, s.Sequence, s.Last, s.Highest)
				}
				return t.String()
			})
		}),
	})
	c.Flags().BoolVar(&raise, "raise", false, "raise them")
	return c
}

func sequenceObject(s ops.Sequence) object {
	return object{"table": s.Table, "sequence": s.Sequence, "last": s.Last, "highest": s.Highest}
}

// both calls of with the operators of consumers and of jobs. One of them may have no tables.
func (a *app) both(ctx context.Context, of func(consumers *ops.Operator, jobs *ops.Jobs) error) error {
	consumers, err := a.operator(ctx)
	if err != nil {
		return err
	}
	jobs, err := a.jobs(ctx)
	if err != nil {
		return err
	}
	err, other := of(consumers, nil), of(nil, jobs)
	switch {
	case errors.Is(err, migrations.ErrNotApplied):
		return other
	case errors.Is(other, migrations.ErrNotApplied):
		return err
	}
	return errors.Join(err, other)
}

// sequences are those that lie below an id.
func (a *app) sequences(ctx context.Context) (all []ops.Sequence, err error) {
	err = a.both(ctx, func(consumers *ops.Operator, jobs *ops.Jobs) error {
		var of interface {
			Sequences(context.Context) ([]ops.Sequence, error)
		} = jobs
		if consumers != nil {
			of = consumers
		}
		some, err := of.Sequences(ctx)
		all = append(all, some...)
		return err
	})
	return all, err
}

func (a *app) raiseSequences(ctx context.Context) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	return a.carry(ctx, plan{
		what: "raise", name: "sequences",
		preview: func(ctx context.Context) (would preview, err error) {
			err = a.both(ctx, func(consumers *ops.Operator, jobs *ops.Jobs) error {
				if consumers != nil {
					some, err := consumers.Preview(func(o *ops.Operator) error { _, err := o.RaiseSequences(ctx, by); return err })
					would.effects = append(would.effects, effectsOf(some)...)
					return err
				}
				some, err := jobs.Preview(func(o *ops.Jobs) error { _, err := o.RaiseSequences(ctx, by); return err })
				would.effects = append(would.effects, jobsEffectsOf(some)...)
				return err
			})
			return would, err
		},
		do: func(ctx context.Context, _ *preview) (object, error) {
			var raised []ops.Sequence
			err := a.both(ctx, func(consumers *ops.Operator, jobs *ops.Jobs) error {
				var of interface {
					RaiseSequences(context.Context, ops.By) ([]ops.Sequence, error)
				} = jobs
				if consumers != nil {
					of = consumers
				}
				some, err := of.RaiseSequences(ctx, by)
				raised = append(raised, some...)
				return err
			})
			return object{"count": len(raised), "raised": listed(raised, sequenceObject)}, err
		},
	})
}
