package consume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// message is a notification between processes about a consumer. It is a request to report a
// position, or the report that the position is reached.
type message struct {
	Consumer string `json:"consumer"`
	Position int64  `json:"position"`
	Reached  bool   `json:"reached,omitempty"`
}

// arrivals tells the callers of this process and of other processes how far consumers are.
type arrivals struct {
	*env
	awaited *arrival.Callers
	channel string // for requests and replies; empty: none are sent
}

// handle handles a notification of another process or of this one. An empty payload
// follows each new connection: earlier notifications may be lost.
func (r *arrivals) handle(payload string) {
	var m message
	switch err := json.Unmarshal([]byte(payload), &m); {
	case payload == "":
		r.awaited.ReleaseAll()
	case err != nil: // a message of a later version
	case m.Reached:
		r.awaited.Reached(m.Consumer, m.Position)
	default:
		if u := r.unit(m.Consumer); u != nil {
			r.awaited.Request(m.Consumer, m.Position, func() int64 { return r.reached(u.spec) })
		}
	}
}

// broadcast sends messages to the other processes. A process that misses a message polls.
func (r *arrivals) broadcast(ctx context.Context, messages ...message) {
	payloads := make([]string, len(messages))
	for i, s := range messages {
		text, _ := json.Marshal(s) // every message can be marshalled
		payloads[i] = string(text)
	}
	err := r.onPooled(ctx, r.limits.quick, func(ctx context.Context, conn *pooled) error {
		return changes.Send(ctx, conn, r.channel, payloads)
	})
	r.taskFailed(ctx, taskAnnounce, "", err)
}

// answer broadcasts the positions that other processes wait for.
func (r *arrivals) answer(ctx context.Context) {
	for {
		select {
		case <-r.awaited.ReplyDue:
		case <-ctx.Done():
			return
		}
		var messages []message
		for consumer, at := range r.awaited.TakeReplies() {
			messages = append(messages, message{consumer, at, true})
		}
		r.broadcast(ctx, messages...)
	}
}

// ask asks the worker that runs a consumer for a notification at a position.
func (r *arrivals) ask(ctx context.Context, consumer string, position int64, _ bool) {
	if u := r.unit(consumer); r.channel != "" && !(u != nil && u.status.isAssigned()) {
		r.broadcast(ctx, message{Consumer: consumer, Position: position})
	}
}

// read reads how far a consumer is, in the incarnation that the worker reads. An
// abandoned primary may be ahead of the promoted one.
func (r *arrivals) read(ctx context.Context, consumer string, position int64) (a progress.Arrival, err error) {
	err = r.onPooled(ctx, r.limits.quick, func(ctx context.Context, conn *pooled) (err error) {
		var at string
		a, at, err = r.checkpoints.Arrived(ctx, conn, consumer, position)
		if err == nil && a.Unknown {
			at, err = r.checkpoints.Incarnation(ctx, conn)
		}
		known := r.frontier.Value().Token
		switch {
		case err != nil:
			return err
		case known != "" && at != known: // at is empty on a server without a token, as after a crash
			return store.ErrIncarnation
		case a.Unknown && slices.ContainsFunc(r.units, func(u *unit) bool { return consumer == u.consumerName || consumer == u.scope.Projection }):
			return nil
		}
		return arrival.Check(ctx, &r.checkpoints, conn, a, consumer, position)
	})
	return a, err
}

// announce releases the callers that wait for the position of the unit's consumer. position
// is the unit's.
func (s statements) announce(position int64) {
	if s.unit.isPart() {
		position = s.w.reached(s.unit.spec)
	}
	s.w.awaited.Advanced(s.unit.consumerName, position)
}

// Waiter waits for consumers in a process that runs none.
type Waiter struct {
	db    pgdriver.Pool
	cfg   Config
	waits arrival.Waits
	found atomic.Pointer[waiterTables] // nil: the tables were not resolved yet
}

