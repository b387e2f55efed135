package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/ops"
)

const recent = 5 // dead letters and operations that the verb consumer shows

func (a *app) consumerVerb() *cobra.Command {
	return &cobra.Command{
		Use: "consumer NAME", Short: "all about one consumer", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long:    "Shows how one consumer stands: its position, the event that it gets next, which\nis what skip takes, the last error, its first dead letters and latest\noperations. Where workers disagree on its partitions, it lists their demands.",
		Example: `  pgfrontier consumer totals_v1`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			d, err := a.about(ctx, args[0])
			if err != nil {
				return err
			}
			return a.print(d.object(), d.text)
		}),
	}
}

// dossier is all about one consumer.
type dossier struct {
	view
	ops.Consumer
	next       []ops.Next
	letters    []ops.DeadLetter
	operations []ops.Operation
	errors     []alarms.UnitError
}

func (a *app) about(ctx context.Context, name string) (d dossier, err error) {
	if d.view, err = a.poll(ctx); err != nil {
		return d, err
	}
	for _, c := range d.consumers {
		if c.Name == partition.Consumer(name) {
			d.Consumer = c
		}
	}
	if d.Name == "" {
		return d, unknownConsumer(name, d.consumers)
	}
	for _, w := range d.workers {
		for _, t := range alarms.UnitErrors(w.Status) {
			if t.Consumer == d.Name {
				d.errors = append(d.errors, t)
			}
		}
	}
	o, err := a.operator(ctx)
	if err != nil {
		return d, err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	if d.next, err = o.Next(ctx, d.Name); err != nil {
		return d, err
	}
	if d.letters, err = o.FilterDeadLetters(ctx, d.Name, ops.DeadLetterFilter{}, false, recent); err != nil {
		return d, err
	}
	d.operations, err = o.Operations(ctx, ops.OperationFilter{Consumer: d.Name}, recent)
	return d, err
}

func (d dossier) text() string {
	var f facts
	f.add("consumer", "%s", d.Name)
	f.add("state", "%s", d.state(d.Consumer))
	if p := d.Paused; p != nil {
		f.add("paused", "since %s by %s: %s", stamp(p.Since), p.By.Operator, p.By.Reason)
	}
	if d.RenamedTo != "" {
		f.add("renamed", "to %s", d.RenamedTo)
	}
	if d.Shadow {
		f.add("shadow", "another consumer has the effects of its events, until a switch")
	}
	f.add("position", "%d, %d behind the head, the oldest event waits %s", d.Position, d.HeadLag, short(d.OldestAge))
	f.add("revision", "%d, changed %s", d.Revision, stamp(d.UpdatedAt))
	if len(d.Units) == 0 {
		f.add("worker", "%s", d.place(d.Worker))
	}
	if d.Wanted > 0 || d.Fixed > 0 {
		f.add("partitions", "%d wanted, %d fixed by an operator", d.Wanted, d.Fixed)
	}
	if s := d.Scope; s != nil {
		f.add("selects", "%s", scope.Of(s.Types, s.Version, "", s.Projection).Words())
	}
	if says := d.disagreement(d.Consumer); says != "" {
		f.add("demand", "%s", says)
	}
	f.add("in doubt", "%d ranges of positions", d.OpenRanges)
	f.add("letters", "%d", d.DeadLetters)
	for _, e := range alarms.Share(d.errors) {
		f.add("error", "%s: %s", e.Name(), e.Message())
	}
	parts := []string{f.String()}
	if len(d.Units) > 0 {
		t := newTable("UNIT", ">POSITION", ">BEHIND", ">OLDEST", "STATE", ">LETTERS", "~WORKER")
		for _, u := range d.Units {
			t.row(u.Name, u.Position, u.HeadLag, short(u.OldestAge), d.unitState(u.Paused, u.Worker), u.DeadLetters, d.place(u.Worker))
		}
		parts = append(parts, t.String())
	}
	t := newTable("NEXT OF", ">POSITION", "TYPE", "~AGGREGATE")
	for _, n := range d.next {
		switch {
		case n.Position == 0:
			t.row(n.Consumer, "-", "-", "-")
		case n.Late:
			t.row(n.Consumer, n.Position, n.EventType+" (late)", n.AggregateType+" "+n.AggregateID)
		default:
			t.row(n.Consumer, n.Position, n.EventType, n.AggregateType+" "+n.AggregateID)
		}
	}
	parts = append(parts, t.String())
	if len(d.letters) > 0 {
		parts = append(parts, lettersTable(d.letters))
	}
	if len(d.operations) > 0 {
		parts = append(parts, operationsTable(d.operations))
	}
	return strings.Join(parts, "\n")
}

func (d dossier) object() object {
	o := d.consumer(d.Consumer)
	o["next"] = listed(d.next, func(n ops.Next) object {
		if n.Position == 0 {
			return object{"consumer": n.Consumer, "checkpoint": n.Checkpoint, "position": nil}
		}
		return object{
			"consumer": n.Consumer, "checkpoint": n.Checkpoint, "position": n.Position, "late": n.Late,
			"event_id": n.EventID, "event_type": n.EventType, "aggregate_type": n.AggregateType, "aggregate_id": n.AggregateID,
		}
	})
	o["partitions_disagreement"] = nil
	if says := d.disagreement(d.Consumer); says != "" {
		o["partitions_disagreement"] = says
	}
	return object{
		"consumer":   o,
		"errors":     listed(d.errors, func(e alarms.UnitError) object { return object{"unit": e.Unit, "error": e.Text} }),
		"letters":    listed(d.letters, letterObject),
		"operations": listed(d.operations, operationObject),
	}
}
