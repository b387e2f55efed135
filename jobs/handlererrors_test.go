package jobs_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
)

// The error of a job whose handler has left its connection unusable names what the handler did.
func TestHandlerLeavesConnectionUnusable(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const aborted, open = 1, 2
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
		if j.Args.N == aborted {
			_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
			return nil
		}
		rows, err := tx.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
		if err != nil {
			return err
		}
		rows.Next()
		return nil
	}, jobs.MaxAttempts(1))
	says := map[int]string{aborted: "return the error of that statement", open: "the handler left Rows open: close them"}
	for name, db := range map[string]*sql.DB{"pgx": s.d.DB, "lib/pq": s.d.OpenPQ(t)} {
		_, stop := s.runOn(db)
		for n, text := range says {
			id := s.add(task{n})
			s.until("job of "+name+" to say "+text, func() bool {
				i, err := s.Get(t.Context(), id)
				return err == nil && strings.Contains(i.Error, text)
			})
		}
		if err := stop(); err != nil {
			t.Errorf("%s: the worker ended with %v", name, err)
		}
	}
}
