package ops_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// A paused queue shows the operator and the reason until it is resumed. A second pause is
// refused.
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
	s.Exec(t, `UPDATE jobs_queues SET retention = '1 mon 2 days'`) // by SQL
	if got := s.queue(t, "slow").Retention; got == nil || *got != 32*24*time.Hour {
		t.Errorf("a month and two days: %v", got)
	}
	s.Exec(t, `UPDATE jobs_queues SET retention = '1000 years'`)
	if got := s.queue(t, "slow").Retention; got == nil || *got != ops.Forever {
		t.Errorf("1000 years: %v", got)
	}
}

// Of two operators who change the same setting at once, one gets an error.
func TestConcurrentChangesOfAQueue(t *testing.T) {
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

// Queues counts the jobs of each queue and of all together.
func TestQueues(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	if all, err := s.Queues(t.Context()); err != nil || len(all) != 1 || all[0] != (ops.Queue{Name: ops.AllQueues}) {
		t.Fatalf("without jobs: %+v, %v", all, err)
	}
	for _, state := range []jobs.State{jobs.StateAvailable, jobs.StateAvailable, jobs.StateRunning, jobs.StateFailed, jobs.StateFailed, jobs.StateCancelled, jobs.StateCompleted} {
		s.add(t, state)
	}
	s.later(t, s.add(t, jobs.StateAvailable))
	s.Exec(t, `UPDATE jobs SET run_at = clock_timestamp() - interval '1 hour' WHERE id = (SELECT max(id) FROM jobs WHERE state = 'available' AND run_at <= clock_timestamp())`)
	s.Exec(t, `INSERT INTO jobs (kind, queue, priority) SELECT 'k', 'long', 1 + i % 9 FROM generate_series(1, 10500) AS i`)
	s.Exec(t, `WITH gone AS (DELETE FROM jobs WHERE queue = 'long' AND id % 21 = 0 RETURNING *) INSERT INTO jobs (kind, queue, run_at) SELECT 'k', 'Z', clock_timestamp() + interval '1 day' FROM gone`)
	s.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', 'long' FROM generate_series(1, 1000)`)
	s.put(t, value[int64](t, s, `INSERT INTO jobs (kind, queue) VALUES ('k', 'over') RETURNING id`), jobs.StateFailed)
	s.put(t, value[int64](t, s, `INSERT INTO jobs (kind, queue) VALUES ('k', 'done') RETURNING id`), jobs.StateCompleted)
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'never', 'infinity'), ('k', '!', 'infinity')`)
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
	want := `*: 503 scheduled, more than 10000 due, for 1h0m0s, 1 running, 3 failed, false
!: 1 scheduled, 0 due, for 0s, 0 running, 0 failed, false
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

// RaiseSequences raises sequences below the ids of their tables, and records each. It does not
// change correct sequences, nor sequences that step by two.
func TestRaiseSequences(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	if err := errors.Join(migrations.Apply(t.Context(), d.DB, nil), migrations.ApplyJobs(t.Context(), d.DB, nil)); err != nil {
		t.Fatal(err)
	}
	jobs, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	consumers, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	none := func(when string) {
		t.Helper()
		ofJobs, err := jobs.Sequences(ctx)
		ofConsumers, err2 := consumers.Sequences(ctx)
		if len(ofJobs)+len(ofConsumers) > 0 || err != nil || err2 != nil {
			t.Errorf("%s: %v, %v, %v, %v", when, ofJobs, ofConsumers, err, err2)
		}
	}
	none("empty tables")
	d.Exec(t, `INSERT INTO jobs (kind) SELECT 'k' FROM generate_series(1, 5)`)
	d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state) SELECT id - 3, kind, queue, priority, run_at, args, created_at, 1, 0, 0, 5, 'completed' FROM jobs`)
	none("ids that were drawn")
	d.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) VALUES (40, 1, 'error')`)
	d.Exec(t, `INSERT INTO jobs_operations (id, operation, operator, reason) VALUES (1, 'x', 'x', 'x')`)
	d.Exec(t, `INSERT INTO jobs_flow_steps (id, name, state, spec) VALUES (9::bigint << 30, 'x', 'waiting', '{}')`)
	d.Exec(t, `INSERT INTO consumer_operations (id, consumer_name, operation, operator, reason) VALUES (3, '', 'x', 'x', 'x')`)
	want := map[string]string{"jobs_operations": "0 1", "jobs": "5 40", "jobs_flow_runs": "0 9"}
	check := func(what string, all []ops.Sequence, err error) {
		t.Helper()
		got := map[string]string{}
		for _, s := range all {
			got[s.Table] = fmt.Sprint(s.Last, " ", s.Highest)
		}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v, %v", what, got, want, err)
		}
	}
	found, err := jobs.Sequences(ctx)
	check("found", found, err)
	var would []ops.Sequence
	effects, err := jobs.Preview(func(o *ops.Jobs) (err error) { would, err = o.RaiseSequences(ctx, by); return err })
	check("previewed", would, err)
	if len(effects) != 3 || effects[1].Kind != ops.KindRaise || !strings.Contains(string(effects[1].Detail), `"now":40`) {
		t.Errorf("it would record %+v", effects)
	}
	found, err = jobs.Sequences(ctx)
	check("after the preview", found, err)

	// An open transaction that has enqueued a job may have drawn an id that is not visible yet.
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`INSERT INTO jobs (kind) VALUES ('k')`); err != nil {
		t.Fatal(err)
	}
	raised := make(chan error, 1)
	go func() {
		all, err := jobs.RaiseSequences(context.WithoutCancel(ctx), by)
		want["jobs"] = "6 40"
		check("raised", all, err)
		raised <- err
	}()
	pgtest.AwaitBlocked(t, d.DB)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
	if all, err := consumers.RaiseSequences(ctx, by); err != nil || len(all) != 1 || all[0].Highest != 3 {
		t.Errorf("of consumers %v, %v", all, err)
	}
	none("raised")
	var next int64
	if err := d.DB.QueryRow(`INSERT INTO jobs (kind) VALUES ('k') RETURNING id`).Scan(&next); err != nil || next != 41 {
		t.Errorf("the next job is %d, %v", next, err)
	}
	recorded, err := jobs.Operations(ctx, ops.OperationFilter{}, 10)
	if err != nil || len(recorded) != 4 || recorded[0].Kind != ops.KindRaise || recorded[0].By != by {
		t.Errorf("recorded %+v, %v", recorded, err)
	}
	if all, err := jobs.RaiseSequences(ctx, by); err != nil || len(all) > 0 {
		t.Errorf("raised again: %v, %v", all, err)
	}
	// The sequences of two primaries step by two, each past the other's ids.
	d.Exec(t, `ALTER SEQUENCE jobs_id_seq INCREMENT BY 2 RESTART WITH 1`)
	none("a sequence that steps by two")
}
