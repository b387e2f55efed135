package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Resolve returns the tables of a worker with their schema, as q's session finds them now. The
// log's tables stay unchanged, since the event store resolves its own.
func (t Tables) Resolve(ctx context.Context, q store.Querier) (Tables, error) {
	err := resolve(ctx, q, &t.Nodes, &t.Stopped, &t.Assignments, &t.Checkpoints, &t.GapSkips, &t.Leader,
		&t.Token, &t.Settled, &t.Changes, &t.Version, &t.DeadLetters, &t.Operations)
	return t, err
}

// Resolve returns the tables of jobs with their schema, as q's session finds them now.
func (t Jobs) Resolve(ctx context.Context, q store.Querier) (Jobs, error) {
	err := resolve(ctx, q, &t.Jobs, &t.History, &t.Attempts, &t.Logs, &t.Queues, &t.Wanted, &t.Operations,
		&t.Once, &t.Emitted, &t.EmittedThrough, &t.Flows, &t.FlowRuns, &t.FlowSteps, &t.FlowSweep, &t.Workers, &t.Stopped, &t.Leader, &t.Token, &t.Changes, &t.Version)
	return t, err
}

func resolve(ctx context.Context, q store.Querier, all ...*ident.Table) error {
	for _, table := range all {
		err := q.QueryRowContext(ctx, `
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text) AND c.relpersistence <> 't'`, table.SQL()).Scan(&table.Schema, &table.Name)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("there is no table %s that is not a temporary one: apply the migrations, or give its name with the schema", table)
		}
		if err != nil {
			return fmt.Errorf("find table %s: %w", table, err)
		}
	}
	return nil
}
