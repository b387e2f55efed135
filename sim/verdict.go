package sim

import (
	"context"
	"errors"
	"time"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

// Judged makes a run. If the run was not judged, Judged repeats it once, with twice the time for
// every bound of the harness. The report is then that of the second run, and says what the first
// could not do.
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
		first.Evidence.Harness = &history.HarnessFailure{Step: "the second run", Error: stage.OneLine(err), First: first.Evidence.Harness}
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
	stage.Blame(e, err)
	r := c.plan(scenario).Report(began)
	r.Judge(e)
	return r, nil
}

// Blame adds to a report what went wrong after its run, and judges it again. It returns
// the error if there is no report of a run that could be judged.
func Blame(r *oracle.Report, err error) error {
	if err == nil || r == nil || r.Interrupted {
		return err
	}
	stage.Blame(r.Evidence, err)
	r.Judge(r.Evidence)
	return nil
}
