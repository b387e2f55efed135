package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

var (
	unfinished = []jobs.State{jobs.StateAvailable, jobs.StateRunning}
	finished   = []jobs.State{jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired, jobs.StateSkipped}
)

// A cancelled job keeps in the history all its columns but the unique key and the claim.
func TestCancelledJobsKeepTheirColumns(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	id := s.add(t, jobs.StateAvailable)
	const of = `SELECT to_jsonb(t)::text FROM %s AS t WHERE id = $1`
	var before, after map[string]any
	if err := json.Unmarshal([]byte(value[string](t, s, fmt.Sprintf(of, "jobs"), id)), &before); err != nil {
		t.Fatal(err)
	}
	if now, err := s.Cancel(t.Context(), id, by); err != nil || now != jobs.StateCancelled {
		t.Fatalf("it is %q, %v", now, err)
	}
	if err := json.Unmarshal([]byte(value[string](t, s, fmt.Sprintf(of, "jobs_history"), id)), &after); err != nil {
		t.Fatal(err)
	}
	for column, was := range before {
		is, there := after[column]
		if column == "cancel_at" {
			was = is
		}
		if column == "state" {
			was = "cancelled"
		}
		if there && fmt.Sprint(is) != fmt.Sprint(was) {
			t.Errorf("%s was %v, in the history it is %v", column, was, is)
		}
	}
	if after["cancel_at"] == nil || after["finished_at"] == nil {
		t.Errorf("the history has %v", after)
	}
}

func TestCancelJob(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for _, state := range unfinished {
		id := s.add(t, state)
		want := jobs.StateCancelled
		if state == jobs.StateRunning {
			want = jobs.StateRunning
		}
		if now, err := s.Cancel(t.Context(), id, by); err != nil || now != want || s.is(t, id) != want {
			t.Errorf("a %s job: %q, %v, and it is %s", state, now, err, s.is(t, id))
		}
		var detail struct{ State, Kind string }
		if s.last(t, &detail); detail.State != string(state) || detail.Kind != "mail" {
			t.Errorf("recorded %+v of a %s job", detail, state)
		}
		now, err := s.Cancel(t.Context(), id, by)
		var refused *ops.StateError
		if !errors.As(err, &refused) || refused.State != want || now != "" {
			t.Errorf("cancelled twice: %q, %v", now, err)
		}
	}
	for _, state := range finished {
		_, err := s.Cancel(t.Context(), s.add(t, state), by)
		says(t, err, "ops: cancel of job ", fmt.Sprintf(": it is %s: it finished at ", state))
	}
}

