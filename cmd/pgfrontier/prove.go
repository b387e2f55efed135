package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) proveVerb() *cobra.Command {
	return &cobra.Command{
		Use: "prove NAME", Short: "whether each event was handled exactly once", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long: `Compares the log with the receipts that the workers write with their batches. It lists
the positions of events that were not handled, or more than once. The status is 1 if
there are any that no reset explains. It reads the whole log from the first receipt on, in one snapshot.
--timeout is for each 10,000 events.`,
		Example: `  pgfrontier prove totals_v1`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			stuck := time.AfterFunc(a.timeout, func() { cancel(context.DeadlineExceeded) })
			defer stuck.Stop()
			show := command.NewProgress(a.talk)
			p, err := o.Prove(ctx, args[0], func(position, of int64) {
				stuck.Reset(a.timeout)
				show.Show(fmt.Sprintf("position %d of %d", position, of))
			})
			show.Done()
			if err != nil {
				return err
			}
			if err := a.print(provenData(p), func() string { return provenText(p) }); err != nil || p.Holds() {
				return err
			}
			return saysNo
		}),
	}
}

func provenData(p *ops.Proof) object {
	return object{
		"holds": p.Holds(), "from": p.From, "to": p.To, "events": p.Events, "dead_letters": p.Pending,
		"unproven": listed(p.Unproven, func(u ops.Unproven) object {
			return object{"first": u.First, "last": u.Last, "events": u.Events, "reason": u.Reason, "operation": u.Operation}
		}),
	}
}

// provenText says what is proven, with a line for all that is not.
func provenText(p *ops.Proof) string {
	var b strings.Builder
	switch name := clean(p.Consumer); {
	case p.From > p.To:
		fmt.Fprintf(&b, "nothing is proven of %s yet: it has no receipts, or partitions at different positions\n", name)
	case p.Holds():
		fmt.Fprintf(&b, "proven: %s has handled each of %d events from position %d to %d once\n", name, p.Events, p.From, p.To)
	default:
		fmt.Fprintf(&b, "NOT proven: of the events from position %[2]d to %[3]d, %[1]s has handled %[4]d once, but\n", name, p.From, p.To, p.Events)
	}
	if p.Pending > 0 {
		fmt.Fprintf(&b, "dead letters, not handled yet: %d\n", p.Pending)
	}
	if len(p.Unproven) == 0 {
		return b.String()
	}
	t := newTable("POSITIONS", "OPERATION", "WHAT")
	for _, u := range p.Unproven {
		positions, operation := fmt.Sprint(u.First), "-"
		if u.Last > u.First {
			positions += fmt.Sprint(" to ", u.Last)
		}
		if u.Operation > 0 {
			operation = strconv.FormatInt(u.Operation, 10)
		}
		t.row(positions, operation, u.Reason)
	}
	return b.String() + t.String()
}
