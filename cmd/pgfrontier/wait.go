package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/ops"
)

const waitPoll = 100 * time.Millisecond

func (a *app) waitVerb() *cobra.Command {
	return &cobra.Command{
		Use: "wait NAME POSITION", Short: "wait until a consumer has handled an event", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long:    "Waits until a consumer has handled the event at a position, for --timeout at\nmost. The exit status is 1 if it has not, or if the event is a dead letter.",
		Example: `  pgfrontier wait totals_v1 1234 --timeout 1m`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			position, err := positionOf(args[1])
			if err != nil {
				return err
			}
			if whole := partition.Consumer(args[0]); whole != args[0] {
				return usage("%q is a unit, which may be gone at any time: wait for %q", args[0], whole)
			}
			if err := a.waitFor(ctx, args[0], position); err != nil {
				return err
			}
			return a.print(object{"handled": position, "consumer": args[0]}, func() string {
				return fmt.Sprintf("%s has handled position %d\n", clean(args[0]), position)
			})
		}),
	}
}

// awaitable refuses a name that no consumer has, or has any more.
func awaitable(ctx context.Context, o *ops.Operator, name string) error {
	all, err := o.Consumers(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(c ops.Consumer) bool { return c.Name == name })
	if i >= 0 && all[i].RenamedTo != "" {
		return refuse("consumer %q was renamed: wait for %q", name, all[i].RenamedTo)
	}
	return known(ctx, o, name)
}

func (a *app) waitFor(ctx context.Context, consumer string, position int64) error {
	t, err := a.parsed()
	if err != nil {
		return err
	}
	o, err := a.operator(ctx)
	if err != nil {
		return err
	}
	db, err := a.open(ctx)
	if err != nil {
		return err
	}
	checkpoints := progress.New(t, uuid.Nil, 0, progress.Server{Incarnation: `''::text`})
	ctx, cancel := a.bound(ctx)
	defer cancel()
	var last progress.Arrival
	for looked := false; ; looked = true {
		now, _, err := checkpoints.Arrived(ctx, db, consumer, position)
		switch {
		case err != nil && looked && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return refuse("consumer %q has not handled position %d within %v: %w", consumer, position, a.timeout, last.Why())
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return usage("it is not known whether consumer %q has handled position %d: the database did not answer within %v, give a longer --timeout: %w", consumer, position, a.timeout, err)
		case err != nil:
			return err
		case now.Handled:
			return nil
		case now.DeadLetter:
			return refuse("%w: consumer %q, position %d; see letters show", worker.ErrDeadLettered, consumer, position)
		case now.Unknown:
			if there, err := checkpoints.Known(ctx, db, consumer); err == nil && !there {
				if err := awaitable(ctx, o, consumer); err != nil {
					return err
				}
			}
		}
		last = now
		backoff.Sleep(ctx, waitPoll)
	}
}
