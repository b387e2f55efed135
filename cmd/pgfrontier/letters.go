package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) lettersVerbs() *cobra.Command {
	return a.group("letters", "the events that a consumer could not handle",
		a.lettersListVerb(), a.lettersShowVerb(), a.lettersRetryVerb(), a.lettersDiscardVerb())
}

// filtered gives a verb the flags of a filter for dead letters.
func filtered(c *cobra.Command, f *ops.DeadLetterFilter) {
	c.Flags().SortFlags = false
	c.Flags().StringVar(&f.AggregateType, "aggregate-type", "", "only those of this type of aggregate")
	c.Flags().StringVar(&f.EventType, "event-type", "", "only those of this type of event")
	c.Flags().StringVar(&f.Error, "error", "", "only those whose error contains this")
	c.Flags().DurationVar(&f.OlderThan, "older-than", 0, "only those that are older")
}

func (a *app) lettersListVerb() *cobra.Command {
	var f ops.DeadLetterFilter
	var limit int
	var payload bool
	c := &cobra.Command{
		Use: "list NAME", Short: "list a consumer's dead letters", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Example: "  pgfrontier letters list totals_v1\n  pgfrontier letters list totals_v1 --error timeout --older-than 1h",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			all, err := a.letters(ctx, args[0], f, payload, limit)
			if err != nil {
				return err
			}
			return a.print(object{"letters": listed(all, letterObject)}, func() string { return lettersTable(all) })
		}),
	}
	filtered(c, &f)
	c.Flags().Int64Var(&f.After, "after", 0, "only those above this position, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	c.Flags().BoolVar(&payload, "payload", false, "with what the events carry (with -o json)")
	return c
}

func (a *app) letters(ctx context.Context, consumer string, f ops.DeadLetterFilter, payload bool, limit int) ([]ops.DeadLetter, error) {
	o, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	all, err := o.FilterDeadLetters(ctx, consumer, f, payload, limit)
	if err == nil && len(all) == 0 {
		err = known(ctx, o, consumer)
	}
	return all, err
}

func lettersTable(all []ops.DeadLetter) string {
	if len(all) == 0 {
		return "none\n"
	}
	t := newTable(">POSITION", "TYPE", "AGGREGATE", ">TRIES", "RETRY", "~ERROR")
	for _, l := range all {
		retry := ""
		if l.RetryAt != nil {
			retry = "asked"
		}
		why := l.Error
		switch {
		case l.Replay:
			why = "waits for its replay"
		case l.Attempts == 0:
			why = "waits behind another of its aggregate"
		}
		t.row(l.Position, l.EventType, cut(l.AggregateID, 12), l.Attempts, retry, why)
	}
	return t.String()
}

func letterObject(l ops.DeadLetter) object {
	o := object{
		"consumer": l.Consumer, "partition": l.Partition, "position": l.Position, "aggregate_type": l.AggregateType, "aggregate_id": l.AggregateID,
		"key": l.Key, "event_id": l.EventID, "event_type": l.EventType, "error": l.Error, "attempts": l.Attempts, "replay": l.Replay, "retry_at": l.RetryAt,
		"created_at": l.CreatedAt, "updated_at": l.UpdatedAt,
	}
	switch {
	case json.Valid(l.Payload):
		o["payload"] = json.RawMessage(l.Payload)
	case l.Payload != nil && utf8.Valid(l.Payload):
		o["payload"] = string(l.Payload)
	case l.Payload != nil:
		o["payload_base64"] = base64.StdEncoding.EncodeToString(l.Payload)
	}
	if l.Metadata != nil {
		o["metadata"] = l.Metadata
	}
	return o
}

func (a *app) lettersShowVerb() *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use: "show NAME POSITION", Short: "show one dead letter", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Example: "  pgfrontier letters show totals_v1 1234 --payload",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			position, err := positionOf(args[1])
			if err != nil {
				return err
			}
			all, err := a.letters(ctx, args[0], ops.DeadLetterFilter{After: position - 1}, payload, 1)
			if err != nil {
				return err
			}
			if len(all) == 0 || all[0].Position != position {
				return refuse("consumer %q, position %d: %w", args[0], position, ops.ErrNoDeadLetter)
			}
			return a.print(object{"letter": letterObject(all[0])}, func() string { return letterText(all[0], payload) })
		}),
	}
	c.Flags().BoolVar(&payload, "payload", false, "with what the event carries")
	return c
}

