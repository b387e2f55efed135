package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) compareVerb() *cobra.Command {
	var asked ops.Comparison
	c := &cobra.Command{
		Use: "compare OLD NEW", Short: "whether two consumers have made the same rows", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long: `Compares the rows that two consumers have made, such as two versions of a projection,
in one snapshot in which both have handled the same events. It is tried until there is
one, for --timeout at most: both must keep up, and have no dead letters. The status is 1
if rows differ.`,
		Example: `  pgfrontier compare v1 v2 --old 'TABLE totals_1' --new 'TABLE totals_2'`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			asked.Old, asked.New = args[0], args[1]
			found, err := o.Compare(ctx, asked)
			if err != nil {
				return err
			}
			same := func(row string) string { return row }
			data := object{"position": found.Position, "only_old": listed(found.OnlyOld, same), "only_new": listed(found.OnlyNew, same)}
			if err := a.print(data, func() string { return compared(asked, found) }); err != nil || len(found.OnlyOld)+len(found.OnlyNew) == 0 {
				return err
			}
			return saysNo
		}),
	}
	c.Flags().StringVar(&asked.OldRows, "old", "", "`query` of the rows of OLD (needed)")
	c.Flags().StringVar(&asked.NewRows, "new", "", "`query` of the rows of NEW (needed)")
	_ = c.MarkFlagRequired("old") // which cannot fail: the flag is there
	_ = c.MarkFlagRequired("new")
	return c
}

// compared lists the rows that differ, of which Compare returns so many at most.
func compared(asked ops.Comparison, found ops.Compared) string {
	const most = 100
	var b strings.Builder
	for _, only := range []struct {
		name string
		rows []string
	}{{asked.Old, found.OnlyOld}, {asked.New, found.OnlyNew}} {
		for _, row := range only.rows {
			fmt.Fprintf(&b, "only of %s: %s\n", clean(only.name), clean(row))
		}
		if len(only.rows) == most {
			fmt.Fprintf(&b, "and perhaps more of %s\n", clean(only.name))
		}
	}
	if b.Len() == 0 {
		return fmt.Sprintf("the rows are the same, up to position %d\n", found.Position)
	}
	return b.String()
}