func TestCancelAll(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	var ids []int64
	for range 4 {
		for _, state := range unfinished {
			ids = append(ids, s.add(t, state))
		}
	}
	other := value[int64](t, s, `INSERT INTO jobs (kind) VALUES ('k') RETURNING id`)
	done := s.add(t, jobs.StateCompleted)
	ctx := t.Context()
	for _, f := range []ops.JobFilter{{}, {States: []jobs.State{jobs.StateFailed}}, {Queue: ops.AllQueues}, {Queue: "slow", Before: -1}, {Kind: " "}} {
		if _, err := s.CancelAll(ctx, f, 10, by); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, limit := range []int{0, 10_001} {
		_, err := s.CancelAll(ctx, ops.JobFilter{Queue: "slow"}, limit, by)
		says(t, err, fmt.Sprintf("limit is %d, allowed is 1 to 10000", limit))
	}
	// Of each two jobs, the first is available and the second runs.
	for _, step := range []struct {
		f                ops.JobFilter
		limit            int
		cancelled, asked []int64
	}{
		{ops.JobFilter{Queue: "slow", States: []jobs.State{jobs.StateAvailable, jobs.StateRunning}, Before: ids[2]}, 10, ids[:1], ids[1:2]},
		{ops.JobFilter{Kind: "mail", After: ids[5]}, 2, ids[6:7], ids[7:8]},
		{ops.JobFilter{Queue: "slow"}, 2, nil, []int64{ids[5], ids[3]}},
		{ops.JobFilter{Queue: "slow"}, 10, []int64{ids[4], ids[2]}, nil},
		{ops.JobFilter{Queue: "slow"}, 10, nil, nil},
	} {
		all, err := s.CancelAll(ctx, step.f, step.limit, by)
		if err != nil || !slices.Equal(all.Cancelled, step.cancelled) || !slices.Equal(all.Asked, step.asked) {
			t.Errorf("%+v: %+v, %v; want %v and %v", step.f, all, err, step.cancelled, step.asked)
		}
		var detail struct {
			Cancelled []int64
			Asked     []int64 `json:"asked_to_end"`
		}
		if op := s.last(t, &detail); op.Job != 0 || op.Queue != step.f.Queue || !slices.Equal(detail.Cancelled, step.cancelled) || !slices.Equal(detail.Asked, step.asked) {
			t.Errorf("recorded %+v, %+v", op, detail)
		}
	}
	if s.is(t, other) != jobs.StateAvailable || s.is(t, done) != jobs.StateCompleted {
		t.Error("others were cancelled")
	}
}

// A retry of a finished job creates a job with the same columns.
func TestRetryOfAFinishedJob(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for _, state := range finished {
		id := s.add(t, state)
		as, err := s.Retry(t.Context(), id, by)
		kind := ops.KindRetry
		if state == jobs.StateCompleted {
			var refused *ops.StateError
			if !errors.As(err, &refused) || refused.State != state {
				t.Fatalf("the retry of a completed job: %v", err)
			}
			says(t, err, "Rerun")
			kind = ops.KindRerun
			as, err = s.Rerun(t.Context(), id, by)
		}
		if err != nil || as == id || s.is(t, as) != jobs.StateAvailable || s.is(t, id) != state {
			t.Fatalf("job %d is %s and runs again as %d, which is %s: %v", id, s.is(t, id), as, s.is(t, as), err)
		}
		const same = `kind, queue, priority, good_until, args, meta, max_attempts, max_resets`
		if n := value[int](t, s, `SELECT count(*) FROM (SELECT `+same+` FROM jobs WHERE id = $1 INTERSECT SELECT `+same+` FROM jobs_history WHERE id = $2) AS shared`, as, id); n != 1 {
			t.Errorf("the new job is another than the %s one", state)
		}
		if !value[bool](t, s, `SELECT attempt + failures + resets = 0 AND unique_key IS NULL AND run_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() FROM jobs WHERE id = $1`, as) {
			t.Error("the new job does not begin from the beginning, now")
		}
		var detail struct {
			State string
			Error string
			As    int64 `json:"new_job"`
		}
		if op := s.last(t, &detail); op.Kind != kind || op.Job != id || detail.As != as || detail.State != string(state) || detail.Error != "boom" {
			t.Errorf("recorded %+v, %+v", op, detail)
		}
		for _, job := range []int64{id, as} {
			if all, err := s.Operations(t.Context(), ops.OperationFilter{Job: job}, 10); err != nil || len(all) != 1 || all[0].Job != id {
				t.Errorf("the operations on job %d: %+v, %v", job, all, err)
			}
		}
		again, err := s.Retry(t.Context(), id, by)
		if state != jobs.StateCompleted {
			if !isRetried(err) || again != 0 {
				t.Errorf("retried twice: %d, %v", again, err)
			}
			says(t, err, fmt.Sprintf("as job %d, at ", as), `by "ann"`, "Rerun")
		}
		if again, err := s.Rerun(t.Context(), id, by); err != nil || again <= as {
			t.Errorf("insisted: %d, %v", again, err)
		}
	}
	s.Exec(t, `UPDATE jobs_history SET good_until = clock_timestamp(), max_attempts = max_attempts WHERE state = 'expired'`)
	as, err := s.Rerun(t.Context(), value[int64](t, s, `SELECT id FROM jobs_history WHERE state = 'expired'`), by)
	if err != nil || value[int](t, s, `SELECT count(*) FROM jobs WHERE id = $1 AND good_until IS NULL`, as) != 1 {
		t.Errorf("what is over is over again: %d, %v", as, err)
	}
}

// A retry of a waiting job makes it due now, and changes nothing else.
func TestRetryOfAnUnfinishedJob(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for _, retry := range []func(context.Context, int64, ops.By) (int64, error){s.Retry, s.Rerun} {
		id := s.add(t, jobs.StateAvailable)
		s.later(t, id)
		key := value[string](t, s, `SELECT unique_key FROM jobs WHERE id = $1`, id)
		as, err := retry(t.Context(), id, by)
		if err != nil || as != id || value[string](t, s, `SELECT unique_key FROM jobs WHERE id = $1 AND run_at <= clock_timestamp() AND failures = 2`, id) != key {
			t.Errorf("job %d runs as %d, %v", id, as, err)
		}
		var detail struct {
			State string
			Due   time.Time `json:"was_due"`
		}
		if s.last(t, &detail); detail.State != string(jobs.StateAvailable) || time.Until(detail.Due) < 30*time.Minute {
			t.Errorf("recorded %+v", detail)
		}
		for state, why := range map[jobs.State]string{jobs.StateAvailable: "it is due already", jobs.StateRunning: "let its run end"} {
			as, err := retry(t.Context(), s.add(t, state), by)
			var refused *ops.StateError
			if !errors.As(err, &refused) || refused.State != state || as != 0 {
				t.Errorf("a %s job: %d, %v", state, as, err)
			}
			says(t, err, why)
		}
	}
}

// Concurrent retries of a job retry it once.
func TestRetriedOnce(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for range 10 {
		id := s.add(t, jobs.StateFailed)
		var mu sync.Mutex
		var as []int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				n, err := s.Retry(context.Background(), id, by)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					as = append(as, n)
				} else if !isRetried(err) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(as) != 1 {
			t.Fatalf("it was retried as %v", as)
		}
	}
}

