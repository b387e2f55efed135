package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) blockedVerb() *cobra.Command {
	var pid int
	var queries bool
	var c *cobra.Command
	c = &cobra.Command{
		Use: "blocked", Short: "the transactions that may hold the consumers back", Args: cobra.NoArgs,
		Long: `Lists the transactions that have drawn positions of the log and have not ended,
the oldest first, and what ends each. Young ones are normal.

--terminate ends the session of one of them, which rolls it back, if it is still
in the transaction that was shown. The role must be allowed to: a member of
pg_signal_backend, or of the session's own role.`,
		Example: "  pgfrontier blocked\n  pgfrontier blocked --terminate 4242 --reason \"an import that nobody waits for\"",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			ends := c.Flags().Changed("terminate")
			if ends && pid < 1 {
				return usage("--terminate %d: it is the pid of a session, which a prepared transaction does not have", pid)
			}
			all, err := a.blockers(ctx, queries)
			if err != nil {
				return err
			}
			if ends {
				return a.terminate(ctx, all, pid)
			}
			return a.print(object{"blockers": listed(all, blockerObject)}, func() string { return blockersTable(all, queries) })
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().IntVar(&pid, "terminate", 0, "end the session with this pid")
	c.Flags().BoolVar(&queries, "queries", false, "with the latest statement of each, which may hold values of users")
	return a.changes(c)
}

func (a *app) blockers(ctx context.Context, queries bool) ([]ops.Blocker, error) {
	o, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return o.Blockers(ctx, queries)
}

func blockersTable(all []ops.Blocker, queries bool) string {
	if len(all) == 0 {
		return "no transaction that has drawn positions is open\n"
	}
	t := newTable(">PID", ">AGE", "USER", "STATE", "CLIENT", "~APPLICATION")
	var more strings.Builder
	for _, b := range all {
		t.row(b.PID, age(b), dash(b.User), dash(b.State), dash(b.Client), dash(b.Application))
		fmt.Fprintf(&more, "%s\n", clean(fmt.Sprintf("%d: %s", b.PID, b.Remedy())))
		if queries {
			fmt.Fprintf(&more, "%s\n", clean(fmt.Sprintf("%d: %s", b.PID, dash(b.Query))))
		}
	}
	return t.String() + "\n" + more.String()
}

// age of a transaction, if this role may see it.
func age(b ops.Blocker) string {
	if b.Start == nil {
		return "?"
	}
	return short(b.Age)
}

func blockerObject(b ops.Blocker) object {
	return object{
		"pid": b.PID, "gid": b.GID, "user": b.User, "application": b.Application, "client": b.Client, "state": b.State,
		"age_seconds": seconds(b.Age), "state_age_seconds": seconds(b.StateAge), "backend_start": b.BackendStart, "start": b.Start,
		"query": b.Query, "remedy": b.Remedy(),
	}
}

// terminate ends the session that was shown, and no later one with the same pid.
func (a *app) terminate(ctx context.Context, all []ops.Blocker, pid int) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(b ops.Blocker) bool { return b.PID == pid })
	if at < 0 {
		return refuse("no transaction of pid %d holds positions of the log: blocked lists those that do", pid)
	}
	o, err := a.operator(ctx)
	if err != nil {
		return err
	}
	return a.carry(ctx, plan{
		what: "terminate", name: strconv.Itoa(pid),
		final: "Its transaction is rolled back, and its client loses the connection.",
		preview: func(ctx context.Context) (preview, error) {
			would, err := o.Preview(func(o *ops.Operator) error { return o.Terminate(ctx, all[at], by) })
			return preview{effectsOf(would), nil}, err
		},
		do: func(ctx context.Context, _ *preview) (object, error) { return object{}, o.Terminate(ctx, all[at], by) },
	})
}
