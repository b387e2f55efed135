package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
)

// keysOfJobs is the number of keys of each sort. It is small, so that jobs share keys.
const keysOfJobs = 8

// enqueue enqueues some jobs in the transaction: one or two, or many at once.
func (e *enqueuer) enqueue(ctx context.Context, a *enqueueAttempt) error {
	many := 1 + e.dice.IntN(2)
	if fault.Chance(e.dice, 0.1) {
		many = 5 + e.dice.IntN(20)
	}
	var entries []jobs.EnqueueParams
	var drawn []entry
	for range many {
		x, job := e.draw(many == 1)
		x.begun, x.async = a.life, e.async
		drawn, entries = append(drawn, x), append(entries, job)
	}
	made, err := either.Do(a.tx, func(tx *sql.Tx) ([]jobs.Enqueued, error) { return e.client.EnqueueMany(ctx, tx, entries) })
	if errors.Is(err, jobs.ErrKeyReused) && drawn[0].Once == "" {
		e.of.ledger.mislead(fmt.Sprintf("%s was refused a key that it did not use: %v", e.name, err))
	}
	if err != nil {
		return err
	}
	for i, m := range made {
		drawn[i].ID, drawn[i].Existing = m.ID, m.Existing
	}
	a.entries = append(a.entries, drawn...)
	return nil
}

// ask appends an event that asks for some jobs: a consumer will enqueue them.
func (e *enqueuer) ask(ctx context.Context, a *enqueueAttempt) error {
	var orders []order
	for range 1 + e.dice.IntN(3) {
		o := order{Queue: fault.OneOf(e.dice, e.knobs.Queues...).Name, Priority: fault.OneOf(e.dice, 1, 5, 9), Task: task{Token: e.token(), Acts: e.drawActs()}}
		o.Kind = fault.OneOf(e.dice, kinds...)(o.Task).Kind()
		orders = append(orders, o)
		a.entries = append(a.entries, entry{begun: a.life, async: e.async, Enqueued: history.Enqueued{
			Token: o.Task.Token, Who: e.name, Kind: o.Kind, Queue: o.Queue, Acts: o.Task.Acts, Asked: true,
		}})
	}
	event, err := asking(orders)
	if err != nil {
		return err
	}
	a.event = event.EventID.String()
	_, err = either.Do(a.tx, func(tx *sql.Tx) (store.AppendResult, error) {
		return eventLog.Append(ctx, tx, store.NoStream(), []store.Event{event})
	})
	return err
}

// token returns a token that no two jobs share.
func (e *enqueuer) token() string {
	e.tokens++
	return fmt.Sprintf("%s-%d", e.name[len("writer "):], e.tokens)
}

// draw draws a job. Only a job that is alone in its transaction has a key: two jobs of one
// transaction might draw the same.
func (e *enqueuer) draw(alone bool) (x entry, job jobs.EnqueueParams) {
	token := e.token()
	queue := fault.OneOf(e.dice, e.knobs.Queues...).Name
	priority := fault.OneOf(e.dice, 1, 5, 5, 5, 9)
	opts := []jobs.EnqueueOption{jobs.Queue(queue), jobs.Priority(priority), jobs.Meta(map[string]string{"by": e.name})}
	x = entry{Enqueued: history.Enqueued{Token: token, Who: e.name, Queue: queue, Acts: e.drawActs()}}
	due := time.Duration(0)
	switch at := e.dice.Float64(); {
	case at < 0.02:
		x.Far = true
		opts = append(opts, jobs.In(time.Hour))
	case at < 0.1:
		due = fault.Between(e.dice, 0, 3*time.Second)
		opts = append(opts, jobs.In(due))
	case at < 0.15:
		due = fault.Between(e.dice, 0, 2*time.Second)
		opts = append(opts, jobs.At(time.Now().Add(due)))
	}
	if !x.Far && fault.Chance(e.dice, 0.15) {
		opts = append(opts, jobs.GoodUntil(time.Now().Add(due+fault.Between(e.dice, 10*time.Millisecond, time.Second))))
	}
	t := task{Token: token, Acts: x.Acts}
	if at := e.dice.Float64(); alone && !x.Far {
		switch key := fmt.Sprintf("key %d", e.dice.IntN(keysOfJobs)); {
		case at < 0.1:
			x.Key = key
			opts = append(opts, jobs.Unique(key))
		case at < 0.2:
			x.Key = key
			opts = append(opts, jobs.UniqueUntilStart(key))
		case at < 0.35:
			// Jobs that use one key must have the same arguments, and so the same token.
			x.Once = fmt.Sprintf("once %d", e.dice.IntN(2*keysOfJobs))
			x.Token = x.Once
			t = task{Token: x.Token}
			x.Acts = nil
			opts = append(opts, jobs.Once(x.Once, 0))
		}
	}
	args := kinds[0](t)
	if x.Once == "" {
		args = fault.OneOf(e.dice, kinds...)(t)
		opts = append(opts, e.drawBounds()...)
	}
	x.Kind = args.Kind()
	return x, jobs.EnqueueParams{Args: args, Options: opts}
}

// drawBounds draws how often a job may fail, and how many workers may be lost with it. Most jobs
// have the defaults.
func (e *enqueuer) drawBounds() (opts []jobs.EnqueueOption) {
	if fault.Chance(e.dice, 0.1) {
		opts = append(opts, jobs.MaxAttempts(1+e.dice.IntN(3)))
	}
	if fault.Chance(e.dice, 0.2) {
		opts = append(opts, jobs.MaxResets(e.dice.IntN(2)))
	}
	return opts
}

// drawActs draws what the handler is to do, for the most part its work.
func (e *enqueuer) drawActs() (acts []string) {
	for len(acts) < 3 {
		at, drawn := e.dice.Float64(), ""
		for _, f := range e.acts {
			if at -= f.weight; at < 0 {
				drawn = f.what.act
				e.of.Tally.Add(f.what.counts, 1)
				break
			}
		}
		if drawn == "" {
			return acts
		}
		acts = append(acts, drawn)
	}
	return acts
}
