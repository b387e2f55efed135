package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// Run is a run of a flow.
type Run struct {
	ID      int64
	Flow    string
	Version string // of the flow's shape
	// State is running, completed, failed or cancelled. A run has completed if each step without a
	// later After step has completed, or was not needed. Otherwise it has failed or was cancelled.
	State      jobs.State
	Key        string // empty: none
	Unfinished int    // steps and jobs of Map steps that have not ended
	CreatedAt  time.Time
	CancelAt   *time.Time // when the run was cancelled; nil: it was not
	FinishedAt *time.Time

	// Steps are in the order of the flow. Only [Client.Get] and [Client.Wait] fill them.
	Steps []StepInfo
}

// StepInfo is a step of a run, or a job of a [Map] step.
type StepInfo struct {
	Name       string
	Item       int // for a job of a Map step: its place in the list, from 1
	Kind       string
	State      jobs.State
	Job        int64 // 0: none yet, or a Map step itself
	Attempt    int
	Failures   int
	StartedAt  *time.Time
	FinishedAt *time.Time
	Code       string
	Error      string
	Result     json.RawMessage // nil: none
	Optional   bool

	// Items are the jobs of a Map step, jobs that have not completed first. A run has a thousand
	// Items at most. Jobs counts all jobs by state.
	Items []StepInfo
	Jobs  map[jobs.State]int

	id         stepID
	mapped     bool
	quorum     int
	dependents []edge
}

// shown returns the state to show for a step: the state of its job while it has one, else the state
// in the table.
func shown(state, job string) jobs.State {
	switch {
	case state == "enqueued" && job != "":
		return jobs.State(job)
	case state == "enqueued":
		return jobs.StateAvailable
	case state == "spread":
		return jobs.StateRunning
	case state == "ready":
		return jobs.StateWaiting
	}
	return jobs.State(state)
}

var scanRun = pgdriver.Columns(func(r *Run) []any {
	return []any{&r.ID, &r.Flow, &r.Version, &r.State, &r.Key, &r.Unfinished, pgdriver.UTCOrNil(&r.CancelAt), pgdriver.UTC(&r.CreatedAt), pgdriver.UTCOrNil(&r.FinishedAt)}
})

func scanStep(r *sql.Rows) (s StepInfo, err error) {
	var state, job string
	var list sql.NullInt64
	err = r.Scan(&s.id, &s.Name, &s.Kind, &state, &s.Job, &job, &s.Attempt, &s.Failures, pgdriver.UTCOrNil(&s.StartedAt), pgdriver.UTCOrNil(&s.FinishedAt), &s.Code, &s.Error,
		pgdriver.RawJSON(&s.Result), &s.Optional, &list, &s.quorum, pgdriver.JSON(&s.dependents))
	s.State, s.Item, s.mapped = shown(state, job), s.id.item(), list.Valid
	return s, err
}

// mostItems bounds the jobs of Map steps that Get returns.
const mostItems = 1000

// Get returns a run with its steps. It returns [ErrNotFound] if the run was not started, or ended
// longer ago than runs are kept.
func (c *Client) Get(ctx context.Context, run int64) (Run, error) {
	r, err := with(c, nil, func(on jobs.Querier) (Run, error) {
		found, err := pgdriver.QueryAll(ctx, on, scanRun, c.sql.find, run)
		if err == nil && len(found) == 0 {
			err = c.notFound(ctx, on)
		}
		if err != nil {
			return Run{}, err
		}
		r := found[0]
		err = c.readSteps(ctx, on, &r)
		return r, err
	})
	if err != nil {
		return r, errtext.Of(fmt.Errorf("flow: look up run %d: %w", run, err))
	}
	return r, nil
}

func (c *Client) readSteps(ctx context.Context, on jobs.Querier, r *Run) (err error) {
	if r.Steps, err = pgdriver.QueryAll(ctx, on, scanStep, c.sql.steps, r.ID); err != nil {
		return err
	}
	if !slices.ContainsFunc(r.Steps, func(s StepInfo) bool { return s.mapped }) {
		return nil
	}
	items, err := pgdriver.QueryAll(ctx, on, scanStep, c.sql.items, r.ID, mostItems)
	if err != nil {
		return err
	}
	type count struct {
		step       stepID
		state, job string
		n          int
	}
	counts, err := pgdriver.QueryAll(ctx, on, pgdriver.Columns(func(n *count) []any { return []any{&n.step, &n.state, &n.job, &n.n} }), c.sql.counts, r.ID)
	if err != nil {
		return err
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if !s.mapped {
			continue
		}
		s.Jobs = map[jobs.State]int{}
		for _, n := range counts {
			if n.step == s.id {
				s.Jobs[shown(n.state, n.job)] += n.n
			}
		}
		for _, item := range items {
			if item.id.n() == s.id.n() {
				s.Items = append(s.Items, item)
			}
		}
	}
	return nil
}

