package ops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops"
)

// A pause says who and why, for as long as it lasts, and only once.
func TestPauseQueue(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	for _, queue := range []string{"slow", ops.AllQueues} {
		if err := s.ResumeQueue(ctx, queue, by); !errors.Is(err, ops.ErrNotPaused) {
			t.Errorf("resumed before: %v", err)
		}
		if err := s.PauseQueue(ctx, queue, by); err != nil {
			t.Fatal(err)
		}
		p := s.queue(t, queue).Paused
		if p == nil || p.By != by || time.Since(p.Since) > time.Hour {
			t.Fatalf("%s is paused: %+v", queue, p)
		}
		err := s.PauseQueue(ctx, queue, ops.By{Operator: "bob", Reason: "lunch"})
		if !errors.Is(err, ops.ErrPaused) {
			t.Errorf("paused twice: %v", err)
		}
		says(t, err, `by "ann", because "a test"`)
	}
	says(t, s.PauseQueue(ctx, ops.AllQueues, by), "ops: pause of all queues: ")
	if err := s.ResumeQueue(ctx, ops.AllQueues, by); err != nil {
		t.Fatal(err)
	}
	if s.queue(t, "slow").Paused == nil || s.queue(t, ops.AllQueues).Paused != nil {
		t.Error("with all queues, one is resumed that was paused by itself")
	}
	var detail struct {
		Since time.Time `json:"paused_since"`
	}
	if err := s.ResumeQueue(ctx, "slow", by); err != nil {
		t.Fatal(err)
	}
	if op := s.last(t, &detail); op.Queue != "slow" || op.Kind != ops.KindResume || detail.Since.IsZero() {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	if q := s.queue(t, "slow"); q.Name != "" {
		t.Errorf("a queue without jobs and settings is listed: %+v", q)
	}
}

func TestCap(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	if err := s.RemoveCap(ctx, "slow", by); !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("removed before it was set: %v", err)
	}
	for _, limit := range []int{5, 0, 1<<31 - 1} {
		if err := s.SetCap(ctx, "slow", limit, by); err != nil {
			t.Fatal(err)
		}
		if got := s.queue(t, "slow").Cap; got == nil || *got != limit {
			t.Errorf("the cap is %v, want %d", got, limit)
		}
		err := s.SetCap(ctx, "slow", limit, by)
		if !errors.Is(err, ops.ErrUnchanged) {
			t.Errorf("set twice: %v", err)
		}
		says(t, err, fmt.Sprint("the cap is ", limit))
	}
	for _, limit := range []int{-1, 1 << 31} {
		err := s.SetCap(ctx, "slow", limit, by)
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("a cap of %d: %v", limit, err)
		}
		says(t, err, fmt.Sprintf("the cap is %d, allowed is 0 to 2147483647; RemoveCap removes it", limit))
	}
	if err := s.RemoveCap(ctx, "slow", by); err != nil {
		t.Fatal(err)
	}
	var detail struct{ From, To *int }
	if s.last(t, &detail); detail.From == nil || *detail.From != 1<<31-1 || detail.To != nil {
		t.Errorf("recorded %+v", detail)
	}
	if value[int](t, s, `SELECT count(*) FROM jobs_queues WHERE max_running IS NULL`) != 1 {
		t.Error("the cap is still there")
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	for _, d := range []time.Duration{time.Hour, 0, time.Microsecond, ops.Forever, 100 * 365 * 24 * time.Hour} {
		if err := s.SetRetention(ctx, "slow", d, by); err != nil {
			t.Fatal(err)
		}
		if got := s.queue(t, "slow").Retention; got == nil || *got != d {
			t.Errorf("the retention is %v, want %v", got, d)
		}
		if err := s.SetRetention(ctx, "slow", d, by); !errors.Is(err, ops.ErrUnchanged) {
			t.Errorf("set twice: %v", err)
		}
	}
	if !value[bool](t, s, `SELECT now() - (interval '1 microsecond' * $1::bigint) < '1800-01-01'`, ops.Forever.Microseconds()) {
		t.Error("forever is not long")
	}
	for _, d := range []time.Duration{-1, -time.Hour, 1500} {
		err := s.SetRetention(ctx, "slow", d, by)
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("a retention of %v: %v", d, err)
		}
		says(t, err, fmt.Sprintf("the retention is %v, allowed is 0 or more", d))
	}
	if err := s.RemoveRetention(ctx, "slow", by); err != nil {
		t.Fatal(err)
	}
	err := s.RemoveRetention(ctx, "slow", by)
	if !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("removed twice: %v", err)
	}
	says(t, err, "it has none")
	var detail struct{ From, To *string }
	if s.last(t, &detail); detail.From == nil || *detail.From != "876000h0m0s" || detail.To != nil {
		t.Errorf("recorded %+v", detail)
	}
	s.Exec(t, `UPDATE jobs_queues SET retention = '1 mon 2 days'`) // by hand
	if got := s.queue(t, "slow").Retention; got == nil || *got != 32*24*time.Hour {
		t.Errorf("a month and two days: %v", got)
	}
	s.Exec(t, `UPDATE jobs_queues SET retention = '1000 years'`)
	if got := s.queue(t, "slow").Retention; got == nil || *got != ops.Forever {
		t.Errorf("1000 years: %v", got)
	}
}

