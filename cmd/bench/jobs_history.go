package main

import (
	"context"
	"fmt"
	"time"
)

// jobsHistory compares a worker that removes finished jobs meanwhile with one that has
// nothing to remove.
func jobsHistory(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onJobs(ctx, func(l *lab, open func() (*jobBacklog, error)) error {
		b, err := open()
		if err != nil {
			return err
		}
		n := l.size.manyJobs / 5
		var busy, free []jobsRun
		removed, seconds := 0, 0.0
		for range l.size.jobRounds {
			r, err := b.runAll(ctx, n)
			if err != nil {
				return err
			}
			free = append(free, r)
			if err := b.finish(ctx, l.size.finished); err != nil {
				return err
			}
			before, err := b.old(ctx)
			if err != nil {
				return err
			}
			began := time.Now()
			if r, err = b.runAll(ctx, n); err != nil {
				return err
			}
			busy = append(busy, r)
			after, err := b.old(ctx)
			if err != nil {
				return err
			}
			removed, seconds = removed+before-after, seconds+time.Since(began).Seconds()
			if _, err := b.db.ExecContext(ctx, `DELETE FROM jobs_history WHERE kind = 'old'`); err != nil {
				return err
			}
		}
		part := fmt.Sprintf("%s jobs, while %s finished ones are removed", grouped(n), grouped(l.size.finished))
		rows = jobsRows(part, grouped(n)+" jobs", busy, free, 0.5)
		ran := float64(n * l.size.jobRounds)
		rows = append(rows, row{part: "removed meanwhile", measured: fmt.Sprintf("%s, %.1f for each that finishes, %s/s", grouped(removed), float64(removed)/ran, grouped(float64(removed)/seconds)),
			goal: ">= 1 for each, or all", reached: float64(removed) >= ran || removed == l.size.finished*l.size.jobRounds, counted: removed})
		return b.check(ctx)
	})
	return rows, err
}

// finish makes n jobs that have finished long ago, each with an attempt that failed.
func (b *jobBacklog) finish(ctx context.Context, n int) error {
	for _, statement := range []string{
		fmt.Sprintf(`
WITH old AS (
	INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, finished_at)
	SELECT nextval('jobs_id_seq'), 'old', 'default', 5, at, '{}', at, 2, 1, 0, 5, 'completed', at
	FROM (SELECT now() - interval '30 days' + i * interval '1 ms' AS at FROM generate_series(1, %d) AS i) AS one
	RETURNING id
)
INSERT INTO jobs_attempts (job_id, attempt, outcome, code, error) SELECT id, 1, 'error', 'E', 'boom' FROM old`, n),
		`VACUUM (ANALYZE) jobs_history, jobs_attempts`,
	} {
		if _, err := b.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (b *jobBacklog) old(ctx context.Context) (n int, err error) {
	err = b.db.QueryRowContext(ctx, `SELECT count(*) FROM jobs_history WHERE kind = 'old'`).Scan(&n)
	return n, err
}
