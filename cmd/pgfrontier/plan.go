package main

import (
	"context"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) planVerb() *cobra.Command {
	return &cobra.Command{
		Use: "plan FILE", Short: "what a build would change, before it runs", Args: cobra.ExactArgs(1),
		Long: `Compares the consumers of a build with the deployment, and changes nothing. FILE is
what the build prints of worker.Describe; - is the standard input. The status is 1 if
the build would change something.`,
		Example: `  pgfrontier plan build.json`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			build, err := a.file(args[0])
			if err != nil {
				return err
			}
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			all, err := o.Plan(ctx, build)
			if err != nil {
				return err
			}
			changes := slices.ContainsFunc(all, func(p ops.Planned) bool { return p.Changes })
			data := object{"changes": changes, "consumers": listed(all, func(p ops.Planned) object {
				return object{"name": p.Consumer, "changes": p.Changes, "says": listed(p.Says, func(s string) string { return s })}
			})}
			if err := a.print(data, func() string { return planText(all) }); err != nil || !changes {
				return err
			}
			return saysNo
		}),
	}
}

// file reads a file, or the standard input.
func (a *app) file(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.in)
	}
	return os.ReadFile(name)
}

// planText has a line for each thing that is to be said.
func planText(all []ops.Planned) string {
	t := newTable("CONSUMER", "CHANGES", "WHAT")
	for _, p := range all {
		changes := "no"
		if p.Changes {
			changes = "yes"
		}
		if len(p.Says) == 0 {
			t.row(p.Consumer, changes, "-")
		}
		for _, says := range p.Says {
			t.row(p.Consumer, changes, says)
		}
	}
	return t.String()
}
