package ops_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// fail creates a failed job. finished is an SQL expression.
func (s jobsSite) fail(t testing.TB, finished string) int64 {
	t.Helper()
	id := s.add(t, jobs.StateFailed)
	s.Exec(t, `UPDATE jobs_history SET finished_at = `+finished+` WHERE id = $1`, id)
	return id
}

// Acknowledge marks the failed jobs of the queue up to a time. They are counted, listed,
// retried and discarded as before.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	_, err := s.Acknowledge(ctx, ops.AllQueues, time.Time{}, by)
	says(t, err, "ops: acknowledge of all queues: ", "acknowledge each queue by its name")
	_, err = s.Acknowledge(ctx, "slow", time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), by)
	if says(t, err, "through is 10000-01-01"); !errors.Is(err, ops.ErrInvalid) || s.traces(t) != 0 {
		t.Errorf("%v, and %d traces", err, s.traces(t))
	}
	old, late := s.fail(t, `'2026-01-02 03:04:05.000006Z'`), s.fail(t, `'2026-01-02 03:04:05.000007Z'`)
	s.Exec(t, `UPDATE jobs_history SET finished_at = '2020-01-01' WHERE id = $1`, s.add(t, jobs.StateExpired))
	other := s.fail(t, `'2020-01-01'`)
	s.Exec(t, `UPDATE jobs_history SET queue = 'other' WHERE id = $1`, other)
	state := func(when string, want ...bool) {
		t.Helper()
		left := ops.Count(1) // in the other queue
		for i, j := range s.list(t, ops.JobFilter{States: []jobs.State{jobs.StateFailed}, Queue: "slow"}, 10) {
			if is := j.AcknowledgedAt != nil; is != want[i] {
				t.Errorf("%s: job %d is acknowledged: %v", when, j.ID, is)
			}
			if !want[i] {
				left++
			}
		}
		if q, all := s.queue(t, "slow"), s.queue(t, ops.AllQueues); q.Failed != ops.Count(len(want)) || q.Unacknowledged != left-1 || all.Unacknowledged != left {
			t.Errorf("%s: the queue is %+v, all are %+v", when, q, all)
		}
	}
	state("before", false, false)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000, time.UTC)
	if did, err := s.Acknowledge(ctx, "slow", at, by); err != nil || did != (ops.Acknowledged{Jobs: 1, Through: at}) {
		t.Errorf("%+v, %v", did, err)
	}
	var detail struct {
		Jobs    int
		Through time.Time
	}
	if op := s.last(t, &detail); op.Kind != ops.KindAcknowledge || op.Queue != "slow" || op.Job != 0 || op.By != by || detail.Jobs != 1 || !detail.Through.Equal(at) {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	state("up to the first", false, true)
	if did, err := s.Acknowledge(ctx, "slow", time.Time{}, by); err != nil || did.Jobs != 1 || !did.Through.Equal(at.Add(time.Microsecond)) {
		t.Errorf("%+v, %v", did, err)
	}
	state("up to the last", true, true)
	if did, err := s.Acknowledge(ctx, "slow", time.Time{}, by); err != nil || did != (ops.Acknowledged{}) {
		t.Errorf("a second time: %+v, %v", did, err)
	}
	s.fail(t, `'infinity'`)
	state("once another has failed", false, true, true)
	if did, err := s.Acknowledge(ctx, "slow", time.Time{}, by); err != nil || did != (ops.Acknowledged{Jobs: 1}) {
		t.Errorf("of what never ended: %+v, %v", did, err)
	}
	if _, err := s.Retry(ctx, old, by); err != nil {
		t.Error(err)
	}
	if err := s.Discard(ctx, late, by); err != nil {
		t.Error(err)
	}
	state("in the end", true, true)
}

// A failure that was not shown is not acknowledged. It is committed after the acknowledgement,
// though its job finished before others. Or it is committed after the preview. Or it is
// committed between the preview and the change, which is then refused.
func TestUnseenFailuresAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	// open fails a job in a transaction, and returns the transaction's Commit.
	open := func() (commit func() error) {
		t.Helper()
		id := s.add(t, jobs.StateFailed)
		tx, err := s.DB.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		if _, err := tx.Exec(`CREATE TEMP TABLE moved ON COMMIT DROP AS SELECT * FROM jobs_history WHERE id = ` + fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
		s.Exec(t, `DELETE FROM jobs_history WHERE id = $1`, id)
		if _, err := tx.Exec(`INSERT INTO jobs_history SELECT * FROM moved`); err != nil {
			t.Fatal(err)
		}
		return tx.Commit
	}
	left := func(want ops.Count) {
		t.Helper()
		if got := s.queue(t, "slow").Unacknowledged; got != want {
			t.Errorf("%v jobs are not acknowledged, want %v", got, want)
		}
	}
	commit := open()
	s.fail(t, `clock_timestamp() + interval '1 hour'`)
	did, err := s.Acknowledge(ctx, "slow", time.Time{}, by)
	if err != nil || did.Jobs != 1 {
		t.Fatalf("%+v, %v", did, err)
	}
	left(0)
	end(t, commit)
	left(1)

	preview := func() (shown string, through time.Time) {
		t.Helper()
		all, err := s.Preview(func(o *ops.Jobs) error {
			did, err := o.Acknowledge(ctx, "slow", time.Time{}, by)
			through = did.Through
			return err
		})
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return string(all[0].Detail), through
	}
	confirm := func(shown string, through time.Time) error {
		return s.Confirmed(func(o *ops.Jobs) error { _, err := o.Acknowledge(ctx, "slow", through, by); return err }, func(all []ops.Operation) error {
			if string(all[0].Detail) != shown {
				return errors.New("others than were shown")
			}
			return nil
		})
	}
	shown, through := preview()
	left(1)
	s.fail(t, `clock_timestamp() + interval '2 hours'`)
	if err := confirm(shown, through); err != nil {
		t.Error(err)
	}
	left(1)

	commit = open()
	gone := s.add(t, jobs.StateFailed)
	shown, through = preview()
	s.Exec(t, `DELETE FROM jobs_history WHERE id = $1`, gone) // the number of jobs and the last failure stay the same
	end(t, commit)
	says(t, confirm(shown, through), "others than were shown")
	left(2)

	// Rows that another transaction deletes at this moment are skipped without a wait.
	other, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	if _, err := other.Exec(`DELETE FROM jobs_history WHERE acknowledged_at IS NULL`); err != nil {
		t.Fatal(err)
	}
	s.add(t, jobs.StateFailed)
	if did, err := s.Acknowledge(ctx, "slow", time.Time{}, by); err != nil || did.Jobs != 1 {
		t.Errorf("%+v, %v", did, err)
	}
	end(t, other.Rollback)
	left(2)
}
