package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Forever is the retention of finished jobs that are never deleted.
const Forever = time.Duration(math.MaxInt64)

// settings are the settings of a queue whose row the transaction has locked.
type settings struct {
	paused    *Pause
	limit     *int
	retention *time.Duration
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

// set changes the settings of a queue, whose row it locks. It creates the row if it is missing.
func (o *Jobs) set(ctx context.Context, kind Kind, queue string, by By, invalid error, do func(tx *sql.Tx, was settings) (detail any, err error)) error {
	return o.changeJobs(ctx, onQueue(kind, queue, by), errtext.Join(checkQueue(queue), invalid), func(tx *sql.Tx) (any, error) {
		was, err := o.lockQueue(ctx, tx, queue)
		if err != nil {
			return nil, err
		}
		return do(tx, was)
	})
}

func (o *Jobs) lockQueue(ctx context.Context, tx *sql.Tx, queue string) (s settings, err error) {
	what, holder := "its row in "+o.t.Queues.String(), "a claim or another operator keeps for a moment"
	_, err = tx.ExecContext(ctx, `INSERT INTO `+o.t.Queues.SQL()+` (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING`, queue)
	if err != nil {
		return s, lockError(ctx, what, holder, err)
	}
	err = tx.QueryRowContext(ctx, `
SELECT `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason, max_running, `+microsSQL+` FROM `+o.t.Queues.SQL()+` WHERE name = $1::text FOR NO KEY UPDATE`, queue).
		Scan(append(pauseInto(&s.paused), &s.limit, retentionInto(&s.retention))...)
	if err != nil {
		return s, lockError(ctx, what, holder, err)
	}
	return s, nil
}

// update changes a row that lockQueue has locked.
func (o *Jobs) update(ctx context.Context, tx *sql.Tx, what, change, queue string, args ...any) error {
	_, err := exec(ctx, tx, what, `UPDATE `+o.t.Queues.SQL()+` SET `+change+` WHERE name = $1::text`, append([]any{queue}, args...)...)
	return err
}

// PauseQueue keeps the workers from claiming jobs of a queue, or of [AllQueues], until
// ResumeQueue. Jobs that were claimed before run on, and prefetched jobs start. So do the jobs
// of a claim in flight. New jobs may be enqueued. The queue may be new. A queue and AllQueues
// are paused independently: to resume one does not resume the other. If the queue is already
// paused, PauseQueue changes nothing and returns [ErrUnchanged].
func (o *Jobs) PauseQueue(ctx context.Context, queue string, by By) error {
	return o.set(ctx, KindPause, queue, by, nil, func(tx *sql.Tx, was settings) (any, error) {
		if p := was.paused; p != nil {
			return nil, pausedError(p)
		}
		return queuePauseDetail{}, o.update(ctx, tx, "pause", `paused_at = clock_timestamp(), paused_by = $2::text, paused_reason = $3::text`, queue, by.Operator, by.Reason)
	})
}

// ResumeQueue lets the workers claim jobs of a paused queue again. It returns [ErrUnchanged] if
// the queue is not paused.
func (o *Jobs) ResumeQueue(ctx context.Context, queue string, by By) error {
	return o.set(ctx, KindResume, queue, by, nil, func(tx *sql.Tx, was settings) (any, error) {
		if was.paused == nil {
			return nil, errNotPaused
		}
		return queuePauseDetail{Since: &was.paused.Since}, o.update(ctx, tx, "resume", `paused_at = NULL, paused_by = NULL, paused_reason = NULL`, queue)
	})
}

type queuePauseDetail struct {
	Since *time.Time `json:"paused_since,omitempty"` // only in a resume
}

// SetCap sets how many jobs of a queue may run at once in all workers. Prefetched jobs count. The
// cap of [AllQueues] applies to all queues together, in addition to the caps of single queues.
// Running jobs run on, even above a lower cap. With 0 no job starts, as if the queue were paused.
// RemoveCap removes the cap. If the cap is already limit, SetCap returns [ErrUnchanged].
func (o *Jobs) SetCap(ctx context.Context, queue string, limit int, by By) error {
	var invalid error
	if limit < 0 || limit > math.MaxInt32 {
		invalid = fmt.Errorf("%w: the cap is %d, allowed is 0 to %d; RemoveCap removes it", ErrInvalid, limit, math.MaxInt32)
	}
	return o.setCap(ctx, queue, &limit, by, invalid)
}

// RemoveCap removes the cap of a queue, or of [AllQueues]. It returns [ErrUnchanged] if there
// is no cap.
func (o *Jobs) RemoveCap(ctx context.Context, queue string, by By) error {
	return o.setCap(ctx, queue, nil, by, nil)
}

func (o *Jobs) setCap(ctx context.Context, queue string, limit *int, by By, invalid error) error {
	return o.set(ctx, KindCap, queue, by, invalid, func(tx *sql.Tx, was settings) (any, error) {
		if equal(was.limit, limit) {
			return nil, unchanged("the cap", limit)
		}
		return capDetail{was.limit, limit}, o.update(ctx, tx, "set the cap", `max_running = $2::int`, queue, limit)
	})
}

// SetRetention sets how long the finished jobs of a queue are kept. It overrides the retention
// of the workers. The retention of [AllQueues] applies to all queues without a retention of
// their own. With [Forever], finished jobs are never deleted, with 0 at once. With 0, most
// completed jobs are not recorded in the first place, see [jobs.WithRetention]. RemoveRetention
// removes the setting. If the retention is already d, SetRetention returns [ErrUnchanged].
func (o *Jobs) SetRetention(ctx context.Context, queue string, d time.Duration, by By) error {
	var invalid error
	if d < 0 || d%time.Microsecond != 0 && d != Forever {
		invalid = fmt.Errorf("%w: the retention is %v, allowed is 0 or more, in whole microseconds; RemoveRetention leaves it to the workers, Forever keeps all", ErrInvalid, d)
	}
	return o.setRetention(ctx, queue, &d, by, invalid)
}

// RemoveRetention removes the retention of a queue. The retention of [AllQueues] then applies.
// If there is none, the retention of the workers applies. RemoveRetention returns
// [ErrUnchanged] if the queue has no retention.
func (o *Jobs) RemoveRetention(ctx context.Context, queue string, by By) error {
	return o.setRetention(ctx, queue, nil, by, nil)
}

func (o *Jobs) setRetention(ctx context.Context, queue string, d *time.Duration, by By, invalid error) error {
	return o.set(ctx, KindRetention, queue, by, invalid, func(tx *sql.Tx, was settings) (any, error) {
		if equal(was.retention, d) {
			return nil, unchanged("the retention", textOf(d))
		}
		var micros *int64
		if d != nil {
			n := d.Microseconds()
			micros = &n
		}
		return retentionDetail{textOf(was.retention), textOf(d)}, o.update(ctx, tx, "set the retention", `retention = $2::bigint * interval '1 microsecond'`, queue, micros)
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

// noRows reports whether a query returned no row.
func noRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }
