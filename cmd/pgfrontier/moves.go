package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func pauseOf(name string) consumerChange {
	return consumerChange{what: "pause", name: name, decided: onNothing, do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
		return nil, o.Pause(ctx, name, by)
	}}
}

func resumeOf(name string) consumerChange {
	return consumerChange{what: "resume", name: name, do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
		return nil, o.Resume(ctx, name, by)
	}}
}

func skipOf(name string, position int64) consumerChange {
	return consumerChange{
		what: "skip", name: name,
		final: fmt.Sprintf("The consumer never handles the event at %d, unless it is reset below it.", position),
		do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
			return object{"position": position}, o.SkipEvent(ctx, name, position, by)
		},
	}
}

func (a *app) pauseVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "pause NAME", Short: "keep the workers from a consumer", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long:    "Keeps the workers from handling events of a consumer, until it is resumed. A\nbatch in flight is finished first. NAME may be one unit of a consumer in\npartitions.",
		Example: `  pgfrontier pause totals_v1 --reason "the read model is being repaired"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, pauseOf(args[0]))
		}),
	})
}

func (a *app) resumeVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "resume NAME", Short: "let a paused consumer go on", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Example: `  pgfrontier resume totals_v1 --reason "repaired"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, resumeOf(args[0]))
		}),
	})
}

func (a *app) skipVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "skip NAME POSITION", Short: "go on without the event at which a consumer is stuck", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long:    "Lets a consumer go on without the event that comes next: the verb consumer shows\nits position. Any other position is refused.",
		Example: `  pgfrontier skip totals_v1 1234 --reason "order 4711 has no customer"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			position, err := positionOf(args[1])
			if err != nil {
				return err
			}
			return a.onConsumer(ctx, skipOf(args[0], position))
		}),
	})
}

func (a *app) resetVerb() *cobra.Command {
	var to string
	c := a.consumerChanges(&cobra.Command{
		Use: "reset NAME --to N|beginning|settled|TIME", Short: "set a consumer to a position", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long: `Sets a consumer to a position. It goes on with the first event above.

Backwards, the events above the position are handled again; what the handler did
for them is not undone, and the dead letters above it are deleted. Forwards, the
events up to the position are not handled; it goes no further than the log is
settled.

--to takes a position, beginning, settled, or a time (2026-01-02T15:04:05Z): then
all events from the first one that was written then or later are above. For a
time the log is read up to there.`,
		Example: `  pgfrontier reset totals_v1 --to beginning --dry-run --reason "rebuild"
  pgfrontier reset totals_v1 --to 41200 --reason "the handler was wrong since"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			if _, err := a.by(); err != nil {
				return err // before the database is asked
			}
			position, err := a.target(ctx, "to", to)
			if err != nil {
				return err
			}
			return a.onConsumer(ctx, consumerChange{
				what: "reset", name: args[0],
				final: fmt.Sprintf("Backwards, the events above %d are handled again, and what the handler did for\nthem before is not undone; forwards, those up to it are not handled.", position),
				do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
					return object{"position": position}, o.Reset(ctx, args[0], position, by)
				},
			})
		}),
	})
	c.Flags().StringVar(&to, "to", "", "a position, beginning, settled, or a time (needed)")
	return c
}

// target is the position that a flag names.
func (a *app) target(ctx context.Context, flag, to string) (int64, error) {
	if to == "beginning" {
		return 0, nil
	}
	if n, err := strconv.ParseInt(to, 10, 64); err == nil && n >= 0 {
		return n, nil
	}
	if to == "settled" {
		o, err := a.operator(ctx)
		if err != nil {
			return 0, err
		}
		ctx, cancel := a.bound(ctx)
		defer cancel()
		log, err := o.Log(ctx)
		return log.Settled, err
	}
	since, err := time.Parse(time.RFC3339, to)
	if err != nil {
		return 0, usage("--%s %q: it is a position, beginning, settled, or a time such as 2026-01-02T15:04:05Z", flag, to)
	}
	return a.before(ctx, since)
}

