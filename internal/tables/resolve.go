package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Resolve returns the tables of a worker under the names that they have with
// their schema, as q's session finds them now. The log's tables stay as they
// are: the event store resolves its own.
func (t Tables) Resolve(ctx context.Context, q store.Querier) (Tables, error) {
	for _, table := range []*ident.Table{&t.Nodes, &t.Assignments, &t.Checkpoints, &t.GapSkips, &t.Leader,
		&t.Token, &t.Settled, &t.Changes, &t.Version, &t.DeadLetters, &t.Operations} {
		err := q.QueryRowContext(ctx, `
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text) AND c.relpersistence <> 't'`, table.SQL()).Scan(&table.Schema, &table.Name)
		if errors.Is(err, sql.ErrNoRows) {
			return t, fmt.Errorf("there is no table %s that is not a temporary one: apply the migrations, or give its name with the schema", table)
		}
		if err != nil {
			return t, fmt.Errorf("look for table %s: %w", table, err)
		}
	}
	return t, nil
}
