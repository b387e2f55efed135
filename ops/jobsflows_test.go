package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

type firstJob struct{}

func (firstJob) Kind() string { return "first" }

type secondJob struct{}

func (secondJob) Kind() string { return "second" }

// Runs that have not ended are unadvanced if no worker has advanced flows for a minute. A queue
// with due jobs is unserved if no worker names it.
func TestUnadvancedAndUnserved(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	expect := func(about string, unadvanced bool, unserved ...string) {
		t.Helper()
		is, err := s.Unadvanced(ctx)
		queues, also := s.Unserved(ctx)
		if err != nil || also != nil || is != unadvanced || !slices.Equal(queues, unserved) {
			t.Errorf("%s: unadvanced %v, %v; unserved %q, %v", about, is, err, queues, also)
		}
	}
	expect("of nothing", false)
	s.Exec(t, `INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1); INSERT INTO jobs (kind, queue) VALUES ('k', 'mail')`)
	expect("without workers", true, "mail")
	s.Exec(t, `INSERT INTO jobs_workers (worker_id, kinds, status) VALUES (gen_random_uuid(), '{k}', '{"Queues": [{"Name": "other"}]}'); INSERT INTO jobs_flow_sweep (next_at) VALUES (now())`)
	expect("with a worker of another queue", false, "mail")
	s.Exec(t, `UPDATE jobs_workers SET status = '{"Queues": [{"Name": "mail"}]}'; UPDATE jobs_flow_sweep SET next_at = now() - interval '61 seconds'`)
	expect("a minute after the last turn", true)
	s.Exec(t, `UPDATE jobs_workers SET heartbeat_at = now() - interval '31 seconds'`)
	expect("with a dead worker", true, "mail")
	s.Exec(t, `UPDATE jobs_workers SET heartbeat_timeout = '1 minute'`)
	expect("with a worker that may be silent for longer", true)
	s.Exec(t, `UPDATE jobs_flow_runs SET finished_at = now(), state = 'failed'`)
	expect("after the end of the run", false)
}

// An operator lists runs of flows, cancels one and continues it from a step. Both changes are
// recorded.
func TestFlowRuns(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	if _, err := s.FlowRun(ctx, 7); !errors.Is(err, ops.ErrNoFlowRun) {
		t.Errorf("a run that is not there: %v", err)
	}
	for _, err := range []error{s.CancelFlowRun(ctx, 7, by), s.RetryFlowRun(ctx, 7, by)} {
		if !errors.Is(err, ops.ErrNoFlowRun) {
			t.Errorf("of a run that is not there: %v", err)
		}
		says(t, err, "of run 7")
	}
	for _, err := range []error{s.CancelFlowRun(ctx, 0, by), s.RetryFlowRun(ctx, -1, by), s.CancelFlowRun(ctx, 7, ops.By{Operator: "ann"})} {
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("bad input: %v", err)
		}
	}
	f := flow.New[int]("two")
	first := flow.Add[flow.None](f, "first", func(int) firstJob { return firstJob{} })
	flow.Add[flow.None](f, "second", func(int) secondJob { return secondJob{} }, flow.After(first))
	client := flow.NewClient(jobs.NewClient(s.DB))
	started, err := f.Start(ctx, client, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	run := started.Run
	var refused *ops.StateError
	if err := s.RetryFlowRun(ctx, run, by); !errors.As(err, &refused) || refused.State != jobs.StateRunning {
		t.Errorf("the retry of a run that goes on: %v", err)
	}
	if err := s.CancelFlowRun(ctx, run, by); err != nil {
		t.Fatal(err)
	}
	var detail struct {
		Run     int64
		Flow    string
		Version string
		State   jobs.State
		From    []string
	}
	if op := s.last(t, &detail); op.Kind != ops.KindCancel || op.By != by || detail.Run != run || detail.Flow != "two" || detail.Version == "" || detail.State != jobs.StateRunning {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	var ended *ops.StateError
	if err := s.CancelFlowRun(ctx, run, by); !errors.As(err, &ended) || ended.State != jobs.StateCancelled {
		t.Errorf("cancelled twice: %v", err)
	}
	all, err := s.FlowRuns(ctx, flow.Filter{Flow: "two"}, 10)
	if err != nil || len(all) != 1 || all[0].State != jobs.StateCancelled {
		t.Errorf("the runs are %+v, %v", all, err)
	}
	if _, err := s.FlowRuns(ctx, flow.Filter{State: "odd"}, 10); err == nil {
		t.Error("an odd state is listed")
	}
	if err := s.RetryFlowRun(ctx, run, by, "nosuch"); err == nil {
		t.Error("it goes on from a step that it does not have")
	}
	s.expectStepRefused(t, run)
	if err := s.RetryFlowRun(ctx, run, by, "first"); err != nil {
		t.Fatal(err)
	}
	if op := s.last(t, &detail); op.Kind != ops.KindRetry || detail.State != jobs.StateCancelled || len(detail.From) != 1 || detail.From[0] != "first" {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	h := jobs.NewHandlers()
	flow.Handle(h, first, func(context.Context, *jobs.Job[firstJob]) (flow.None, error) { return flow.None{}, nil })
	jobs.Register(h, func(context.Context, *jobs.Job[secondJob]) error { return nil })
	w := jobs.NewWorker(s.DB, h, flow.Advance())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	if r, err := client.Wait(ctx, run); err != nil || r.State != jobs.StateCompleted {
		t.Errorf("the run is %s, %v", r.State, err)
	}
	w.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r, err := s.FlowRun(ctx, run); err != nil || len(r.Steps) != 2 || r.Steps[1].State != jobs.StateCompleted {
		t.Errorf("the run is %+v, %v", r, err)
	}
}

// expectStepRefused checks that Retry refuses the finished job of a step. Rerun accepts it, and
// its preview names the run.
func (s jobsSite) expectStepRefused(t *testing.T, run int64) {
	t.Helper()
	all, err := s.List(t.Context(), ops.JobFilter{Kind: "first", States: []jobs.State{jobs.StateCancelled}}, 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("the steps are %+v, %v", all, err)
	}
	var state *ops.StateError
	if _, err := s.Retry(t.Context(), all[0].ID, by); !errors.As(err, &state) {
		t.Errorf("the retry of a step: %v", err)
	} else {
		says(t, err, fmt.Sprintf("step of run %d of a flow", run))
		says(t, err, "RetryFlowRun")
	}
	preview, err := s.Preview(func(o *ops.Jobs) error {
		_, err := o.Rerun(t.Context(), all[0].ID, by)
		return err
	})
	if err != nil || len(preview) != 1 || !strings.Contains(string(preview[0].Detail), fmt.Sprintf(`"flow_run": %d`, run)) {
		t.Errorf("the preview of a rerun: %+v, %v", preview, err)
	}
}
