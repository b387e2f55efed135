package consume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// health tells how a worker is. coord and the fields below coord are set by prepare.
type health struct {
	*env
	cfg         *Config
	state       *atomic.Value // observe.State
	ready       <-chan struct{}
	listener    *runtime.Listener
	coord       *coord.Coordinator
	coordinated func() time.Time // returns when the coordination's last iteration began
	watched     *watchdog.Moment // when the consumers were last watched
	reads       *logReads
}

// probe returns the probe of the worker.
func (h *health) probe(maxAge time.Duration) runtime.Probe {
	return runtime.Probe{
		State: func() observe.State { return h.state.Load().(observe.State) }, HangsAfter: h.limits.watchdog, Observers: h.observers,
		Loops: h.iterations, Answers: h.answers,
		Reasons: func() []error { return reasons(h.status(), maxAge, h.cfg.HeartbeatTimeout) },
	}
}

// status returns a snapshot of the worker.
func (h *health) status() observe.Status {
	s := observe.Status{State: h.state.Load().(observe.State)}
	if !isClosed(h.ready) {
		return s
	}
	c := h.coord.Status()
	s.Leader, s.LastHeartbeat, s.CoordinationError, s.Unowned = c.Leader, c.LastHeartbeat, errtext.Of(explain(c.LastError)), c.Unowned
	s.NotifyError = h.listener.Err()
	s.FrontierError = errtext.Of(explain(h.frontier.Err()))
	s.Blocked = h.frontier.Blocked()
	v := h.frontier.Value()
	s.Settled, s.MaxOpenRanges = v.Settled, h.cfg.MaxOpenRanges
	var safe, head *int64
	if s.Safe = v.Safe; v.Token != "" {
		safe = &s.Safe
	}
	s.LoopError = h.probe(0).Hanging()
	read, seen := h.frontier.Head()
	if s.Head = max(read, s.Safe, h.reads.headOf(v.Token)); seen {
		head = &s.Head
	}
	s.LastRead = h.frontier.LastRead()
	s.SafeStill = h.reads.still(v.Token, s.Safe, s.Head, time.Now())
	for _, whole := range h.reads.units {
		units := h.reads.partsOf(whole.spec)
		if len(units) == 0 {
			units = []*unit{whole}
		}
		for _, u := range units {
			s.Consumers = append(s.Consumers, u.status.snapshot(safe, head))
		}
	}
	return s
}

// heartbeat returns the status that a heartbeat stores in the table of workers. It
// omits consumers that are not assigned to this worker.
func (h *health) heartbeat() ([]byte, error) {
	s := h.status()
	s.Consumers = slices.DeleteFunc(s.Consumers, func(c observe.ConsumerStatus) bool { return !c.Assigned })
	status, err := json.Marshal(s)
	if h.ascii {
		status = []byte(errtext.ASCIIOfJSON(string(status)))
	}
	return status, err
}

// isClosed reports whether c is closed. No value is sent on c.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answers returns an error if the log cannot be read. An altered sequence does not count.
func (h *health) answers(ctx context.Context) error {
	err := pgdriver.Living(ctx, h.db.DB, func() error { return h.reads.read(ctx) })
	if altered := (*frontier.SetupError)(nil); err == nil || errors.As(errtext.Of(h.frontier.Err()), &altered) {
		return nil
	}
	return pgdriver.Unanswered(errtext.Of(explain(err)))
}

// iterations returns, for each loop, the time since its last iteration began, less its longest
// pause.
func (h *health) iterations() (all []runtime.Loop) {
	for _, loop := range []struct {
		name  string
		at    time.Time
		pause time.Duration // the longest pause between two iterations
	}{
		{"reads the log", h.frontier.Turned(), h.cfg.DispatcherInterval},
		{"coordinates", h.coordinated(), h.cfg.HeartbeatInterval},
		{"watches the consumers", h.watched.Get(), h.cfg.MaxPollInterval},
	} {
		if !loop.at.IsZero() {
			all = append(all, runtime.Loop{Name: "that " + loop.name, Lasts: time.Since(loop.at) - loop.pause})
		}
	}
	return all
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
		blocked := s.Blocked
		if s.FrontierError != nil {
			blocked = nil // they may have ended since LastRead, and their pids may be others'
		}
		for _, b := range blocked {
			err = fmt.Errorf("%w; %s", err, b.Remedy())
		}
		if len(blocked) == 0 {
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
