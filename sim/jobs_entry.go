package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/history"
)

// keysOfJobs is how many keys there are of each sort: few, so that they meet.
const keysOfJobs = 8

// enqueue enqueues some jobs in the transaction: one or two, or many at once.
func (e *enqueuer) enqueue(ctx context.Context, a *enqueueAttempt) error {
	many := 1 + e.dice.IntN(2)
	if chance(e.dice, 0.1) {
		many = 5 + e.dice.IntN(20)
	}
	var entries []jobs.Entry
	var drawn []jobEntry
	for range many {
		x, entry := e.draw(many == 1)
		x.begun, x.async = a.life, e.async
		drawn, entries = append(drawn, x), append(entries, entry)
	}
	made, err := e.client.EnqueueMany(ctx, a.tx, entries)
	if errors.Is(err, jobs.ErrKeyReused) && drawn[0].Once == "" {
		e.of.book.mislead(fmt.Sprintf("%s was refused a key that it did not use: %v", e.name, err))
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

// ids are the new jobs of the transaction, as JSON.
func (a *enqueueAttempt) ids() string {
	ids := []int64{}
	for _, x := range a.entries {
		if !x.Existing {
			ids = append(ids, x.ID)
		}
	}
	text, _ := json.Marshal(ids) // numbers: never fails
	return string(text)
}

// draw draws a job. Only one that is alone in its transaction has a key: two of the
// same would meet themselves.
func (e *enqueuer) draw(alone bool) (x jobEntry, entry jobs.Entry) {
	e.tokens++
	token := fmt.Sprintf("%s-%d", e.name[len("writer "):], e.tokens)
	queue := oneOf(e.dice, e.knobs.Queues...).Name
	priority := oneOf(e.dice, 1, 5, 5, 5, 9)
	opts := []jobs.EnqueueOption{jobs.Queue(queue), jobs.Priority(priority), jobs.Meta(map[string]string{"by": e.name})}
	x = jobEntry{Enqueued: history.Enqueued{Token: token, Who: e.name, Queue: queue, Acts: e.drawActs()}}
	due := time.Duration(0)
	switch at := e.dice.Float64(); {
	case at < 0.02:
		x.Far = true
		opts = append(opts, jobs.In(time.Hour))
	case at < 0.1:
		due = between(e.dice, 0, 3*time.Second)
		opts = append(opts, jobs.In(due))
	case at < 0.15:
		due = between(e.dice, 0, 2*time.Second)
		opts = append(opts, jobs.At(time.Now().Add(due)))
	}
	if !x.Far && chance(e.dice, 0.05) {
		opts = append(opts, jobs.GoodUntil(time.Now().Add(due+between(e.dice, 10*time.Millisecond, time.Second))))
	}
	t := task{token, x.Acts}
	if at := e.dice.Float64(); alone && !x.Far {
		switch key := fmt.Sprintf("key %d", e.dice.IntN(keysOfJobs)); {
		case at < 0.1:
			x.Key = key
			opts = append(opts, jobs.Unique(key))
		case at < 0.2:
			x.Key = key
			opts = append(opts, jobs.UniqueUntilStart(key))
		case at < 0.25:
			// The arguments must be the same for all who use the key, and so is the token.
			x.Once = fmt.Sprintf("once %d", e.dice.IntN(5*keysOfJobs))
			x.Token = x.Once
			t = task{Token: x.Token}
			x.Acts = nil
			opts = append(opts, jobs.Once(x.Once, 0))
		}
	}
	args := jobKinds[0](t)
	if x.Once == "" {
		args = oneOf(e.dice, jobKinds...)(t)
	}
	x.Kind = args.Kind()
	return x, jobs.Entry{Args: args, Options: opts}
}

// drawActs draws what the handler is to do, for the most part its work.
func (e *enqueuer) drawActs() (acts []string) {
	for len(acts) < 3 {
		at, drawn := e.dice.Float64(), ""
		for _, f := range e.acts {
			if at -= f.weight; at < 0 {
				drawn = f.what.act
				e.of.tally.add(f.what.Counts[0], 1)
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
