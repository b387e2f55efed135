package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// flowOps are the operations on runs of flows.
type flowOps struct{ *jobsCore }

// FlowRuns lists runs of flows, the newest first, without their steps. limit is 1 to 10,000.
func (o *flowOps) FlowRuns(ctx context.Context, f flow.Filter, limit int) ([]flow.Run, error) {
	all, err := o.flows.Runs(ctx, f, limit)
	return all, o.fail("list the runs", err)
}

// Unadvanced reports whether some runs of flows have not ended, but no worker has advanced
// flows for a minute. Remedy: register flow.Advance() with the workers. Unadvanced is false for
// a role that may not read the runs and the table of the sweep.
func (o *flowOps) Unadvanced(ctx context.Context) (bool, error) {
	unadvanced, err := o.queue.Unadvanced(ctx, o.db)
	return unadvanced, o.fail("compare the runs with the workers", err)
}

// FlowRun returns a run of a flow with its steps. [flow.Run.DOT] draws the run.
func (o *flowOps) FlowRun(ctx context.Context, run int64) (flow.Run, error) {
	r, err := o.flows.Get(ctx, run)
	if errors.Is(err, flow.ErrNotFound) {
		err = errNoFlowRun
	}
	return r, o.fail(fmt.Sprintf("read run %d", run), err)
}

// CancelFlowRun cancels a run, as [flow.Client.Cancel] does. It refuses a run that has ended or
// was cancelled before with a [StateError].
func (o *flowOps) CancelFlowRun(ctx context.Context, run int64, by By) error {
	return o.changeJobs(ctx, onRun(KindCancel, run, by), checkID("run", run), func(c jobsTx) (any, error) {
		r, err := c.lockFlowRun(ctx, run)
		if err != nil {
			return nil, err
		}
		if r.State != jobs.StateRunning || r.Cancelled {
			why := "only a run that has not ended can be cancelled"
			if r.State == jobs.StateRunning {
				why = "it was cancelled before, and ends with the last of its jobs that run"
			}
			return nil, &StateError{r.State, why}
		}
		_, err = o.flows.Cancel(ctx, c.tx, run)
		return r, err
	})
}

// RetryFlowRun continues a run that has ended, as [flow.Client.Retry] does. It restarts the
// steps from. Without names, it restarts the steps whose failure made the run fail.
func (o *flowOps) RetryFlowRun(ctx context.Context, run int64, by By, from ...string) error {
	return o.changeJobs(ctx, onRun(KindRetry, run, by), checkID("run", run), func(c jobsTx) (any, error) {
		r, err := c.lockFlowRun(ctx, run)
		if err != nil {
			return nil, err
		}
		r.From = from
		err = o.flows.Retry(ctx, c.tx, run, from...)
		if errors.Is(err, flow.ErrUnfinished) {
			err = &StateError{jobs.State(r.State), "it has not ended: wait for its end, or cancel it first"}
		}
		return r, err
	})
}

// lockedFlowRun is a run whose row the transaction has locked.
type lockedFlowRun struct {
	Run       int64      `json:"run"`
	Flow      string     `json:"flow"`
	Version   string     `json:"version"`
	State     jobs.State `json:"state"` // before the operation
	From      []string   `json:"from,omitempty"`
	Cancelled bool       `json:"-"`
}

func (c jobsTx) lockFlowRun(ctx context.Context, run int64) (r lockedFlowRun, err error) {
	r.Run = run
	err = c.tx.QueryRowContext(ctx, `
SELECT flow, version, state, cancel_at IS NOT NULL FROM `+c.t.FlowRuns.SQL()+` WHERE id = $1::bigint FOR NO KEY UPDATE`, run).
		Scan(&r.Flow, &r.Version, &r.State, &r.Cancelled)
	switch {
	case noRows(err):
		return r, errNoFlowRun
	case err != nil:
		return r, lockError(ctx, "its row in "+c.t.FlowRuns.String(), "a statement that tells of its steps keeps for a moment", err)
	}
	return r, nil
}

func onRun(kind Kind, run int64, by By) *verb {
	return &verb{Operation{Kind: kind, By: by}, fmt.Sprintf("run %d", run)}
}
