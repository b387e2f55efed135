package ops

import (
	"context"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Workers lists the registered workers of jobs in order of their heartbeats, the latest first.
// [Operator.Workers] says when the row of a dead worker is removed. The fields about consumers
// are empty. Able has the kinds of jobs.
func (o *Jobs) Workers(ctx context.Context) ([]Worker, error) {
	return read(ctx, &o.core, "list the workers of jobs", nil, pgdriver.Columns(func(w *Worker) []any { return append(w.columns(), pgdriver.JSON(&w.Able)) }), o.sql.workers)
}
