package worker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// ErrDeadLettered is WaitFor's answer for an event that is among the dead
// letters of the consumer: it will be handled when an operator says so.
var ErrDeadLettered = errors.New("worker: the event is among the consumer's dead letters")

// WaitFor waits until a consumer has handled the event at a position, wherever
// that consumer runs: so that what was just appended can be read from its
// projection. It looks when the consumer makes progress in this worker, and
// every DispatcherInterval besides, from when the worker has started. The error
// is ErrDeadLettered if the event cannot be handled, and tells how far the
// consumer is if ctx ends first.
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return fmt.Errorf("worker: waited for the worker to start, to wait for consumer %q to handle position %d: %w", consumer, position, context.Cause(ctx))
	}
	known := arrival{unknown: true}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		advanced := w.advanced(consumer)
		var now arrival
		err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
			now, err = w.arrived(ctx, consumer, position)
			return err
		})
		if ctx.Err() != nil {
			return fmt.Errorf("worker: waited for consumer %q to handle position %d: %w: %w", consumer, position, known.why(), context.Cause(ctx))
		}
		switch {
		case errors.Is(err, errNoAnswer), errors.Is(err, store.ErrIncarnation), pgdriver.IsStandby(err): // ask again
		case err != nil || now.handled:
			return err
		default:
			known = now
		}
		timer.Reset(w.cfg.DispatcherInterval)
		select {
		case <-advanced:
		case <-timer.C:
		case <-ctx.Done(): // the next look says so
		}
	}
}

// arrived reads how far a consumer is, where the worker works: an abandoned
// primary may be ahead of the one that was promoted.
func (w *Worker) arrived(ctx context.Context, consumer string, position int64) (a arrival, err error) {
	conn := &pooled{w: w}
	defer func() { conn.giveBack(err) }()
	a, token, err := w.checkpoints.Arrived(ctx, conn, consumer, position)
	if known := w.frontier.Value().Token; token != "" && known != "" && token != known {
		return a, store.ErrIncarnation
	}
	return a, err
}

// advanced returns a channel that is closed when the consumer makes progress
// in this worker, nil if it has no such consumer.
func (w *Worker) advanced(consumer string) <-chan struct{} {
	if u, ok := w.status[consumer]; ok {
		return u.next()
	}
	return nil
}

// arrival is how far a consumer is on its way to a position.
type arrival struct {
	handled  bool
	unknown  bool // it has no checkpoint, or nobody has looked
	position int64
	paused   bool
	open     bool // it has passed the position, which was in doubt
}

func (a arrival) why() error {
	switch {
	case a.unknown:
		return errors.New("it has no checkpoint, no worker has run it yet")
	case a.paused:
		return fmt.Errorf("it is paused at position %d", a.position)
	case a.open:
		return errors.New("no event has appeared there yet, its transaction may be open")
	}
	return fmt.Errorf("it is at position %d", a.position)
}

// Arrived reads whether a consumer has handled a position, and in which
// incarnation of the server.
func (c checkpoints) Arrived(ctx context.Context, q store.Querier, unit string, position int64) (a arrival, token string, err error) {
	var buried bool
	err = q.QueryRowContext(ctx, c.arrived, unit, position).Scan(&a.position, &a.paused, &a.open, &buried, &token)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return arrival{unknown: true}, "", nil
	case err != nil:
		return a, "", fmt.Errorf("worker: look how far consumer %q is: %w", unit, err)
	case buried:
		return a, token, fmt.Errorf("%w: consumer %q, position %d", ErrDeadLettered, unit, position)
	}
	a.handled = a.position >= position && !a.open
	return a, token, nil
}
