package ops

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// queueOps are the operations on queues.
type queueOps struct{ *jobsCore }

// Forever is the retention of finished jobs that are never deleted.
const Forever = time.Duration(math.MaxInt64)

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
func (o *queueOps) Unserved(ctx context.Context) ([]string, error) {
	queues, err := o.queue.Unserved(ctx, o.db)
	return queues, o.fail("compare the queues with the workers", err)
}

// Queues lists the queues that have unfinished or failed jobs, or settings, in order of name,
// from one snapshot. The first is always [AllQueues]. Queues counts at most 10,001 jobs
// per number, so its cost is bounded for long queues, too.
func (o *queueOps) Queues(ctx context.Context) ([]Queue, error) {
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

// retentionInto is a destination of the column microsSQL. NULL is nil.
func retentionInto(to **time.Duration) sql.Scanner {
	return pgdriver.Destination(func(column any) error {
		var d time.Duration
		err := pgdriver.Duration(&d).Scan(column)
		if d >= Forever-time.Second { // Forever is stored rounded, by some milliseconds
			d = Forever
		}
		if column != nil {
			*to = &d
		}
		return err
	})
}

// lockedQueue is a queue whose row the transaction has locked, with its settings.
type lockedQueue struct {
	jobsTx
	name      string
	paused    *Pause
	limit     *int
	retention *time.Duration
}

// set changes the settings of a queue, whose row it locks. It creates the row if it is missing.
func (o *queueOps) set(ctx context.Context, kind Kind, queue string, by By, invalid error, do func(was lockedQueue) (detail any, err error)) error {
	return o.changeJobs(ctx, onQueue(kind, queue, by), errtext.Join(checkQueue(queue), invalid), func(c jobsTx) (any, error) {
		was, err := lockQueue(ctx, c, queue)
		if err != nil {
			return nil, err
		}
		return do(was)
	})
}

func lockQueue(ctx context.Context, c jobsTx, name string) (lockedQueue, error) {
	q := lockedQueue{jobsTx: c, name: name}
	_, err := c.tx.ExecContext(ctx, `INSERT INTO `+c.t.Queues.SQL()+` (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING`, name)
	if err == nil {
		err = c.tx.QueryRowContext(ctx, `
SELECT `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason, max_running, `+microsSQL+` FROM `+c.t.Queues.SQL()+` WHERE name = $1::text FOR NO KEY UPDATE`, name).
			Scan(append(pauseInto(&q.paused), &q.limit, retentionInto(&q.retention))...)
	}
	if err != nil {
		return q, lockError(ctx, "its row in "+c.t.Queues.String(), "a claim or another operator keeps for a moment", err)
	}
	return q, nil
}

// update changes the row of the queue.
func (q lockedQueue) update(ctx context.Context, what, change string, args ...any) error {
	_, err := exec(ctx, q.tx, what, `UPDATE `+q.t.Queues.SQL()+` SET `+change+` WHERE name = $1::text`, append([]any{q.name}, args...)...)
	return err
}

// PauseQueue keeps the workers from claiming jobs of a queue, or of [AllQueues], until
// ResumeQueue. Jobs that were claimed before run on, and prefetched jobs start. So do the jobs
// of a claim in flight. New jobs may be enqueued. The queue may be new. A queue and AllQueues
// are paused independently: to resume one does not resume the other. If the queue is already
// paused, PauseQueue changes nothing and returns [ErrUnchanged].
func (o *queueOps) PauseQueue(ctx context.Context, queue string, by By) error {
	return o.set(ctx, KindPause, queue, by, nil, func(was lockedQueue) (any, error) {
		if p := was.paused; p != nil {
			return nil, pausedError(p)
		}
		return queuePauseDetail{}, was.update(ctx, "pause", `paused_at = clock_timestamp(), paused_by = $2::text, paused_reason = $3::text`, by.Operator, by.Reason)
	})
}

// ResumeQueue lets the workers claim jobs of a paused queue again. It returns [ErrUnchanged] if
// the queue is not paused.
func (o *queueOps) ResumeQueue(ctx context.Context, queue string, by By) error {
	return o.set(ctx, KindResume, queue, by, nil, func(was lockedQueue) (any, error) {
		if was.paused == nil {
			return nil, errNotPaused
		}
		return queuePauseDetail{Since: &was.paused.Since}, was.update(ctx, "resume", `paused_at = NULL, paused_by = NULL, paused_reason = NULL`)
	})
}

type queuePauseDetail struct {
	Since *time.Time `json:"paused_since,omitempty"` // only in a resume
}

// SetCap sets how many jobs of a queue may run at once in all workers. Prefetched jobs count. The
// cap of [AllQueues] applies to all queues together, in addition to the caps of single queues.
// Running jobs run on, even above a lower cap. With 0 no job starts, as if the queue were paused.
// RemoveCap removes the cap. If the cap is already limit, SetCap returns [ErrUnchanged].
func (o *queueOps) SetCap(ctx context.Context, queue string, limit int, by By) error {
	var invalid error
	if limit < 0 || limit > math.MaxInt32 {
		invalid = fmt.Errorf("%w: the cap is %d, allowed is 0 to %d; RemoveCap removes it", ErrInvalid, limit, math.MaxInt32)
	}
	return o.setCap(ctx, queue, &limit, by, invalid)
}

// RemoveCap removes the cap of a queue, or of [AllQueues]. It returns [ErrUnchanged] if there
// is no cap.
func (o *queueOps) RemoveCap(ctx context.Context, queue string, by By) error {
	return o.setCap(ctx, queue, nil, by, nil)
}

func (o *queueOps) setCap(ctx context.Context, queue string, limit *int, by By, invalid error) error {
	return o.set(ctx, KindCap, queue, by, invalid, func(was lockedQueue) (any, error) {
		if equal(was.limit, limit) {
			return nil, unchanged("the cap", limit)
		}
		return capDetail{was.limit, limit}, was.update(ctx, "set the cap", `max_running = $2::int`, limit)
	})
}

// SetRetention sets how long the finished jobs of a queue are kept. It overrides the retention
// of the workers. The retention of [AllQueues] applies to all queues without a retention of
// their own. With [Forever], finished jobs are never deleted, with 0 at once. With 0, most
// completed jobs are not recorded in the first place, see [jobs.WithRetention]. RemoveRetention
// removes the setting. If the retention is already d, SetRetention returns [ErrUnchanged].
func (o *queueOps) SetRetention(ctx context.Context, queue string, d time.Duration, by By) error {
	var invalid error
	if d < 0 || d%time.Microsecond != 0 && d != Forever {
		invalid = fmt.Errorf("%w: the retention is %v, allowed is 0 or more, in whole microseconds; RemoveRetention leaves it to the workers, Forever keeps all", ErrInvalid, d)
	}
	return o.setRetention(ctx, queue, &d, by, invalid)
}

// RemoveRetention removes the retention of a queue. The retention of [AllQueues] then applies.
// If there is none, the retention of the workers applies. RemoveRetention returns
// [ErrUnchanged] if the queue has no retention.
func (o *queueOps) RemoveRetention(ctx context.Context, queue string, by By) error {
	return o.setRetention(ctx, queue, nil, by, nil)
}

func (o *queueOps) setRetention(ctx context.Context, queue string, d *time.Duration, by By, invalid error) error {
	return o.set(ctx, KindRetention, queue, by, invalid, func(was lockedQueue) (any, error) {
		if equal(was.retention, d) {
			return nil, unchanged("the retention", textOf(d))
		}
		var micros *int64
		if d != nil {
			n := d.Microseconds()
			micros = &n
		}
		return retentionDetail{textOf(was.retention), textOf(d)}, was.update(ctx, "set the retention", `retention = $2::bigint * interval '1 microsecond'`, micros)
	})
}

type capDetail struct {
	From *int `json:"from"` // null: none
	To   *int `json:"to"`
}

type retentionDetail struct {
	From *string `json:"from"` // null: as the workers say
	To   *string `json:"to"`
}

func textOf(d *time.Duration) *string {
	if d == nil {
		return nil
	}
	text := "forever"
	if *d != Forever {
		text = d.String()
	}
	return &text
}

func equal[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func unchanged[T any](what string, value *T) error {
	if value == nil {
		return fmt.Errorf("%w: it has none", errSet)
	}
	return fmt.Errorf("%w: %s is %v", errSet, what, *value)
}
