package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// Output returns the result of a step of a run. In the handler of a later step, run is
// RunOf(j.Header). If the step has no result, Output returns [ErrNoOutput].
func (s *Step[A, R]) Output(ctx context.Context, c *Client, run int64) (result R, err error) {
	text, err := s.output(ctx, c, run)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return result, s.noOutput(run, err)
	}
	return result, nil
}

// Outputs returns the results of the completed jobs of a [Map] step, in the order of the list.
func (s *Mapped[A, R]) Outputs(ctx context.Context, c *Client, run int64) (results []R, err error) {
	if _, err = s.output(ctx, c, run); err == nil || errors.Is(err, ErrNoOutput) {
		var text string
		text, err = with(c, nil, func(on jobs.Querier) (text string, err error) {
			return text, on.QueryRowContext(ctx, c.sql.outputs, int64(idOf(run, s.n, 0))).Scan(&text)
		})
		if err == nil {
			err = json.Unmarshal([]byte(text), &results)
		}
	}
	if err != nil {
		return nil, s.noOutput(run, err)
	}
	return results, nil
}

func (p place) noOutput(run int64, err error) error {
	name := ""
	if p.n >= 0 {
		name = p.def.nodes[p.n].name
	}
	return errtext.Of(fmt.Errorf("flow: output of step %s of run %d: %w", errtext.Value(name), run, err))
}

// output reads the result of a step.
func (p place) output(ctx context.Context, c *Client, run int64) ([]byte, error) {
	if p.n < 0 {
		return nil, fmt.Errorf("%w: its flow refused the step", ErrInvalid)
	}
	if run < 1 || run > math.MaxInt64>>runShift {
		return nil, ErrNotFound
	}
	return with(c, nil, func(on jobs.Querier) (result []byte, err error) {
		var state, code, text string
		var ended bool
		err = on.QueryRowContext(ctx, c.sql.output, run, p.def.nodes[p.n].name, int64(idOf(run, p.n, 0))).Scan(&state, &ended, &code, &text, &result)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil, c.noStep(ctx, on, run)
		case err != nil:
			return nil, err
		case state != "completed" || !ended:
			return nil, fmt.Errorf("%w: it is %s", ErrNoOutput, shown(state, ""))
		}
		return result, nil
	})
}

// noStep returns an error that names the steps of a run that lacks the wanted step.
func (c *Client) noStep(ctx context.Context, on jobs.Querier, run int64) error {
	names, err := pgdriver.QueryAll(ctx, on, pgdriver.Value[string], c.sql.names, run)
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return c.notFound(ctx, on)
	}
	return fmt.Errorf("%w: the run is of another flow, or of another version of it, and has %s", ErrNotFound, listed(names))
}

// listed joins names to a text.
func listed(names []string) string {
	const most = 20
	var b strings.Builder
	for i, name := range names[:min(most, len(names))] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(errtext.Value(name))
	}
	if len(names) > most {
		fmt.Fprintf(&b, " and %d more", len(names)-most)
	}
	return b.String()
}
