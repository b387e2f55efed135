package consume

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

var (
	errNeverBegan  = errors.New("this worker has ended before it could begin: the error of its Start says why")
	errNotLooked   = errors.New("nobody has looked yet how far it is")
	errOtherServer = errors.New("the server that answered is not the one that the worker reads: it was restarted just now, or several servers answer the connection string")
)

// pollAgain is the least pause between two looks for parts of one consumer.
const pollAgain = 5 * time.Millisecond

// WaitFor waits until a consumer has handled the event at a position, in whatever worker.
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	if err := checkWhole(consumer); err != nil {
		return err
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
	return w.waits.until(ctx, consumer, position)
}

// checkWhole refuses the name of a part.
func checkWhole(consumer string) error {
	if whole := partition.Consumer(consumer); whole != consumer {
		return fmt.Errorf("%w: %s is a unit's name, which may be gone at any time: wait for %s", ErrNoConsumer, errtext.Value(consumer), errtext.Value(whole))
	}
	return nil
}

// waits are how a Worker or a Waiter waits for consumers.
type waits struct {
	awaited *awaited // which says that a consumer is there
	// Looks of one caller have a pause of first between them, then twice that, up to every.
	first, every time.Duration
	looks        looks
	// arrived reads how far a consumer is. Its error is final, unless nobody answers.
	arrived func(ctx context.Context, consumer string, position int64) (progress.Arrival, error)
	ask     func(ctx context.Context, consumer string, position int64, split bool) // the workers that run the consumer; nil: nobody would hear the answer
}

// until waits until a consumer has handled a position.
func (w *waits) until(ctx context.Context, consumer string, position int64) error {
	why, pause := errNotLooked, w.first
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
			ask = w.pauseUntil(ctx, there, consumer, position, &pause, &why)
		}
		forget()
		if handled || err != nil {
			return err
		}
	}
}

// poll looks whether a consumer has handled a position, and if not, asks the
// worker that runs it to say when. No answer of the database is no error.
func (w *waits) poll(ctx context.Context, consumer string, position int64, ask bool, why *error) (handled bool, err error) {
	now, err := w.arrived(ctx, consumer, position)
	switch {
	case errors.Is(err, store.ErrIncarnation):
		*why = errOtherServer
		return false, nil
	case ctx.Err() != nil:
		return false, nil
	case isUnanswered(err):
		*why = err
		return false, nil
	case err != nil || now.Handled:
		return now.Handled, err
	}
	*why = now.Why()
	if ask && w.ask != nil {
		w.ask(ctx, consumer, position, now.Split && now.Position < position)
	}
	return false, nil
}

// isUnanswered reports whether an error says nothing of a consumer: the database will answer, or
// another server will. A standby breaks off what conflicts with what it replays.
func isUnanswered(err error) bool {
	return errors.Is(err, errNoAnswer) || pgdriver.IsConnectionLoss(err) || pgdriver.IsStandby(err) || pgdriver.IsConflict(err)
}

// pauseUntil waits for there. Meanwhile it looks now and then how far the consumer is, together with
// all who wait for that consumer, and reports true if it is time to ask again: the consumer is at
// the position, or somebody has to see what is wrong.
func (w *waits) pauseUntil(ctx context.Context, there <-chan struct{}, consumer string, position int64, pause *time.Duration, why *error) (again bool) {
	for {
		timer := time.NewTimer(*pause)
		select {
		case <-there:
			timer.Stop()
			return false
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
		now, err := w.looks.at(ctx, consumer, *pause, w.lookHowFar)
		*pause = min(2**pause, w.every)
		switch {
		case ctx.Err() != nil:
		case isUnanswered(err):
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
func (w *waits) lookHowFar(ctx context.Context, consumer string) (progress.Arrival, error) {
	return w.arrived(ctx, consumer, math.MaxInt64)
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
func (w *Worker) askFor(ctx context.Context, consumer string, position int64, _ bool) {
	if u := w.unit(consumer); w.waitChannel != "" && !(u != nil && u.status.isAssigned()) {
		w.say(ctx, word{Consumer: consumer, Position: position})
	}
}

// arrived reads how far a consumer is, where the worker works: an abandoned
// primary may be ahead of the one that was promoted.
func (w *Worker) arrived(ctx context.Context, consumer string, position int64) (a progress.Arrival, err error) {
	err = w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		conn := &pooled{w: w}
		defer func() { conn.giveBack(err) }()
		var at string
		a, at, err = w.checkpoints.Arrived(ctx, conn, consumer, position)
		if err == nil && a.Unknown {
			at, err = w.checkpoints.Incarnation(ctx, conn)
		}
		known := w.frontier.Value().Token
		switch {
		case err != nil:
			return err
		case known != "" && at != known: // at is empty on a server that has no token, as after its crash
			return store.ErrIncarnation
		case a.Unknown && w.unit(consumer) != nil:
			return nil
		}
		return checkArrival(ctx, &w.checkpoints, conn, a, consumer, position)
	})
	return a, err
}

// checkArrival returns why a position will not be handled: its event is a dead letter, or no
// worker has registered code for the consumer.
func checkArrival(ctx context.Context, c *progress.Checkpoints, q store.Querier, a progress.Arrival, consumer string, position int64) error {
	switch {
	case a.DeadLetter:
		return fmt.Errorf("%w: consumer %q, position %d", ErrDeadLettered, consumer, position)
	case !a.Unknown:
		return nil
	}
	known, err := c.Known(ctx, q, consumer)
	if err == nil && !known {
		return fmt.Errorf("%w: %s", ErrNoConsumer, errtext.Value(consumer))
	}
	return err
}
