package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// probe returns the probe of the worker. coordinated returns when the coordination's last
// iteration began.
func (w *Worker) probe(coordinated func() time.Time, maxAge time.Duration) runtime.Probe {
	return runtime.Probe{
		State: func() observe.State { return w.state.Load().(observe.State) }, HangsAfter: w.limits.watchdog, Observers: w.observers,
		Loops:   func() []runtime.Loop { return w.iterations(coordinated()) },
		Answers: w.answers, Reasons: func() []error { return reasons(w.Status(), maxAge, w.cfg.HeartbeatTimeout) },
	}
}

// Live returns an error if only a new process helps.
func (w *Worker) Live() error { return w.probe(w.coordinated, 0).Live() }

// Ready returns the reasons why the worker does not do all of its work.
func (w *Worker) Ready(ctx context.Context, maxAge time.Duration) []error {
	return w.probe(w.coordinated, maxAge).Ready(ctx)
}

// coordinated returns when the coordination's last iteration began.
func (w *Worker) coordinated() (at time.Time) {
	if w.isReady() {
		at = w.coord.Status().LastTurn
	}
	return at
}

// answers returns an error if the log cannot be read. An altered sequence counts as another
// server's.
func (w *Worker) answers(ctx context.Context) error {
	err := w.logReads.read(ctx)
	if altered := (*frontier.SetupError)(nil); err == nil || errors.As(errtext.Of(w.frontier.Err()), &altered) {
		return nil
	}
	return fmt.Errorf("the database does not answer as it should: see that the server runs and can be reached from here: %w", errtext.Of(explain(err)))
}

// lateShown is the number of late consumers that Ready names.
const lateShown = 10

// reasons returns why a running worker is not ready. It leaves out the LoopError.
func reasons(s observe.Status, maxAge, heartbeatTimeout time.Duration) (all []error) {
	for _, err := range []error{s.FrontierError, s.CoordinationError, runtime.LateHeartbeat(s.LastHeartbeat, heartbeatTimeout, "have taken the consumers over")} {
		if err != nil {
			all = append(all, err)
		}
	}
	if s.SafeStill > maxAge {
		err := fmt.Errorf("consumers may read up to position %d for %v, while the head of the log is %d", s.Safe, s.SafeStill.Round(time.Second), s.Head)
		for _, b := range s.Blocked {
			err = fmt.Errorf("%w; %s", err, b.Remedy())
		}
		if len(s.Blocked) == 0 {
			err = fmt.Errorf("%w; no transaction is known to hold them back: see FrontierError and the log", err)
		}
		all = append(all, err)
	}
	var late []observe.ConsumerStatus
	for _, c := range s.Consumers {
		if errors.Is(c.LastError, ErrHandlerOverdue) {
			all = append(all, fmt.Errorf("consumer %q: %w", c.Name, c.LastError))
		}
		if c.Still > maxAge && c.Paused == nil {
			late = append(late, c)
		}
	}
	slices.SortStableFunc(late, func(a, b observe.ConsumerStatus) int { return cmp.Compare(oldestOf(b), oldestOf(a)) })
	for i, c := range late {
		if i == lateShown {
			return append(all, fmt.Errorf("%d more consumers are late: Status shows them", len(late)-i))
		}
		all = append(all, lateError(c))
	}
	return all
}

// oldestOf returns OldestAge, or how long the consumer has not moved if OldestAge is nil.
func oldestOf(c observe.ConsumerStatus) time.Duration {
	if c.OldestAge == nil {
		return c.Still
	}
	return *c.OldestAge
}

// lateError returns an error that tells how late a consumer is, and what to check.
func lateError(c observe.ConsumerStatus) error {
	if c.OldestAge == nil {
		err := fmt.Errorf("consumer %q is assigned to this worker, which has not loaded its progress for %v", c.Name, c.Still.Round(time.Second))
		if c.LastError == nil {
			return fmt.Errorf("%w: see the log", err)
		}
		return fmt.Errorf("%w: %w", err, c.LastError)
	}
	err := fmt.Errorf("consumer %q has not moved for %v: it has not handled an event that is %v old, at position %d or above", c.Name, c.Still.Round(time.Second), c.OldestAge.Round(time.Second), c.Position+1)
	switch {
	case c.LastError != nil && c.Failures > 0 && pgdriver.IsOfStatement(pgdriver.SQLState(c.LastError)):
		return fmt.Errorf("%w: mend the statement, or GRANT this worker's role what the error names; the event is not to blame: %w", err, c.LastError)
	case c.LastError != nil && c.Failures > 0:
		return fmt.Errorf("%w: mend its handler, or skip the event with ops.SkipEvent: %w", err, c.LastError)
	case c.LastError != nil: // not a handler's failure: the event need not be skipped
		return fmt.Errorf("%w: %w", err, c.LastError)
	}
	return fmt.Errorf("%w: an open transaction may hold it back, or its handler is slow: see Blocked of Status and the log", err)
}

// hanging returns an error if a loop's last iteration is too old or an observer does not
// return. coordinated is when the coordination's last iteration began.
func (w *Worker) hanging(coordinated time.Time) error {
	return w.probe(func() time.Time { return coordinated }, 0).Hanging()
}

// iterations returns how much longer than its longest pause ago the last iteration of each loop
// began.
func (w *Worker) iterations(coordinated time.Time) (all []runtime.Loop) {
	for _, loop := range []struct {
		name  string
		at    time.Time
		pause time.Duration // the longest pause between two iterations
	}{
		{"reads the log", w.frontier.Turned(), w.cfg.DispatcherInterval},
		{"coordinates", coordinated, w.cfg.HeartbeatInterval},
		{"watches the consumers", w.progressWatch.began.Get(), w.cfg.MaxPollInterval},
	} {
		if !loop.at.IsZero() {
			all = append(all, runtime.Loop{Name: "that " + loop.name, Lasts: time.Since(loop.at) - loop.pause})
		}
	}
	return all
}
