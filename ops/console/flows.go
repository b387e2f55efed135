package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

// flowsPage are runs of flows by a filter.
type flowsPage struct {
	Filter flow.Filter
	States []jobs.State `json:"-"` // to choose from
	Runs   []flow.Run
	Next   int64 `json:",omitempty"`
}

var runStates = []jobs.State{jobs.StateRunning, jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled}

func (r *jobReads) runs(ctx context.Context, q query, _ Grant) (any, error) {
	p := flowsPage{Filter: flow.Filter{Flow: q.Get("flow"), State: jobs.State(q.Get("state")), Before: q.int("before")}, States: runStates}
	if p.Filter.State != "" && !slices.Contains(runStates, p.Filter.State) {
		return nil, &refusal{http.StatusBadRequest, fmt.Sprintf("There is no state %.50q of a run.", p.Filter.State)}
	}
	all, err := r.jobs.FlowRuns(ctx, p.Filter, perPage+1)
	p.Runs, p.Next = firstOf(all, func(r flow.Run) int64 { return r.ID })
	return p, err
}

// flowPage is a run of a flow.
type flowPage struct{ Run flow.Run }

func (p flowPage) heading() string { return fmt.Sprintf("Run %d of %s", p.Run.ID, p.Run.Flow) }

// Ended reports whether the run can be retried, and not cancelled.
func (p flowPage) Ended() bool { return p.Run.State != jobs.StateRunning }

// flowStep is a step of a run, or one of the jobs of a Map step.
type flowStep struct {
	flow.StepInfo
	Of int // how many jobs the step has, 0 if it is no Map step
}

// steps are all in order, each with its jobs.
func (p flowPage) steps() (all []flowStep) {
	for _, s := range p.Run.Steps {
		of := 0
		for _, n := range s.Jobs {
			of += n
		}
		all = append(all, flowStep{s, of})
		for _, item := range s.Items {
			all = append(all, flowStep{item, 0})
		}
	}
	return all
}

// Rows are the steps that the page shows, in order. Those that have not completed come
// before the others if there are too many.
func (p flowPage) Rows() (some []flowStep) {
	all := p.steps()
	completed := namesPerPage
	for _, s := range all {
		if s.State != jobs.StateCompleted {
			completed--
		}
	}
	for _, s := range all {
		if s.State == jobs.StateCompleted {
			if completed--; completed < 0 {
				continue
			}
		}
		if some = append(some, s); len(some) == namesPerPage {
			break
		}
	}
	return some
}

// Hidden is how many steps the page does not show.
func (p flowPage) Hidden() int { return len(p.steps()) - len(p.Rows()) }

func (r *jobReads) run(ctx context.Context, q query, g Grant) (any, error) {
	run, err := r.findRun(ctx, q.int("id"))
	if g.Level < Payloads {
		withoutResults(run.Steps)
	}
	return flowPage{run}, err
}

func (r *jobReads) findRun(ctx context.Context, id int64) (flow.Run, error) {
	run, err := r.jobs.FlowRun(ctx, id)
	if errors.Is(err, ops.ErrNotFound) {
		err = &refusal{http.StatusNotFound, fmt.Sprintf("There is no run %d of a flow. One that has ended is deleted when its retention is over.", id)}
	}
	return run, err
}

// withoutResults removes the results of steps and of their items.
func withoutResults(steps []flow.StepInfo) {
	for i := range steps {
		steps[i].Result = nil
		withoutResults(steps[i].Items)
	}
}