// Of two who do the same at once, one is told that it is done already.
func TestTwoOperatorsOfAQueueAtOnce(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	const rounds, operators = 10, 4
	for round := range rounds {
		var done atomic.Int64
		var all sync.WaitGroup
		for i := range operators {
			all.Go(func() {
				operate := s.PauseQueue
				if round%2 == 1 {
					operate = s.ResumeQueue
				}
				err := operate(context.Background(), "slow", ops.By{Operator: fmt.Sprint("operator ", i), Reason: fmt.Sprint("round ", round)})
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, ops.ErrPaused) && !errors.Is(err, ops.ErrNotPaused):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := done.Load(); n != 1 {
			t.Fatalf("round %d: %d of %d operators did it, want one", round, n, operators)
		}
	}
	if n := value[int](t, s, `SELECT count(*) FROM jobs_operations`); n != rounds {
		t.Errorf("%d operations recorded, want %d", n, rounds)
	}
}

// The list has what each queue has, and of all together.
func TestQueues(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	if all, err := s.Queues(t.Context()); err != nil || len(all) != 1 || all[0] != (ops.Queue{Name: ops.AllQueues}) {
		t.Fatalf("without jobs: %+v, %v", all, err)
	}
	for _, state := range []ops.JobState{ops.JobAvailable, ops.JobAvailable, ops.JobRunning, ops.JobFailed, ops.JobFailed, ops.JobCancelled, ops.JobCompleted} {
		s.add(t, state)
	}
	s.later(t, s.add(t, ops.JobAvailable))
	s.Exec(t, `UPDATE jobs SET run_at = clock_timestamp() - interval '1 hour' WHERE id = (SELECT max(id) FROM jobs WHERE state = 'available' AND run_at <= clock_timestamp())`)
	s.Exec(t, `INSERT INTO jobs (kind, queue, priority) SELECT 'k', 'long', 1 + i % 9 FROM generate_series(1, 10500) AS i`)
	s.Exec(t, `WITH gone AS (DELETE FROM jobs WHERE queue = 'long' AND id % 21 = 0 RETURNING *) INSERT INTO jobs (kind, queue, run_at) SELECT 'k', 'Z', clock_timestamp() + interval '1 day' FROM gone`)
	s.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', 'long' FROM generate_series(1, 1000)`)
	s.put(t, value[int64](t, s, `INSERT INTO jobs (kind, queue) VALUES ('k', 'over') RETURNING id`), ops.JobFailed)
	s.put(t, value[int64](t, s, `INSERT INTO jobs (kind, queue) VALUES ('k', 'done') RETURNING id`), ops.JobCompleted)
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'never', 'infinity')`)
	if err := s.SetCap(t.Context(), "empty", 2, by); err != nil {
		t.Fatal(err)
	}
	all, err := s.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, q := range all {
		fmt.Fprintf(&got, "%s: %v scheduled, %v due, for %v, %v running, %v failed, %v\n", q.Name, q.Scheduled, q.Due, q.OldestDue.Round(time.Hour), q.Running, q.Failed, q.Cap != nil)
	}
	want := `*: 502 scheduled, more than 10000 due, for 1h0m0s, 1 running, 3 failed, false
Z: 500 scheduled, 0 due, for 0s, 0 running, 0 failed, false
empty: 0 scheduled, 0 due, for 0s, 0 running, 0 failed, true
long: 0 scheduled, more than 10000 due, for 0s, 0 running, 0 failed, false
never: 1 scheduled, 0 due, for 0s, 0 running, 0 failed, false
over: 0 scheduled, 0 due, for 0s, 0 running, 1 failed, false
slow: 1 scheduled, 2 due, for 1h0m0s, 1 running, 2 failed, false
`
	if got.String() != want {
		t.Errorf("the queues are\n%swant\n%s", &got, want)
	}
}