// failure returns why a run has not completed: the first step that has failed.
func (r Run) failure() error {
	e := &FailedError{Run: r.ID, State: r.State}
	for _, s := range r.Steps {
		for _, one := range append([]StepInfo{s}, s.Items...) {
			if (one.State == jobs.StateFailed || one.State == jobs.StateExpired || one.State == jobs.StateCancelled && one.Code != jobflow.CodeSkipped) && e.Text == "" {
				e.Step, e.Code, e.Text = one.Name, one.Code, one.Error
			}
		}
	}
	return e
}

// Filter selects runs. The zero Filter selects all runs.
type Filter struct {
	Flow   string     // empty: all
	State  jobs.State // running, completed, failed or cancelled; empty: all
	Before int64      // only runs with a lower ID, such as the last run of the previous page; 0: all
}

// Runs lists runs without their steps, the newest first. limit is 1 to 10,000. For a rare state,
// Runs reads all runs.
func (c *Client) Runs(ctx context.Context, f Filter, limit int) ([]Run, error) {
	all, err := with(c, nil, func(on jobs.Querier) ([]Run, error) {
		switch {
		case limit < 1 || limit > 10_000:
			return nil, fmt.Errorf("limit is %d, allowed is 1 to 10000", limit)
		case f.Before < 0:
			return nil, fmt.Errorf("the run Before is %d, ids begin at 1", f.Before)
		case f.State != "" && !slices.Contains([]jobs.State{jobs.StateRunning, jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled}, f.State):
			return nil, fmt.Errorf("the state %s is unknown", errtext.Value(f.State))
		case strings.ContainsRune(f.Flow, 0):
			return nil, errors.New("Flow is no text that PostgreSQL can hold")
		case f.Before == 0:
			f.Before = math.MaxInt64
		}
		p := pgdriver.Parameters{Values: []any{f.Before}}
		query := c.sql.list + pgdriver.And(&p, "r.flow = %s", "text", f.Flow) + pgdriver.And(&p, "r.state = %s", "text", string(f.State)) +
			" ORDER BY r.id DESC LIMIT " + p.Add("bigint", limit)
		return pgdriver.QueryAll(ctx, on, scanRun, query, p.Values...)
	})
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("flow: list runs: %w", err))
	}
	return all, nil
}

// colors are the colors of DOT, by state.
var colors = map[jobs.State]string{
	jobs.StateWaiting: "white", jobs.StateAvailable: "lightyellow", jobs.StateRunning: "lightblue", jobs.StateCompleted: "palegreen",
	jobs.StateFailed: "salmon", jobs.StateCancelled: "lightgrey", jobs.StateExpired: "salmon", jobs.StateSkipped: "lightgrey",
}

// DOT draws the steps of a run and their states, for Graphviz (dot -Tsvg). The run must
// have its steps.
func (r Run) DOT() string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph {\n\tlabel=%s; labelloc=t; rankdir=LR; node [shape=box, style=filled];\n", dotText(fmt.Sprintf("%s, run %d: %s", r.Flow, r.ID, r.State)))
	for _, s := range r.Steps {
		text, shape := s.Name+"\n"+string(s.State), "box"
		if s.mapped {
			shape = "box3d"
			for _, state := range slices.Sorted(maps.Keys(s.Jobs)) {
				text += fmt.Sprintf("\n%d %s", s.Jobs[state], state)
			}
		}
		if s.Code != "" {
			text += "\n" + s.Code
		}
		fmt.Fprintf(&b, "\t%d [label=%s, fillcolor=%s, shape=%s];\n", s.id.n(), dotText(text), colors[s.State], shape)
	}
	for _, s := range r.Steps {
		for _, d := range s.dependents {
			label := ""
			switch {
			case d.When != nil:
				label = "if " + string(d.When)
			case d.On != onSuccess:
				label = "on " + string(d.On)
			}
			fmt.Fprintf(&b, "\t%d -> %d [label=%s];\n", s.id.n(), d.N, dotText(label))
		}
	}
	b.WriteString("}\n")
	return b.String()
}

func dotText(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
