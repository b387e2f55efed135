package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// ErrDeadLettered is WaitFor's answer for an event that is among the dead
// letters of the consumer: it will be handled when an operator says so.
var ErrDeadLettered = errors.New("worker: the event is among the consumer's dead letters")

// ErrNoConsumer is WaitFor's answer for a consumer that has never run, and that
// no worker has code for, and for a part of one.
var ErrNoConsumer = errors.New("worker: there is no such consumer: check the name (ops.Operator.Consumers lists those that have run), or start a worker that has code for it before")

var (
	errNeverBegan  = errors.New("this worker has ended before it could begin: the error of its Start says why")
	errNotLooked   = errors.New("nobody has looked yet how far it is")
	errOtherServer = errors.New("the server that answered is not the one that the worker reads: it was restarted just now, or several servers answer the connection string")
)

// pollAgain is the least pause between two looks for parts of one consumer.
const pollAgain = 5 * time.Millisecond

// WaitFor waits until a consumer has handled the event at a position, wherever
// that consumer runs: so that what was just appended can be read from its
// projection. It looks when the consumer gets there in this worker. Where this
// worker and the one that runs the consumer listen (DispatcherStrategyNotify),
// it asks that one, once, to say so. Besides, all who wait for a consumer look together every
// DispatcherInterval, from when the worker has started. The error is ErrDeadLettered if the event cannot
// be handled, ErrNoConsumer if there is no such consumer, and tells how far the
// consumer is if ctx ends first. A worker that
// ended before it could begin waits for nothing.
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	if whole := partition.Consumer(consumer); whole != consumer {
		return fmt.Errorf("%w: %s is a unit's name, which may be gone at any time: wait for %s", ErrNoConsumer, errtext.Value(consumer), errtext.Value(whole))
	}
	select {
	case <-w.ready:
	case <-w.ended:
	case <-ctx.Done():
	}
	switch {
	case w.isReady():
	case ctx.Err() != nil:
		return fmt.Errorf("worker: waited for the worker to start, to wait for consumer %s to handle position %d: %w", errtext.Value(consumer), position, context.Cause(ctx))
	default:
		return fmt.Errorf("worker: cannot wait for consumer %s to handle position %d: %w", errtext.Value(consumer), position, errNeverBegan)
	}
	why := errNotLooked
	for ask := true; ; {
		there, forget := w.awaited.wait(consumer, position)
		handled, err := w.poll(ctx, consumer, position, ask, &why)
		if ctx.Err() != nil {
			err = fmt.Errorf("worker: waited for consumer %s to handle position %d: %w: %w", errtext.Value(consumer), position, why, context.Cause(ctx))
		}
		if !handled && err == nil {
			if !ask {
				backoff.Sleep(ctx, pollAgain) // a part is there, and others are not
			}
			ask = w.pauseUntil(ctx, there, consumer, position, &why)
		}
		forget()
		if handled || err != nil {
			return err
		}
	}
}

// poll looks whether a consumer has handled a position, and if not, asks the
// worker that runs it to say when. No answer of the database is no error.
func (w *Worker) poll(ctx context.Context, consumer string, position int64, ask bool, why *error) (handled bool, err error) {
	var now progress.Arrival
	err = w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		now, err = w.arrived(ctx, consumer, position)
		return err
	})
	switch {
	case errors.Is(err, store.ErrIncarnation):
		*why = errOtherServer
		return false, nil
	case ctx.Err() != nil, errors.Is(err, errNoAnswer), pgdriver.IsStandby(err):
		return false, nil
	case err != nil || now.Handled:
		return now.Handled, err
	}
	*why = now.Why()
	if ask {
		w.askFor(ctx, consumer, position)
	}
	return false, nil
}

