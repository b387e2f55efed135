package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// placer gives the consumers of a worker their first checkpoints.
type placer struct {
	*env
	every time.Duration // between two reports of a wait
}

// first gives every consumer that has never run its first checkpoint. Consumers that begin
// at the head wait for atHead.
func (p *placer) first(ctx context.Context) error {
	for _, u := range p.units {
		after, atHead := u.start.Position()
		if !atHead {
			if err := p.place(ctx, u, after, ""); err != nil {
				return err
			}
			continue
		}
		err := p.find(ctx, u)
		if missing := (progress.NoCheckpointError{}); errors.As(err, &missing) {
			u.placed = make(chan struct{})
		} else if err != nil {
			return err
		}
	}
	return nil
}

// atHead places the consumers that begin at the head. It retries until they are placed or
// ctx ends.
func (p *placer) atHead(ctx context.Context) {
	var waiting []*unit
	for _, u := range p.units {
		if u.placed != nil {
			waiting = append(waiting, u)
		}
	}
	for failures := 1; len(waiting) > 0 && ctx.Err() == nil; failures++ {
		err := p.settled(ctx, waiting)
		if err == nil {
			for _, u := range waiting {
				close(u.placed)
			}
			return
		}
		p.taskFailed(ctx, "place at head", "", err)
		backoff.Sleep(ctx, backoff.Infrastructure(failures))
	}
}

// settled places units at the current head, once everything up to the head is settled.
// Every later commit is then above the head and is not missed. The incarnation must not
// change between reading the head and placing the units. Another incarnation may issue
// positions up to that head again.
func (p *placer) settled(ctx context.Context, units []*unit) error {
	life, err := p.awaitValue(ctx, func(v *frontier.Value) bool { return v.Token != "" }, func() {})
	if err != nil {
		return err
	}
	head, err := p.head(ctx, life.Token)
	if err != nil {
		return err
	}
	waits := false
	v, err := p.awaitValue(ctx, func(v *frontier.Value) bool { return v.Token != life.Token || v.Settled >= head }, func() {
		for _, u := range units {
			p.reportWaitToBegin(u, head, !waits)
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
		if err := p.place(ctx, u, head, life.Token); err != nil {
			return err
		}
		if err := p.find(ctx, u); err != nil {
			return err // not placed: the server has crashed in between
		}
		if p.observers.End(runtime.Subject{Condition: observe.ConditionStart, Consumer: u.name}); waits {
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
func (p *placer) reportWaitToBegin(u *unit, head int64, first bool) {
	blocked := p.frontier.Blocked()
	if p.frontier.Err() != nil {
		blocked = nil // they may have ended since the last read, and their pids may be others'
	}
	err := errWaitsToBegin{u.name, head, blocked}
	u.status.setError(err)
	p.observers.Begin(runtime.Subject{Condition: observe.ConditionStart, Consumer: u.name}, err)
	if first {
		p.observers.Notify(observe.ConsumerWaiting{Consumer: u.name, Condition: observe.ConditionStart, Err: err})
	}
}

// head reads the highest visible position in one incarnation of the server.
func (p *placer) head(ctx context.Context, token string) (head int64, err error) {
	err = p.onPooled(ctx, p.limits.read, func(ctx context.Context, conn *pooled) (err error) {
		head, err = p.bound.At(token).GetLatestGlobalPosition(ctx, conn)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("worker: head of the log: %w", err)
	}
	return head, nil
}

// place gives a unit its first checkpoint, if it has none.
func (p *placer) place(ctx context.Context, u *unit, after int64, token string) error {
	var versions []string
	for _, other := range p.units {
		if other != u && other.scope.Projection == u.scope.Projection && u.scope.Projection != "" {
			versions = append(versions, other.name)
		}
	}
	return p.bounded(ctx, p.limits.quick, func(ctx context.Context) error {
		return p.checkpoints.Place(ctx, p.db, u.name, after, token, u.scope, versions)
	})
}

// find returns [progress.NoCheckpointError] if a unit has no checkpoint.
func (p *placer) find(ctx context.Context, u *unit) error {
	return p.bounded(ctx, p.limits.quick, func(ctx context.Context) error {
		_, err := p.checkpoints.Load(ctx, p.db, u.name)
		return err
	})
}

// awaitValue waits until the frontier publishes a value that satisfies enough. It calls
// waits after each p.every.
func (p *placer) awaitValue(ctx context.Context, enough func(*frontier.Value) bool, waits func()) (*frontier.Value, error) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for {
		changed := p.frontier.Changed()
		if v := p.frontier.Value(); enough(v) {
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
