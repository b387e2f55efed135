package jobs

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
)

// checkRights returns ErrPrivileges with every privilege that the role of this worker lacks. Some
// statements run for the first time after weeks, and would then fail for ever. Under row-level
// security, other statements would find no row and return no error: a paused queue would not seem
// paused. The tables of consumers are checked only if they exist.
func checkRights(ctx context.Context, conn *sql.Conn, lease bool, t tables.Jobs, events tables.Tables) error {
	needs := append(rights.JobsWorker(t, lease), rights.JobsEmitters(events)...)
	if err := rights.Check(ctx, conn, "", needs); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}

// hidden returns ErrPrivileges if row-level security may have hidden rows of the tables. An error
// of the check itself is ignored.
func (c *Client) hidden(ctx context.Context, on Querier, tables ...ident.Table) error {
	if remedy, err := rights.Hidden(ctx, on, tables...); err == nil && remedy != "" {
		return fmt.Errorf("jobs: %w: %s", ErrPrivileges, remedy)
	}
	return nil
}
