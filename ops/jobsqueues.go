package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Count is a number of jobs, up to 10,000. A higher Count means more than 10,000.
type Count int

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
	return queues, o.fail("compare the queues with the workers", err)
}

// Queues lists the queues that have unfinished or failed jobs, or settings, in order of name,
// from one snapshot. The first is always [AllQueues]. Queues counts at most 10,001 jobs for
// each number, so its cost is bounded for long queues, too.
func (o *Jobs) Queues(ctx context.Context) ([]Queue, error) {
	queues, err := read(ctx, &o.core, "list the queues", nil, pgdriver.Columns(func(q *Queue) []any {
		to := append([]any{&q.Name}, pauseInto(&q.Paused)...)
		return append(to, &q.Cap, retentionInto(&q.Retention), &q.Scheduled, &q.Due, &q.Running, &q.Failed, &q.Unacknowledged, pgdriver.Duration(&q.OldestDue))
	}), o.sql.queues)
	if err != nil {
		return nil, err
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
