package ops

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Count is a number of jobs, up to 10,000. A higher Count means more than 10,000.
type Count int

const maxCountedJobs = 10_000

// String returns the number, or "more than 10000".
func (c Count) String() string {
	if c > maxCountedJobs {
		return fmt.Sprintf("more than %d", maxCountedJobs)
	}
	return fmt.Sprint(int(c))
}

// add adds n.
func (c *Count) add(n Count) { *c = min(*c+n, maxCountedJobs+1) }

// Queue is the state of a queue.
type Queue struct {
	Name      string         // [AllQueues]: all queues together
	Paused    *Pause         // nil: it is not paused
	Cap       *int           // nil: none
	Retention *time.Duration // of finished jobs; nil: that of AllQueues, or else of the workers

	Scheduled Count // due later
	Due       Count
	Running   Count // prefetched jobs included
	Failed    Count // in the history

	// Unacknowledged counts the failed jobs that Acknowledge has not marked.
	Unacknowledged Count

	OldestDue time.Duration // how long the first due job has been due, by the database's clock; 0: no job is due
}

// Unserved lists queues that have due jobs but no worker that claims from them, by name, at
// most 100. Paused queues are left out. A worker whose queues are not known counts as a worker
// of all queues.
func (o *Jobs) Unserved(ctx context.Context) ([]string, error) {
	queues, err := o.queue.Unserved(ctx, o.db)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: %w", o.explain(err)))
	}
	return queues, nil
}

// Queues lists the queues that have unfinished or failed jobs, or settings, in order of name,
// from one snapshot. The first is always [AllQueues]. Queues counts at most 10,001 jobs for
// each number, so its cost is bounded for long queues, too.
func (o *Jobs) Queues(ctx context.Context) ([]Queue, error) {
	queues, err := pgdriver.ReadAll(ctx, o.db, func(r *sql.Rows) (q Queue, err error) {
		var since sql.NullTime
		var by, reason sql.NullString
		var limit, retention sql.NullInt64
		var oldest int64
		err = r.Scan(&q.Name, &since, &by, &reason, &limit, &retention, &q.Scheduled, &q.Due, &q.Running, &q.Failed, &q.Unacknowledged, &oldest)
		q.OldestDue = time.Duration(oldest) * time.Microsecond
		q.Paused, q.Cap, q.Retention = pauseOf(since, by, reason), capOf(limit), retentionOf(retention)
		return q, err
	}, o.queuesSQL())
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the queues: %w", o.explain(err)))
	}
	all := &queues[0]
	for _, q := range queues[1:] {
		all.Scheduled.add(q.Scheduled)
		all.Due.add(q.Due)
		all.Running.add(q.Running)
		all.Failed.add(q.Failed)
		all.Unacknowledged.add(q.Unacknowledged)
		all.OldestDue = max(all.OldestDue, q.OldestDue)
	}
	return queues, nil
}

// queuesSQL finds the name of each queue by one index lookup.
func (o *Jobs) queuesSQL() string {
	var b strings.Builder
	b.WriteString("\nWITH RECURSIVE ")
	names := []string{}
	for i, s := range []struct{ table, where string }{
		{o.t.Jobs.SQL(), `state = 'available'`}, {o.t.Jobs.SQL(), `state = 'running'`}, {o.t.History.SQL(), `state <> 'completed'`},
	} {
		name := fmt.Sprint("of", i)
		first := `SELECT queue FROM ` + s.table + ` AS j WHERE ` + s.where
		fmt.Fprintf(&b, `%[1]s(queue) AS (
	(%[2]s ORDER BY queue LIMIT 1)
	UNION ALL
	SELECT (%[2]s AND j.queue > %[1]s.queue ORDER BY queue LIMIT 1) FROM %[1]s WHERE queue IS NOT NULL
), `, name, first)
		names = append(names, `SELECT queue FROM `+name+` WHERE queue IS NOT NULL`)
	}
	count := func(from string) string {
		return fmt.Sprintf("\n\t(SELECT count(*) FROM (%s LIMIT %d) AS counted)", from, maxCountedJobs+1)
	}
	of := func(table, where string) string {
		return `SELECT FROM ` + table + ` AS j WHERE ` + where + ` AND j.queue = n.name`
	}
	// Within a priority, the index has due jobs first.
	lanes := func(due string) string {
		return `SELECT FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (` +
			of(o.t.Jobs.SQL(), `state = 'available'`) + ` AND priority = p::smallint AND run_at ` + due + ` statement_timestamp() ORDER BY run_at` + fmt.Sprintf(" LIMIT %d) AS lane", maxCountedJobs+1)
	}
	oldest := `
	(SELECT coalesce(` + pgdriver.Age(`min(first.run_at)`) + `, 0)
	FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (SELECT j.run_at FROM ` + o.t.Jobs.SQL() + ` AS j
		WHERE state = 'available' AND j.queue = n.name AND priority = p::smallint ORDER BY run_at LIMIT 1) AS first)`
	b.WriteString(`names(name) AS (
	SELECT '` + AllQueues + `' UNION SELECT name FROM ` + o.t.Queues.SQL() + `
	WHERE paused_at IS NOT NULL OR max_running IS NOT NULL OR retention IS NOT NULL UNION ` + strings.Join(names, ` UNION `) + `
)
SELECT n.name, ` + pgdriver.Time(`s.paused_at`) + `, s.paused_by, s.paused_reason, s.max_running, ` + microsSQL + `,` +
		count(lanes(`>`)) + `,` + count(lanes(`<=`)) + `,` +
		count(of(o.t.Jobs.SQL(), `state = 'running'`)) + `,` + count(of(o.t.History.SQL(), `state = 'failed' AND state <> 'completed'`)) + `,` +
		count(of(o.t.History.SQL(), `state = 'failed' AND acknowledged_at IS NULL`)) + `,` + oldest + `
FROM names AS n LEFT JOIN ` + o.t.Queues.SQL() + ` AS s ON s.name = n.name
ORDER BY n.name <> '` + AllQueues + `', n.name COLLATE "C"`)
	return b.String()
}
