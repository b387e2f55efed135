package consume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
)

// Waiter waits for consumers in a process that runs none.
type Waiter struct {
	db    pgdriver.Pool
	cfg   Config
	waits waits
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
	w.waits = waits{awaited: newAwaited(), first: partPoll, every: w.cfg.DispatcherInterval, arrived: w.arrived, ask: w.ask}
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
	if err := checkWhole(consumer); err != nil {
		return err
	}
	return errtext.Of(explain(w.waits.until(ctx, consumer, position)))
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
		return checkArrival(ctx, &t.checkpoints, q, a, consumer, position)
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

// connected calls do with a connection, within the limit of a quick statement, or within
// that of a resolve.
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
