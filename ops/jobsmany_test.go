package ops_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

// RetryAll retries each finished job once, as Retry does.
func TestRetryAll(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	for _, f := range []ops.JobFilter{{}, {States: []jobs.State{jobs.StateCompleted}}, {States: []jobs.State{jobs.StateRunning}}, {Queue: ops.AllQueues}, {Queue: "slow", After: -1}} {
		if _, err := s.RetryAll(ctx, f, 10, by); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, limit := range []int{0, 1_001} {
		_, err := s.RetryAll(ctx, ops.JobFilter{Queue: "slow"}, limit, by)
		says(t, err, fmt.Sprintf("limit is %d, allowed is 1 to 1000", limit))
	}
	if n := s.traces(t); n != 0 {
		t.Errorf("what was refused left %d traces", n)
	}
	of := map[jobs.State][]int64{}
	for range 3 {
		for _, state := range append(finished, unfinished...) {
			of[state] = append(of[state], s.add(t, state))
		}
	}
	failed := of[jobs.StateFailed]
	if _, err := s.Retry(ctx, failed[1], by); err != nil {
		t.Fatal(err)
	}
	mail := ops.JobFilter{Kind: "mail", Queue: "slow"}
	before := value[int64](t, s, `SELECT count(*) FROM jobs`)
	retry := func(f ops.JobFilter, limit int, want ...int64) {
		t.Helper()
		all, err := s.RetryAll(ctx, f, limit, by)
		if err != nil || !slices.Equal(all.Jobs, want) || len(all.As) != len(want) || all.Jobs == nil || all.As == nil {
			t.Fatalf("%+v, %v; want %v", all, err, want)
		}
		for i, id := range all.Jobs {
			if made, err := s.Operations(ctx, ops.OperationFilter{Job: all.As[i]}, 10); err != nil || len(made) != 1 || made[0].Job != id || made[0].Kind != ops.KindRetry || made[0].By != by || s.is(t, all.As[i]) != jobs.StateAvailable {
				t.Errorf("job %d runs again as %d: %+v, %v", id, all.As[i], made, err)
			}
		}
		var detail struct {
			States []jobs.State
			Jobs   int
		}
		if op := s.last(t, &detail); op.Job != 0 || op.Queue != "slow" || detail.Jobs != len(want) || len(detail.States) == 0 {
			t.Errorf("recorded %+v, %+v", op, detail)
		}
	}
	retry(mail, 1, failed[2])
	retry(mail, 10, failed[0])
	retry(mail, 10)
	mail.States = []jobs.State{jobs.StateExpired, jobs.StateCancelled, jobs.StateExpired}
	mail.After = of[jobs.StateExpired][0]
	want := slices.Concat(of[jobs.StateExpired][1:], slices.DeleteFunc(slices.Clone(of[jobs.StateCancelled]), func(id int64) bool { return id <= mail.After }))
	slices.Sort(want)
	slices.Reverse(want)
	retry(mail, 10, want...)
	if n := value[int64](t, s, `SELECT count(*) FROM jobs`); n != before+2+int64(len(want)) {
		t.Errorf("%d jobs, before %d", n, before)
	}
}

// Concurrent RetryAll calls retry each job once.
func TestRetryAllAtOnce(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for range 30 {
		s.add(t, jobs.StateFailed)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := s.RetryAll(t.Context(), ops.JobFilter{Queue: "slow"}, 30, by); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := value[int64](t, s, `SELECT count(*) FROM jobs`); n != 30 {
		t.Errorf("30 jobs were retried as %d", n)
	}
}

// DiscardAll passes over a job that another transaction deletes at the same time.
func TestDiscardAllAtOnce(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	kept, gone := s.add(t, jobs.StateFailed), s.add(t, jobs.StateFailed)
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `DELETE FROM jobs_history WHERE id = $1`, gone); err != nil {
		t.Fatal(err)
	}
	discarded := make(chan []int64, 1)
	go func() {
		ids, err := s.DiscardAll(t.Context(), ops.JobFilter{Queue: "slow"}, 10, by)
		if err != nil {
			t.Error(err)
		}
		discarded <- ids
	}()
	pgtest.AwaitBlocked(t, s.DB)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if ids := <-discarded; !slices.Equal(ids, []int64{kept}) {
		t.Errorf("discarded %v, want %d", ids, kept)
	}
}

// RetryAll and DiscardAll skip steps of flows, and proceed to the next jobs.
func TestRetryAllSkipsStepsOfFlows(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	f := flow.New[int]("one")
	flow.Add[flow.None](f, "first", func(int) firstJob { return firstJob{} })
	run, err := f.Start(ctx, flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	other := value[int64](t, s, `INSERT INTO jobs (kind, meta) VALUES ('first', '{"flow_step": "x"}') RETURNING id`)
	step := value[int64](t, s, `SELECT id FROM jobs WHERE kind = 'first' AND id <> $1`, other)
	s.put(t, other, jobs.StateFailed)
	s.put(t, step, jobs.StateFailed)
	first := ops.JobFilter{Kind: "first"}
	if ids, err := s.DiscardAll(ctx, first, 1, by); err != nil || !slices.Equal(ids, []int64{other}) {
		t.Errorf("discarded %v, %v; want %d", ids, err, other)
	}
	if all, err := s.RetryAll(ctx, first, 1, by); err != nil || len(all.Jobs) > 0 {
		t.Errorf("retried %+v, %v", all, err)
	}
	s.Exec(t, `UPDATE jobs_flow_steps SET state = 'failed', finished_at = clock_timestamp()`)
	if all, err := s.RetryAll(ctx, first, 1, by); err != nil || len(all.Jobs) > 0 {
		t.Errorf("run %d of a flow: retried %+v, %v", run.Run, all, err)
	}
	if ids, err := s.DiscardAll(ctx, first, 1, by); err != nil || !slices.Equal(ids, []int64{step}) {
		t.Errorf("once its end was noted: %v, %v", ids, err)
	}
}

// DiscardAll deletes finished jobs with their attempts and logs.
func TestDiscardAll(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	if _, err := s.DiscardAll(ctx, ops.JobFilter{}, 10, by); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("all jobs: %v", err)
	}
	var ids []int64
	for range 3 {
		ids = append(ids, s.add(t, jobs.StateFailed))
		s.Exec(t, `INSERT INTO jobs_logs (job_id, attempt, entry) VALUES ($1, 1, '{}')`, ids[len(ids)-1])
	}
	done, waits := s.add(t, jobs.StateCompleted), s.add(t, jobs.StateAvailable)
	preview, err := s.Preview(func(o *ops.Jobs) error {
		_, err := o.DiscardAll(ctx, ops.JobFilter{Queue: "slow"}, 2, by)
		return err
	})
	if err != nil || len(preview) != 3 || preview[0].Job != ids[2] || preview[1].Job != ids[1] || preview[2].Job != 0 || s.is(t, ids[2]) != jobs.StateFailed {
		t.Errorf("the preview: %+v, %v", preview, err)
	}
	if got, err := s.DiscardAll(ctx, ops.JobFilter{Queue: "slow"}, 2, by); err != nil || !slices.Equal(got, []int64{ids[2], ids[1]}) {
		t.Errorf("discarded %v, %v", got, err)
	}
	if got, err := s.DiscardAll(ctx, ops.JobFilter{States: []jobs.State{jobs.StateFailed, jobs.StateCompleted}}, 10, by); err != nil || !slices.Equal(got, []int64{done, ids[0]}) {
		t.Errorf("discarded %v, %v", got, err)
	}
	if n := value[int](t, s, `SELECT (SELECT count(*) FROM jobs_history) + (SELECT count(*) FROM jobs_logs)`); n != 0 || s.is(t, waits) != jobs.StateAvailable {
		t.Errorf("%d rows are left, the job that waits is %s", n, s.is(t, waits))
	}
}
