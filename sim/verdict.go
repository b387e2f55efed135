package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Judged makes a run, and repeats it once with twice the time for every bound of the
// harness if it was not judged. The report is that of the second run then, and says what
// the first could not do.
func Judged(run func(patience float64) (*oracle.Report, error)) (*oracle.Report, error) {
	first, err := run(1)
	if err != nil || first == nil || first.Outcome != oracle.NotJudged {
		return first, err
	}
	second, err := run(2)
	switch {
	case second != nil:
		second.Again(first)
	case !errors.Is(err, context.Canceled): // there was a server before, so it is not wrong usage
		first.Evidence.Harness = &history.HarnessFailure{Step: "the second run", Error: oneLine(err), First: first.Evidence.Harness}
		first.Judge(first.Evidence)
		return first, nil
	}
	return second, err
}

// NotStarted is the report of a run that ended before there was a database for it. If ctx
// ended it, there is none.
func NotStarted(ctx context.Context, c Config, err error) (*oracle.Report, error) {
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	scenario, began := Draw(c), time.Now()
	e := &history.Evidence{Consumers: scenario.Scope, History: history.New(began), Incomplete: true, Unread: true}
	if c.Jobs {
		e.Jobs = &history.Jobs{}
	}
	blame(e, err)
	r := c.report(scenario, began)
	r.Judge(e)
	return r, nil
}

// Blame adds to a report what went wrong after its run, and judges it again. It returns
// the error if there is no report of a run that could be judged.
func Blame(r *oracle.Report, err error) error {
	if err == nil || r == nil || r.Interrupted {
		return err
	}
	blame(r.Evidence, err)
	r.Judge(r.Evidence)
	return nil
}

// blame writes down why a run could not go on: the harness could not, or something failed
// that nothing explains. Errors that were joined are blamed one by one.
func blame(e *history.Evidence, err error) {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, err := range all {
		x := harness.Explain(err)
		switch {
		case x == nil:
			e.Failures = append(e.Failures, oneLine(err))
		case e.Harness == nil:
			e.Harness = &history.HarnessFailure{Step: x.Step, Bound: x.Bound, Error: oneLine(x.Err)}
		}
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// report is a report of what was decided before the run.
func (c Config) report(s Scenario, began time.Time) *oracle.Report {
	return &oracle.Report{
		Seed: c.Seed, Repeat: c.command(), Workers: c.Workers, Writers: c.Writers,
		Began: began.UTC(), Seconds: time.Since(began).Seconds(), Slowness: max(c.Bounds.Slowness, 1),
		Knobs: append(s.Lines(), oracle.Line{Name: "machine", Value: c.Bounds.String()}),
	}
}

// answers reports whether the server answers the harness.
func (d *database) answers(ctx context.Context) bool {
	ctx, cancel := d.bounded(ctx, pingBound)
	defer cancel()
	d.refresh()
	for d.db.PingContext(ctx) != nil {
		if d.gone.Load() != nil || !backoff.Sleep(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// pingBound bounds the question whether there is a server at all, before evidence is
// collected from it and the database is removed.
const pingBound = 5 * time.Second

// collectAll completes the evidence of a run that ended with err. It collects what there
// is also if the run could not go on: what is broken in that is broken.
func (d *database) collectAll(ctx context.Context, e *history.Evidence, err error, collect func() error) {
	if err != nil {
		e.Incomplete = true
		blame(e, err)
	}
	if err != nil && !d.answers(ctx) {
		e.Unread = true
		return
	}
	if err := collect(); err != nil {
		e.Incomplete, e.Unread = true, true
		blame(e, err)
	}
}
