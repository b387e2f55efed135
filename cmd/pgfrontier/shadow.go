package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) shadowVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "shadow NAME", Short: "let a new consumer begin without external effects", Args: cobra.ExactArgs(1),
		Long: `Lets a consumer that is not deployed yet begin as a shadow, at the first event: it
handles all events, and all of them as a replay. So the next version of a projection
builds its tables beside the version in use. Deploy its code afterwards, and let it take
over with the verb switch.`,
		Example: `  pgfrontier shadow totals_v2 --reason "totals with cents"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			return a.beginning(ctx, "shadow", args[0], func(ctx context.Context, o *ops.Operator, by ops.By) error { return o.Shadow(ctx, args[0], by) })
		}),
	})
}

func (a *app) beginVerb() *cobra.Command {
	var at string
	c := a.changes(&cobra.Command{
		Use: "begin NAME --at N|settled|TIME", Short: "let a new consumer begin at a position", Args: cobra.ExactArgs(1),
		Long: `Lets a consumer that is not deployed yet begin with the first event above a position,
whatever StartAt its code has. Deploy the code afterwards.

--at takes a position, beginning, settled, or a time (2026-01-02T15:04:05Z): then it
begins with the first event that was written then or later. It begins no further
than the log is settled.`,
		Example: `  pgfrontier begin mails --at settled --reason "no mail for old events"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			if _, err := a.by(); err != nil {
				return err // before the database is asked
			}
			position, err := a.target(ctx, "at", at)
			if err != nil {
				return err
			}
			return a.beginning(ctx, "begin", args[0], func(ctx context.Context, o *ops.Operator, by ops.By) error {
				return o.Begin(ctx, args[0], position, by)
			})
		}),
	})
	c.Flags().StringVar(&at, "at", "", "a position, beginning, settled, or a time (needed)")
	return c
}

// beginning lets a new consumer begin.
func (a *app) beginning(ctx context.Context, what, name string, begin func(ctx context.Context, o *ops.Operator, by ops.By) error) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	o, err := a.operator(ctx)
	if err != nil {
		return err
	}
	return a.carry(ctx, plan{
		what: what, name: name,
		preview: func(ctx context.Context) (preview, error) {
			would, err := o.Preview(func(o *ops.Operator) error { return begin(ctx, o, by) })
			return preview{effectsOf(would), nil}, err
		},
		do: func(ctx context.Context, _ *preview) (object, error) { return nil, begin(ctx, o, by) },
	})
}

func (a *app) switchVerb() *cobra.Command {
	var statements string
	c := a.consumerChanges(&cobra.Command{
		Use: "switch OLD NEW", Short: "let a shadow take over from a consumer", Args: cobra.ExactArgs(2), ValidArgsFunction: a.consumerNames,
		Long: `Lets the shadow NEW take over the external effects of OLD, which becomes a shadow. Over
both, each event has its effects once. The same with the names exchanged switches back.
Both may run: the switch is tried until it can be made, for --timeout at most.`,
		Example: `  pgfrontier switch totals_v1 totals_v2 --reason "it has caught up"`,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			var within func(ctx context.Context, tx *sql.Tx) error
			if statements != "" {
				within = func(ctx context.Context, tx *sql.Tx) error { return executeWithin(ctx, tx, statements) }
			}
			return a.onConsumer(ctx, consumerChange{what: "switch", name: args[1], decided: onNothing, do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
				return object{"from": args[0]}, o.Switch(ctx, args[0], args[1], by, within)
			}})
		}),
	})
	c.Flags().StringVar(&statements, "execute", "", "`SQL` to execute in the same transaction, such as a new view")
	return c
}

// executeWithin executes statements, and refuses those that begin or end a transaction: the server
// executes no such statement in EXECUTE.
func executeWithin(ctx context.Context, tx *sql.Tx, statements string) error {
	tag := strings.ReplaceAll(uuid.NewString(), "-", "") // which the statements do not have
	outer, inner := "$do"+tag+"$", "$q"+tag+"$"
	_, err := tx.ExecContext(ctx, "DO "+outer+" BEGIN EXECUTE "+inner+statements+inner+"; END "+outer, pgx.QueryExecModeSimpleProtocol)
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Routine == "exec_stmt_dynexecute" {
		err = fmt.Errorf("%w: --execute is part of the transaction of the switch: leave BEGIN and COMMIT out, and use no SAVEPOINT, COPY or SELECT INTO", err)
	}
	return err
}