// pauseUntil waits for there. Every DispatcherInterval it looks how far the consumer is, once for
// all who wait for that consumer, and reports true if it is time to ask again: the consumer is at
// the position, or somebody has to see what is wrong.
func (w *Worker) pauseUntil(ctx context.Context, there <-chan struct{}, consumer string, position int64, why *error) (again bool) {
	every := time.NewTicker(w.cfg.DispatcherInterval)
	defer every.Stop()
	for {
		select {
		case <-there:
			return false
		case <-ctx.Done():
			return false
		case <-every.C:
		}
		switch now, err := w.looks.at(ctx, consumer, w.cfg.DispatcherInterval, w.lookHowFar); {
		case ctx.Err() != nil:
		case errors.Is(err, errNoAnswer), pgdriver.IsConnectionLoss(err), pgdriver.IsStandby(err):
			*why = err
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), pgdriver.IsTimeLimit(err):
			// The time of another caller was over, whose read it was.
		case err != nil || now.Unknown || now.Position >= position:
			return true
		default:
			*why = now.Why()
		}
	}
}

// lookHowFar reads how far a consumer is.
func (w *Worker) lookHowFar(ctx context.Context, consumer string) (now progress.Arrival, err error) {
	err = w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		now, err = w.arrived(ctx, consumer, math.MaxInt64)
		return err
	})
	return now, err
}

// looks are what is known of how far consumers are. Those who wait for the same consumer share
// them, however many they are.
type looks struct {
	mu sync.Mutex
	of map[string]*look // the latest, by consumer
}

type look struct {
	began time.Time
	done  chan struct{} // closed when the rest is known
	now   progress.Arrival
	err   error
}

// at returns what a look shows that began less than an interval ago, or makes one.
func (l *looks) at(ctx context.Context, consumer string, interval time.Duration, read func(context.Context, string) (progress.Arrival, error)) (progress.Arrival, error) {
	l.mu.Lock()
	latest := l.of[consumer]
	shared := latest != nil && time.Since(latest.began) < interval
	if !shared {
		latest = &look{began: time.Now(), done: make(chan struct{})}
		if l.of == nil {
			l.of = map[string]*look{}
		}
		l.of[consumer] = latest
	}
	l.mu.Unlock()
	if !shared {
		latest.now, latest.err = read(ctx, consumer)
		close(latest.done)
	}
	select {
	case <-latest.done:
		return latest.now, latest.err
	case <-ctx.Done():
		return progress.Arrival{}, context.Cause(ctx)
	}
}

// askFor asks the worker that runs a consumer to say when it is at a position.
func (w *Worker) askFor(ctx context.Context, consumer string, position int64) {
	if u := w.unit(consumer); w.waitChannel != "" && !(u != nil && u.status.isAssigned()) {
		w.say(ctx, word{Consumer: consumer, Position: position})
	}
}

// arrived reads how far a consumer is, where the worker works: an abandoned
// primary may be ahead of the one that was promoted.
func (w *Worker) arrived(ctx context.Context, consumer string, position int64) (a progress.Arrival, err error) {
	conn := &pooled{w: w}
	defer func() { conn.giveBack(err) }()
	a, at, err := w.checkpoints.Arrived(ctx, conn, consumer, position)
	if err == nil && a.Unknown {
		at, err = w.checkpoints.Incarnation(ctx, conn)
	}
	known := w.frontier.Value().Token
	switch {
	case err != nil:
		return a, err
	case known != "" && at != known: // at is empty on a server that has no token, as after its crash
		return a, store.ErrIncarnation
	case a.Unknown && w.unit(consumer) == nil:
		return a, w.known(ctx, conn, consumer)
	case a.DeadLetter:
		return a, fmt.Errorf("%w: consumer %q, position %d", ErrDeadLettered, consumer, position)
	}
	return a, nil
}

// known returns ErrNoConsumer if no worker has registered code for a consumer.
func (w *Worker) known(ctx context.Context, q store.Querier, consumer string) error {
	known, err := w.checkpoints.Known(ctx, q, consumer)
	if err == nil && !known {
		return fmt.Errorf("%w: %s", ErrNoConsumer, errtext.Value(consumer))
	}
	return err
}
