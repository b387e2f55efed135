package flow_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

type oddJob struct{ kind string }

func (o oddJob) Kind() string { return o.kind }

type panicJob struct{ p *int }

func (p panicJob) Kind() string { return strings.Repeat("x", *p.p) }

// Check and Start return every error of a flow, before any statement is sent.
func TestBadFlows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	other := flow.New[int]("other")
	foreign := flow.Add[int](other, "foreign", func(int) noteJob { return noteJob{} })
	note := func(int) noteJob { return noteJob{} }
	for name, c := range map[string]struct {
		build func(f *flow.Flow[int])
		says  string
	}{
		"no steps":               {func(*flow.Flow[int]) {}, "there are no steps"},
		"no name":                {func(f *flow.Flow[int]) { flow.Add[int](f, "", note) }, "the name of a step"},
		"a name with a zero":     {func(f *flow.Flow[int]) { flow.Add[int](f, "a\x00", note) }, "the name of a step"},
		"the same name":          {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note); flow.Add[int](f, "a", note) }, `two steps are called "a"`},
		"no function":            {func(f *flow.Flow[int]) { flow.Add[int, int, noteJob](f, "a", nil) }, "is nil"},
		"a function that panics": {func(f *flow.Flow[int]) { flow.Add[int](f, "a", func(int) noteJob { panic("boom") }) }, "panicked: boom"},
		"no kind":                {func(f *flow.Flow[int]) { flow.Add[int](f, "a", func(int) oddJob { return oddJob{} }) }, "Kind is empty"},
		"a kind that panics":     {func(f *flow.Flow[int]) { flow.Add[int](f, "a", func(int) panicJob { return panicJob{} }) }, "asked of a zero value"},
		"a nil step":             {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.After(nil)) }, "depends on a step that is nil"},
		"a nil pointer":          {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.OnEnd((*flow.Step[noteJob, int])(nil))) }, "depends on a step that is nil"},
		"a nil step of If":       {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.If[noteJob, int](nil, 1)) }, "the step is nil"},
		"a nil list":             {func(f *flow.Flow[int]) { flow.Map[int](f, "a", (*flow.Step[noteJob, []noteJob])(nil)) }, "is nil"},
		"another flow's step":    {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.After(foreign)) }, "of another flow"},
		"twice the same": {func(f *flow.Flow[int]) {
			a := flow.Add[int](f, "a", note)
			flow.Add[int](f, "b", note, flow.After(a), flow.OnEnd(a))
		}, `step "b" depends on step "a" twice`},
		"a quorum of nothing": {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Any()) }, "a quorum of 1 of the 0 steps"},
		"a quorum of 0":       {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Quorum(0)) }, "Quorum: 0 is out of range"},
		"Any and a quorum": {func(f *flow.Flow[int]) {
			a, b := flow.Add[int](f, "a", note), flow.Add[int](f, "b", note)
			flow.Add[int](f, "c", note, flow.After(a, b), flow.Any(), flow.Quorum(2))
		}, `step "c": Any or Quorum is given twice`},
		"after nothing":          {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.After()) }, `step "a": After takes a step or more`},
		"on the failure of none": {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.OnFailure()) }, "OnFailure takes a step or more"},
		"at the end of nothing":  {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.OnEnd()) }, "OnEnd takes a step or more"},
		"a pattern with a zero": {func(f *flow.Flow[int]) {
			a := flow.Add[int](f, "a", note)
			flow.Add[int](f, "b", note, flow.If(a, map[string]string{"risk": "\x00"}))
		}, "NUL character"},
		"a pattern": {func(f *flow.Flow[int]) {
			a := flow.Add[int](f, "a", note)
			flow.Add[int](f, "b", note, flow.If(a, func() {}))
		}, "no JSON"},
		"a key":      {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Enqueue(jobs.Unique("k"))) }, "no Unique"},
		"a time":     {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Enqueue(jobs.At(time.Now()))) }, "no At"},
		"a meta":     {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Enqueue(jobs.Meta(1))) }, "no Meta"},
		"a priority": {func(f *flow.Flow[int]) { flow.Add[int](f, "a", note, flow.Enqueue(jobs.Priority(10))) }, "Priority: 10"},
		"a priority of a list": {func(f *flow.Flow[int]) {
			a := flow.Add[[]noteJob](f, "a", note)
			flow.Map[int](f, "b", a, flow.Enqueue(jobs.Priority(10)))
		}, "Priority: 10"},
		"too many": {func(f *flow.Flow[int]) {
			for i := range 1001 {
				flow.Add[int](f, strings.Repeat("a", i%200+1)+strings.Repeat("b", i/200), note)
			}
		}, "is one too many"},
	} {
		t.Run(name, func(t *testing.T) {
			f := flow.New[int]("bad")
			c.build(f)
			_, started := f.Start(t.Context(), s.Client, nil, 1)
			for _, err := range []error{f.Check(), started} {
				if !errors.Is(err, flow.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v", err)
				}
			}
		})
	}
	if n := s.count(`SELECT count(*) FROM jobs_flow_runs`); n > 0 {
		t.Errorf("%d runs", n)
	}
	if err := other.Check(); err != nil {
		t.Error(err)
	}
	several := flow.New[int]("")
	flow.Add[int](several, "a", note, flow.Quorum(0))
	flow.Add[int](several, "a", note)
	for _, says := range []string{"the name of flow", "Quorum: 0", `two steps are called "a"`} {
		if err := several.Check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("of several problems, %s is missing: %v", says, err)
		}
	}
}