// waiterTables are the workers' tables that a Waiter has resolved.
type waiterTables struct {
	checkpoints progress.Checkpoints
	changes     ident.Table
}

// NewWaiter makes a Waiter. It does no I/O: WaitFor checks the arguments.
func NewWaiter(db *sql.DB, c Config) *Waiter {
	w := &Waiter{db: pgdriver.NewPool(db), cfg: c}
	w.waits = arrival.Waits{Callers: arrival.NewCallers(), First: arrival.PartPoll, Every: w.cfg.DispatcherInterval, Arrived: w.arrived, Ask: w.ask}
	return w
}

// WaitFor waits until a consumer has handled the event at a position.
func (w *Waiter) WaitFor(ctx context.Context, consumer string, position int64) error {
	err := w.cfg.Validate()
	if w.db.DB == nil {
		err = errtext.Join(errors.New("db is nil: open one with sql.Open"), err)
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("worker: %w: %w", ErrInvalidConfig, err))
	}
	if err := arrival.CheckWhole(consumer); err != nil {
		return err
	}
	return errtext.Of(explain(w.waits.Until(ctx, consumer, position)))
}

// arrived reads how far a consumer is.
func (w *Waiter) arrived(ctx context.Context, consumer string, position int64) (a progress.Arrival, err error) {
	err = w.connected(ctx, func(ctx context.Context, conn *sql.Conn) error {
		t, err := w.find(ctx, conn)
		if err != nil {
			return err
		}
		q := w.db.Plans.On(conn, conn)
		if a, _, err = t.checkpoints.Arrived(ctx, q, consumer, position); err != nil {
			return err
		}
		return arrival.Check(ctx, &t.checkpoints, q, a, consumer, position)
	})
	return a, err
}

// ask asks the workers of a split consumer for a notification at a position. Their
// checkpoints may be behind what they have passed. A standby cannot send notifications. The
// waiter polls in any case.
func (w *Waiter) ask(ctx context.Context, consumer string, position int64, split bool) {
	t := w.found.Load()
	text, err := json.Marshal(message{Consumer: consumer, Position: position})
	if !split || t == nil || err != nil {
		return
	}
	_ = w.connected(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return changes.SendWait(ctx, conn, t.changes, string(text))
	})
}

// connected calls do with a connection, within the limit of a quick statement or, before the tables
// are found, within that of a read.
func (w *Waiter) connected(ctx context.Context, do func(context.Context, *sql.Conn) error) (err error) {
	limit := usualLimits.quick
	if w.found.Load() == nil {
		limit = usualLimits.read
	}
	bound, cancel := context.WithTimeoutCause(ctx, limit, lockwatch.NoAnswer(limit))
	defer cancel()
	defer func() {
		awaitDeadline(bound, err)
		err = lockwatch.WithCause(bound, ctx, err)
	}()
	conn, err := w.db.Conn(bound)
	if err != nil {
		return fmt.Errorf("worker: take a connection: %w", err)
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrDeadLettered) && !errors.Is(err, ErrNoConsumer) {
			pgdriver.Discard(conn) // it may lead to another server
		} else {
			_ = conn.Close()
		}
	}()
	return do(bound, conn)
}

// find resolves the tables once.
func (w *Waiter) find(ctx context.Context, conn *sql.Conn) (*waiterTables, error) {
	if found := w.found.Load(); found != nil {
		return found, nil
	}
	t, err := tables.Parse(w.cfg.Names)
	if err != nil {
		return nil, err
	}
	if err := rights.Check(ctx, conn, grantsHint, rights.Waiter(t)); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if err := migrations.Check(ctx, conn, w.cfg.migrations()); err != nil {
		return nil, err
	}
	if t, err = t.Resolve(ctx, conn); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	found := &waiterTables{progress.New(t, uuid.Nil, w.cfg.BatchTimeout, progress.Server{Incarnation: "NULL"}), t.Changes}
	w.found.Store(found)
	return found, nil
}