func TestDiscardJob(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for _, state := range unfinished {
		id := s.add(t, state)
		err := s.Discard(t.Context(), id, by)
		var refused *ops.StateError
		if !errors.As(err, &refused) || refused.State != state || s.is(t, id) != state {
			t.Errorf("a %s job: %v", state, err)
		}
		says(t, err, "Cancel it first")
	}
	keep := s.add(t, jobs.StateFailed)
	for _, state := range finished {
		id := s.add(t, state)
		for _, job := range []int64{id, keep} {
			s.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) VALUES ($1, 1, 'error') ON CONFLICT DO NOTHING`, job)
			s.Exec(t, `INSERT INTO jobs_logs (job_id, attempt, entry) VALUES ($1, 1, '1'), ($1, 1, '2')`, job)
		}
		if err := s.Discard(t.Context(), id, by); err != nil || s.is(t, id) != "" {
			t.Errorf("a %s job: %v", state, err)
		}
		if n := value[int](t, s, `SELECT (SELECT count(*) FROM jobs_attempts WHERE job_id <> $1) + (SELECT count(*) FROM jobs_logs WHERE job_id <> $1)`, keep); n > 0 {
			t.Errorf("%d rows are left", n)
		}
		var detail map[string]any
		op := s.last(t, &detail)
		if op.Job != id || detail["state"] != string(state) || detail["error"] != "boom" || detail["code"] != "E7" || detail["attempts_deleted"] != 1.0 || detail["logs_deleted"] != 2.0 {
			t.Errorf("recorded %+v, %v", op, detail)
		}
		if strings.Contains(string(op.Detail), "to") && detail["args"] != nil {
			t.Errorf("its arguments are kept: %s", op.Detail)
		}
		if err := s.Discard(t.Context(), id, by); !errors.Is(err, ops.ErrNoJob) {
			t.Errorf("discarded twice: %v", err)
		}
	}
	if s.is(t, keep) != jobs.StateFailed || value[int](t, s, `SELECT count(*) FROM jobs_attempts`) != 1 {
		t.Error("another job was discarded")
	}
}

// An operation that waits for a job's row sees the state after the wait.
func TestOperationsSeeStateAfterWait(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for name, c := range map[string]struct {
		then jobs.State
		do   func(id int64) error
		says string
	}{
		"claimed, then retried":   {jobs.StateRunning, func(id int64) error { _, err := s.Retry(t.Context(), id, by); return err }, "it is running"},
		"failed, then cancelled":  {jobs.StateFailed, func(id int64) error { _, err := s.Cancel(t.Context(), id, by); return err }, "it is failed"},
		"claimed, then cancelled": {jobs.StateRunning, func(id int64) error { _, err := s.Cancel(t.Context(), id, by); return err }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := s.add(t, jobs.StateAvailable)
			s.later(t, id)
			tx, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.Exec(`SELECT FROM jobs WHERE id = $1 FOR UPDATE`, id); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- c.do(id) }()
			await(t, "the operation to wait", func() bool {
				return value[int](t, s, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND NOT granted`) > 0
			})
			switch c.then {
			case jobs.StateRunning:
				_, err = tx.Exec(`UPDATE jobs SET state = 'running', claim = 1, claimed_by = gen_random_uuid() WHERE id = $1`, id)
			default:
				_, err = tx.Exec(`WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING *)
					INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, max_attempts, state)
					SELECT id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, max_attempts, 'failed' FROM gone`, id)
			}
			if err != nil {
				t.Fatal(err)
			}
			end(t, tx.Commit)
			select {
			case err = <-done:
			case <-time.After(patience):
				t.Fatal("it waits for ever")
			}
			if c.says != "" {
				says(t, err, c.says)
			} else if err != nil || value[int](t, s, `SELECT count(*) FROM jobs WHERE id = $1 AND cancel_at IS NOT NULL`, id) != 1 {
				t.Errorf("it was not asked to end: %v", err)
			}
		})
	}
}
