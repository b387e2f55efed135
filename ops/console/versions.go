package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

// planPage shows what a build would change.
type planPage struct {
	Build   string `json:"-"` // as the operator has given it
	Changes bool   // one of the consumers would change
	Planned []ops.Planned
}

func (r *eventReads) plan(ctx context.Context, q query, _ Grant) (any, error) {
	p := planPage{Build: q.Get("build")}
	if p.Build == "" {
		return p, nil
	}
	var err error
	p.Planned, err = r.consumers.Plan(ctx, []byte(p.Build))
	p.Changes = slices.ContainsFunc(p.Planned, func(one ops.Planned) bool { return one.Changes })
	return p, err
}

// comparePage shows the rows that only one of two consumers has made.
type comparePage struct {
	Old, New      string
	*ops.Compared // nil: not compared yet
}

// side is a consumer, with the rows that only it has made.
type side struct {
	Consumer string
	Alone    []string
}

func (p comparePage) Sides() []side { return []side{{p.Old, p.OnlyOld}, {p.New, p.OnlyNew}} }

func (p comparePage) heading() string { return "Compare " + p.Old + " and " + p.New }

// compare makes a comparison of Options, if the form of its page is sent. The rows may hold values of
// users.
func (r *eventReads) compare(ctx context.Context, q query, g Grant) (any, error) {
	if g.Level < Payloads {
		return nil, &refusal{http.StatusForbidden, "You may not see rows of consumers."}
	}
	i := slices.IndexFunc(r.comparisons, func(c ops.Comparison) bool { return c.Old == q.Get("old") && c.New == q.Get("new") })
	if i < 0 {
		return nil, &refusal{http.StatusNotFound, "The console has no queries of these two consumers: pgfrontier compare takes them, and so does the application that makes the console, in Options.Comparisons."}
	}
	p := comparePage{Old: q.Get("old"), New: q.Get("new")}
	if q.Get("now") == "" {
		return p, nil
	}
	err := within(ctx, compareLimit, "", func(ctx context.Context) error {
		found, err := r.consumers.Compare(ctx, r.comparisons[i])
		p.Compared = &found
		return err
	})
	if isAny(err, context.DeadlineExceeded) || pgdriver.SQLState(err) == pgdriver.QueryCanceled {
		err = &refusal{http.StatusServiceUnavailable, fmt.Sprintf("The queries took over %v: use pgfrontier compare, whose --timeout may be longer.", compareLimit)}
	}
	return p, err
}

// within bounds an operation that waits for consumers. If its error at the end of the time says what
// they have not handled, the refusal is first and that error.
func within(ctx context.Context, limit time.Duration, first string, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := do(ctx)
	if ctx.Err() != nil && err != nil && !isAny(err, ctx.Err()) && pgdriver.SQLState(err) == "" && !errors.As(err, new(*ops.UnknownOutcomeError)) {
		return &refusal{http.StatusConflict, first + err.Error()}
	}
	return err
}
