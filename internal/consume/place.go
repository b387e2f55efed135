package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// placeFirst gives every consumer that has never run its first checkpoint. Consumers that
// begin at the head wait for placeAtHead.
func (w *Worker) placeFirst(ctx context.Context) error {
	for _, u := range w.units {
		after, atHead := u.start.Position()
		if !atHead {
			if err := w.place(ctx, u, after, ""); err != nil {
				return err
			}
			continue
		}
		err := w.findPlaced(ctx, u)
		if missing := (progress.NoCheckpointError{}); errors.As(err, &missing) {
			u.placed = make(chan struct{})
		} else if err != nil {
			return err
		}
	}
	return nil
}

// placeAtHead places the consumers that begin at the head. It retries until they are placed
// or ctx ends.
func (w *Worker) placeAtHead(ctx context.Context) {
	var waiting []*unit
	for _, u := range w.units {
		if u.placed != nil {
			waiting = append(waiting, u)
		}
	}
	for failures := 1; len(waiting) > 0 && ctx.Err() == nil; failures++ {
		err := w.placeSettled(ctx, waiting)
		if err == nil {
			for _, u := range waiting {
				close(u.placed)
			}
			return
		}
		w.taskFailed(ctx, "place at head", "", err)
		backoff.Sleep(ctx, backoff.Infrastructure(failures))
	}
}

// placeSettled places units at the current head, once everything up to the head is settled.
// Every later commit is then above the head and is not missed. The incarnation must not
// change between reading the head and placing the units. Another incarnation may issue
// positions up to that head again.
func (w *Worker) placeSettled(ctx context.Context, units []*unit) error {
	life, err := w.awaitValue(ctx, func(v *frontier.Value) bool { return v.Token != "" }, func() {})
	if err != nil {
		return err
	}
	head, err := w.head(ctx, life.Token)
	if err != nil {
		return err
	}
	waits := false
	v, err := w.awaitValue(ctx, func(v *frontier.Value) bool { return v.Token != life.Token || v.Settled >= head }, func() {
		for _, u := range units {
			w.reportWaitToBegin(u, head, !waits)
		}
		waits = true
	})
	if err != nil {
		return err
	}
	if v.Token != life.Token {
		return errors.New("worker: the server has crashed since the head of the log was read")
	}
	for _, u := range units {
		if err := w.place(ctx, u, head, life.Token); err != nil {
			return err
		}
		if err := w.findPlaced(ctx, u); err != nil {
			return err // not placed: the server has crashed in between
		}
		if w.observers.End(runtime.Subject{Condition: observe.ConditionStart, Consumer: u.name}); waits {
			u.status.recovered()
		}
	}
	return nil
}

// errWaitsToBegin is the reason why a consumer that begins at the head has no checkpoint
// yet.
type errWaitsToBegin struct {
	consumer string
	head     int64
	blocked  []frontier.Holder
}

func (e errWaitsToBegin) Error() string {
	text := fmt.Sprintf("worker: consumer %q waits to begin at the head, position %d, until the transactions have ended that may commit events below it", e.consumer, e.head)
	if len(e.blocked) == 0 {
		return text + ": see FrontierError of Status and the log"
	}
	for i, h := range e.blocked {
		if i == blockedShown {
			return fmt.Sprintf("%s; %d more: see Blocked of Status", text, len(e.blocked)-i)
		}
		text += fmt.Sprintf("; pid %d, application_name %q, prepared as %q: %s", h.PID, h.ApplicationName, h.GID, h.Remedy())
	}
	return text
}

// blockedShown is the number of transactions that an error names.
const blockedShown = 3

// reportWaitToBegin reports that a consumer waits to begin at the head. It notifies the
// observers once.
func (w *Worker) reportWaitToBegin(u *unit, head int64, first bool) {
	err := errWaitsToBegin{u.name, head, w.frontier.Blocked()}
	u.status.setError(err)
	w.observers.Begin(runtime.Subject{Condition: observe.ConditionStart, Consumer: u.name}, err)
	if first {
		w.observers.Notify(observe.ConsumerWaiting{Consumer: u.name, Condition: observe.ConditionStart, Err: err})
	}
}

// head reads the highest visible position in one incarnation of the server.
func (w *Worker) head(ctx context.Context, token string) (head int64, err error) {
	err = w.onPooled(ctx, w.limits.read, func(ctx context.Context, conn *pooled) (err error) {
		head, err = w.bound.At(token).GetLatestGlobalPosition(ctx, conn)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("worker: head of the log: %w", err)
	}
	return head, nil
}

// place gives a unit its first checkpoint, if it has none.
func (w *Worker) place(ctx context.Context, u *unit, after int64, token string) error {
	return w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		return pgdriver.Repeated(func() error { return w.checkpoints.Place(ctx, w.db, u.name, after, token, u.scope) })
	})
}

// findPlaced returns errNoCheckpoint if a unit has no checkpoint.
func (w *Worker) findPlaced(ctx context.Context, u *unit) error {
	return w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		_, err := w.checkpoints.Load(ctx, w.db, u.name)
		return err
	})
}

// awaitValue waits until the frontier publishes a value that satisfies enough. It calls
// waits each time that StaleGapThreshold has passed.
func (w *Worker) awaitValue(ctx context.Context, enough func(*frontier.Value) bool, waits func()) (*frontier.Value, error) {
	ticker := time.NewTicker(w.cfg.StaleGapThreshold)
	defer ticker.Stop()
	for {
		changed := w.frontier.Changed()
		if v := w.frontier.Value(); enough(v) {
			return v, nil
		}
		select {
		case <-changed:
		case <-ticker.C:
			waits()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
