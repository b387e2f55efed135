package arrival

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// Callers of WaitFor get the exported errors. Package worker documents them.
var (
	ErrDeadLettered = errors.New("worker: the event is among the consumer's dead letters")
	ErrNoConsumer   = errors.New("worker: there is no such consumer: check the name (ops.Operator.Consumers lists those that have run), or start a worker that has code for it before")
	errNotPolled    = errors.New("the checkpoint was not read yet")
	errOtherServer  = errors.New("the server that answered is not the one that the worker reads: it was restarted just now, or several servers answer the connection string")
)

// PartPoll is the shortest pause between two polls for parts of one consumer.
const PartPoll = 5 * time.Millisecond

// CheckWhole returns an error for the name of a part.
func CheckWhole(consumer string) error {
	if whole := partition.Consumer(consumer); whole != consumer {
		return fmt.Errorf("%w: %s is a unit's name, which may be gone at any time: wait for %s", ErrNoConsumer, errtext.Value(consumer), errtext.Value(whole))
	}
	return nil
}

// Waits are the settings and functions with which a Worker or a Waiter waits for consumers.
type Waits struct {
	Callers *Callers // signals that a consumer has reached a position
	// The polls of one caller have a pause of First between them. It doubles with each
	// poll, up to Every.
	First, Every time.Duration
	reads        arrivalReads
	inUse        sync.Map // the consumer in use, by the name of its projection
	// Arrived reads how far a consumer is. Its error is final, unless isUnanswered.
	Arrived func(ctx context.Context, consumer string, position int64) (progress.Arrival, error)
	Ask     func(ctx context.Context, consumer string, position int64, split bool) // requests a notification from the workers that run the consumer; nil: no notification would be received
}

// Until waits until a consumer, or the version of a projection that is in use, has handled a
// position.
func (w *Waits) Until(ctx context.Context, name string, position int64) error {
	why, pause := errNotPolled, w.First
	for ask := true; ; {
		consumer := w.of(name)
		there, forget := w.Callers.Wait(consumer, position)
		now, err := w.poll(ctx, name, position, &why)
		if ctx.Err() != nil {
			err = fmt.Errorf("worker: waited for consumer %s to handle position %d: %w: %w", errtext.Value(name), position, why, context.Cause(ctx))
		}
		answered := now.Consumer != ""
		switch {
		case now.Handled || err != nil:
		case answered && now.Consumer != consumer:
			w.inUse.Store(name, now.Consumer) // the notifications are those of that consumer
		default:
			if answered && ask && w.Ask != nil {
				w.Ask(ctx, consumer, position, now.Split && now.Position < position)
			}
			if !ask {
				backoff.Sleep(ctx, PartPoll) // one part has reached the position, and others have not
			}
			ask = w.pauseUntil(ctx, there, name, consumer, position, &pause, &why)
		}
		forget()
		if now.Handled || err != nil {
			return err
		}
	}
}

// of returns the consumer that a name stood for when it was last read.
func (w *Waits) of(name string) string {
	if consumer, ok := w.inUse.Load(name); ok {
		return consumer.(string)
	}
	return name
}

// poll reads whether a consumer has handled a position. A missing answer of the database is recorded
// in why, and is no error; the arrival then has no consumer.
func (w *Waits) poll(ctx context.Context, name string, position int64, why *error) (progress.Arrival, error) {
	now, err := w.Arrived(ctx, name, position)
	switch {
	case errors.Is(err, store.ErrIncarnation):
		*why, now, err = errOtherServer, progress.Arrival{}, nil
	case ctx.Err() != nil:
		now, err = progress.Arrival{}, nil
	case isUnanswered(err):
		*why, now, err = err, progress.Arrival{}, nil
	case err == nil && !now.Handled:
		*why = now.Why()
	}
	return now, err
}

// isUnanswered reports whether an error says nothing about the consumer, so the next poll
// may succeed. A standby cancels statements that conflict with its replay.
func isUnanswered(err error) bool {
	return errors.Is(err, lockwatch.ErrNoAnswer) || pgdriver.IsConnectionLoss(err) || pgdriver.IsStandby(err) || pgdriver.IsConflict(err)
}

// pauseUntil waits for there. Meanwhile it polls the consumer's position with reads shared
// by all callers that wait for that consumer. It reports true if the caller is to poll by
// itself: the position is reached, the consumer is unknown, or the read failed.
func (w *Waits) pauseUntil(ctx context.Context, there <-chan struct{}, name, consumer string, position int64, pause *time.Duration, why *error) (again bool) {
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
		now, err := w.reads.at(ctx, name, *pause, w.readArrival)
		*pause = min(2**pause, w.Every)
		switch {
		case ctx.Err() != nil:
		case isUnanswered(err):
			*why = err
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), pgdriver.IsTimeLimit(err):
			// The read was another caller's, whose deadline has passed.
		case err != nil || now.Unknown || now.Position >= position || now.Consumer != consumer:
			return true
		default:
			*why = now.Why()
		}
	}
}

// readArrival reads how far a consumer is.
func (w *Waits) readArrival(ctx context.Context, consumer string) (progress.Arrival, error) {
	return w.Arrived(ctx, consumer, math.MaxInt64)
}

// arrivalReads are the latest reads of how far consumers are. All callers that wait for one
// consumer share its reads.
type arrivalReads struct {
	mu sync.Mutex
	of map[string]*arrivalRead // the latest, by consumer
}

type arrivalRead struct {
	began time.Time
	done  chan struct{} // closed when now and err are set
	now   progress.Arrival
	err   error
}

// at returns the result of a read that began less than interval ago, or reads.
func (l *arrivalReads) at(ctx context.Context, consumer string, interval time.Duration, read func(context.Context, string) (progress.Arrival, error)) (progress.Arrival, error) {
	l.mu.Lock()
	latest := l.of[consumer]
	shared := latest != nil && time.Since(latest.began) < interval
	if !shared {
		latest = &arrivalRead{began: time.Now(), done: make(chan struct{})}
		if l.of == nil {
			l.of = map[string]*arrivalRead{}
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

// Check returns an error if a position will not be handled: its event is a dead
// letter, or no worker has registered code for the consumer.
func Check(ctx context.Context, c *progress.Checkpoints, q store.Querier, a progress.Arrival, consumer string, position int64) error {
	switch {
	case a.DeadLetter:
		return fmt.Errorf("%w: consumer %q, position %d", ErrDeadLettered, consumer, position)
	case !a.Unknown:
		return nil
	}
	known, err := c.Known(ctx, q, consumer)
	if err == nil && !known {
		if err = fmt.Errorf("%w: %s", ErrNoConsumer, errtext.Value(consumer)); a.Renamed {
			err = fmt.Errorf("%w: %w", err, a.Why())
		}
	}
	return err
}