func letterText(l ops.DeadLetter, payload bool) string {
	var f facts
	f.add("consumer", "%s", strings.TrimSpace(l.Consumer+" "+l.Partition))
	f.add("position", "%d", l.Position)
	f.add("event", "%s %s", l.EventType, l.EventID)
	f.add("aggregate", "%s %s", l.AggregateType, l.AggregateID)
	if l.Key != "" {
		f.add("key", "%s", l.Key)
	}
	f.add("attempts", "%d", l.Attempts)
	f.add("since", "%s", stamp(l.CreatedAt))
	f.add("tried", "%s", stamp(l.UpdatedAt))
	if l.RetryAt != nil {
		f.add("retry", "asked for at %s", stamp(*l.RetryAt))
	}
	f.add("error", "%s", dash(l.Error))
	if payload {
		f.add("payload", "%s", dash(string(l.Payload)))
		f.add("metadata", "%s", dash(string(l.Metadata)))
	}
	return f.String()
}

const lettersUse = "NAME {POSITION | --all | filters}"

func (a *app) lettersRetryVerb() *cobra.Command {
	return a.lettersChange("retry", "ask for another attempt", "Asks for another attempt at the dead letter at a position, or at all that the filters\ntake, and at all others of the same aggregates: they are handled in order.", "",
		func(ctx context.Context, o *ops.Operator, consumer string, position int64, by ops.By) error {
			return o.RetryDeadLetters(ctx, consumer, position, by)
		}, func(ctx context.Context, o *ops.Operator, consumer string, f ops.DeadLetterFilter, limit int, by ops.By) (int64, error) {
			return o.RetryDeadLettersWhere(ctx, consumer, f, limit, by)
		})
}

func (a *app) lettersDiscardVerb() *cobra.Command {
	return a.lettersChange("discard", "go on without the events", "Removes the dead letter at a position, or all that the filters take: the consumer does\nnot handle their events.", "The dead letters are deleted, and the consumer does not handle their events.",
		func(ctx context.Context, o *ops.Operator, consumer string, position int64, by ops.By) error {
			return o.DiscardDeadLetter(ctx, consumer, position, by)
		}, func(ctx context.Context, o *ops.Operator, consumer string, f ops.DeadLetterFilter, limit int, by ops.By) (int64, error) {
			return o.DiscardDeadLettersWhere(ctx, consumer, f, limit, by)
		})
}

// lettersChange is a verb that changes one dead letter, or many.
func (a *app) lettersChange(name, does, long, final string,
	one func(ctx context.Context, o *ops.Operator, consumer string, position int64, by ops.By) error,
	where func(ctx context.Context, o *ops.Operator, consumer string, f ops.DeadLetterFilter, limit int, by ops.By) (int64, error)) *cobra.Command {
	var f ops.DeadLetterFilter
	var all bool
	var limit int
	c := &cobra.Command{
		Use: name + " " + lettersUse, Short: does, Long: long, Args: cobra.RangeArgs(1, 2), ValidArgsFunction: a.consumerNames,
		Example: fmt.Sprintf("  pgfrontier letters %s totals_v1 1234 --reason \"the customer is there now\"\n  pgfrontier letters %s totals_v1 --error timeout --reason \"it answers\"", name, name),
		RunE: a.verb(func(ctx context.Context, args []string) error {
			conditions := f != (ops.DeadLetterFilter{})
			if len(args) == 2 {
				position, err := positionOf(args[1])
				if err != nil {
					return err
				}
				if conditions || all {
					return usage("a position is one dead letter: leave --all and the filters out")
				}
				return a.onConsumer(ctx, consumerChange{name, args[0], final, onRecord, func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
					return object{"position": position}, one(ctx, o, args[0], position, by)
				}})
			}
			if conditions == all {
				return usage("say which dead letters: a position, --all, or filters")
			}
			return a.onConsumer(ctx, consumerChange{name, args[0], final, onRecord, func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
				n, err := where(ctx, o, args[0], f, limit, by)
				return counted(n, limit), err
			}})
		}),
	}
	a.consumerChanges(c)
	filtered(c, &f)
	c.Flags().BoolVar(&all, "all", false, "all of the consumer")
	c.Flags().IntVar(&limit, "limit", 10_000, "how many at most, the first ones")
	return c
}