// before is the position before the first event that was written at a time or later.
func (a *app) before(ctx context.Context, since time.Time) (position int64, err error) {
	t, err := a.parsed()
	if err != nil {
		return 0, err
	}
	db, err := a.open(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	err = db.QueryRowContext(ctx, `
SELECT coalesce(min(global_position), 0) - 1 FROM `+t.Events.SQL()+` WHERE created_at >= $1::timestamptz AND isfinite(created_at)`, since.Format(time.RFC3339Nano)).Scan(&position)
	switch {
	case err != nil:
		return 0, fmt.Errorf("find the first event since %s: %w", since.Format(time.RFC3339), err)
	case position < 0:
		return 0, refuse("no event was written since %s: settled is the end", since.Format(time.RFC3339))
	}
	return position, nil
}

func positionOf(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, usage("%q is no position: it is a number from 1", text)
	}
	return n, nil
}

func (a *app) partitionVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "partition NAME N", Short: "fix the number of a consumer's partitions", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long:    "Fixes the number of a consumer's partitions, 1 to 256. With 0 it is again what\nthe workers' code demands. The workers change it while they run.",
		Example: `  pgfrontier partition totals_v1 8 --reason "it is too slow"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usage("%q is no number of partitions: it is 0 to 256", args[1])
			}
			return a.onConsumer(ctx, consumerChange{what: "partition", name: args[0], decided: onRecord, do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
				return object{"partitions": n}, o.Partition(ctx, args[0], n, by)
			}})
		}),
	})
}

func (a *app) replayVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "replay NAME TYPE ID", Short: "let a consumer handle one aggregate again", Args: cobra.ExactArgs(3), ValidArgsFunction: a.consumerNames,
		Long: `Lets a consumer handle all events of one aggregate again that it has passed, in
order, beside what is new; new events of the aggregate wait behind them. The
handler is told that it has had their effects. letters list shows those that are
still to come. It is not for a consumer with a key of its own.`,
		Example: `  pgfrontier replay totals_v1 Order 4711 --reason "its total is wrong"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, consumerChange{
				what: "replay", name: args[0], decided: onNothing,
				final: "The events are handled again. What the handler did for them before is not undone,\nunless it forgets the aggregate first.",
				do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
					return object{"aggregate_type": args[1], "aggregate_id": args[2]}, o.Replay(ctx, args[0], args[1], args[2], by)
				},
			})
		}),
	})
}

func (a *app) replayTypesVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "replay-types NAME TYPE...", Short: "deliver what an earlier build did not select", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.consumerNames,
		Long: `Lets a consumer handle the events of aggregate types that it has passed because the
build that ran it then did not name the types: the verb operations lists these
changes as scope. Which events these are is known: none comes twice. So that the
events of an aggregate come in order, those of it that were handled come again, and
the handler is told so. letters list shows those that are still to come. It is not for
a consumer with a key of its own.`,
		Example: `  pgfrontier replay-types totals_v1 Invoice --reason "invoices count, too"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, consumerChange{
				what: "replay-types", name: args[0], decided: onNothing,
				final: "Aggregates that were handled in part are handled again from their first event.",
				do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
					return object{"types": args[1:]}, o.ReplayTypes(ctx, args[0], args[1:], by)
				},
			})
		}),
	})
}

func (a *app) renameVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "rename OLD NEW", Short: "give a consumer another name", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long: `Gives a consumer another name. Under it the consumer continues exactly where it was.
Stop the workers with the old name, rename, then deploy the new name: it is refused
while a worker has code for either name.

A row stays under the old name, so that a worker that still has it handles no event.
retire OLD removes the row, once no such worker can start any more.`,
		Example: `  pgfrontier rename totals_v1 order_totals --reason "there are other totals now"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, consumerChange{what: "rename", name: args[0], do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
				return object{"to": args[1]}, o.Rename(ctx, args[0], args[1], by)
			}})
		}),
	})
}

func (a *app) retireVerb() *cobra.Command {
	return a.consumerChanges(&cobra.Command{
		Use: "retire NAME", Short: "remove a consumer for good", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long:    "Removes a consumer with its checkpoint, dead letters, audit and receipts. It is\nrefused while a worker has code for it, and for the version of a projection that\nhas the effects while another version is a shadow.",
		Example: `  pgfrontier retire totals_v1 --reason "totals_v2 has replaced it"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.onConsumer(ctx, consumerChange{
				what: "retire", name: args[0], final: "A consumer that comes again under this name begins as a new one.",
				do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
					return nil, o.Retire(ctx, args[0], by)
				},
			})
		}),
	})
}