// Invalid calls return errors that name the problem, and do not panic.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	f := flow.New[int]("f")
	a := flow.Add[int](f, "a", func(n int) noteJob { return noteJob{n} })
	bad := flow.NewClient(jobs.NewClient(nil))
	for name, c := range map[string]struct {
		call func() error
		is   error
		says string
	}{
		"no client":                       {func() error { _, err := f.Start(ctx, nil, nil, 1); return err }, nil, "client is nil"},
		"no client of jobs":               {func() error { _, err := flow.NewClient(nil).Get(ctx, 1); return err }, nil, "client is nil"},
		"start with a client that fails":  {func() error { _, err := f.Start(ctx, bad, nil, 1); return err }, nil, "db is nil"},
		"get with a client that fails":    {func() error { _, err := bad.Get(ctx, 1); return err }, nil, "db is nil"},
		"wait with a client that fails":   {func() error { _, err := bad.Wait(ctx, 1); return err }, nil, "db is nil"},
		"list with a client that fails":   {func() error { _, err := bad.Runs(ctx, flow.Filter{}, 1); return err }, nil, "db is nil"},
		"cancel with a client that fails": {func() error { _, err := bad.Cancel(ctx, nil, 1); return err }, nil, "db is nil"},
		"retry with a client that fails":  {func() error { return bad.Retry(ctx, nil, 1) }, nil, "db is nil"},
		"output with a client that fails": {func() error { _, err := a.Output(ctx, bad, 1); return err }, nil, "db is nil"},
		"a nil tx":                        {func() error { _, err := f.Start(ctx, s.Client, (*sql.Tx)(nil), 1); return err }, nil, "tx is a nil *sql.Tx"},
		"an empty key":                    {func() error { _, err := f.Start(ctx, s.Client, nil, 1, flow.Key("")); return err }, flow.ErrInvalid, "Key"},
		"a long key": {func() error {
			_, err := f.Start(ctx, s.Client, nil, 1, flow.Key(strings.Repeat("x", 1001)))
			return err
		}, flow.ErrInvalid, "Key"},
		"a key of no text":     {func() error { _, err := f.Start(ctx, s.Client, nil, 1, flow.Key("\xff")); return err }, flow.ErrInvalid, "Key"},
		"a key with a zero":    {func() error { _, err := f.Start(ctx, s.Client, nil, 1, flow.Key("a\x00")); return err }, flow.ErrInvalid, "Key"},
		"no such run":          {func() error { _, err := s.Wait(ctx, 7); return err }, flow.ErrNotFound, "run 7"},
		"cancel no run":        {func() error { _, err := s.Cancel(ctx, nil, 7); return err }, flow.ErrNotFound, "run 7"},
		"output of no run":     {func() error { _, err := a.Output(ctx, s.Client, 7); return err }, flow.ErrNotFound, `step "a" of run 7`},
		"output of run 0":      {func() error { _, err := a.Output(ctx, s.Client, 0); return err }, flow.ErrNotFound, "run 0"},
		"output of a huge run": {func() error { _, err := a.Output(ctx, s.Client, 1<<62); return err }, flow.ErrNotFound, ""},
		"a limit":              {func() error { _, err := s.Runs(ctx, flow.Filter{}, 0); return err }, nil, "limit is 0"},
		"a page":               {func() error { _, err := s.Runs(ctx, flow.Filter{Before: -1}, 1); return err }, nil, "Before is -1"},
		"a state":              {func() error { _, err := s.Runs(ctx, flow.Filter{State: "odd"}, 1); return err }, nil, `"odd"`},
		"a flow":               {func() error { _, err := s.Runs(ctx, flow.Filter{Flow: "a\x00"}, 1); return err }, nil, "no text"},
		"a context that ended": {func() error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err := f.Start(ended, s.Client, nil, 1)
			return err
		}, context.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.call(); err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
	if run := flow.RunOf(jobs.Header{Meta: []byte(`{"flow_step": "odd"}`)}); run != 0 {
		t.Errorf("a job that is no step's is of run %d", run)
	}
	// A step that has not ended has no output.
	run := start(s, f, 1)
	if _, err := a.Output(ctx, s.Client, run); !errors.Is(err, flow.ErrNoOutput) || !strings.Contains(err.Error(), "available") {
		t.Errorf("%v", err)
	}
	// A worker reports which tables of flows are missing.
	s.d.Exec(t, `DROP TABLE jobs_flow_sweep`)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[noteJob]) error { return nil })
	if err := jobs.NewWorker(s.d.DB, s.Handlers, flow.Advance()).Start(ctx); err == nil || !strings.Contains(err.Error(), "jobs_flow_sweep") {
		t.Errorf("without a table: %v", err)
	}
}
