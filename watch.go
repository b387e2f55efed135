package worker

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// reloadSignal tells a loop that somebody else has moved its consumer's progress.
type reloadSignal struct {
	revision atomic.Int64 // as the loop knows it, noRevision while it has none
	c        chan struct{}
}

const noRevision = -1

func newReloadSignal() *reloadSignal {
	n := &reloadSignal{c: make(chan struct{}, 1)}
	n.revision.Store(noRevision)
	return n
}

// watchProgress looks, for all consumers of the worker in one statement,
// whether somebody else has moved an idle consumer's progress: an operator who
// resets it, for one. Then it looks how old the events are that wait. It looks at once
// when there is news, and now and then by itself, slowing down to MaxPollInterval while
// nothing is found.
func (w *Worker) watchProgress(ctx context.Context) {
	for quiet := 1; ; quiet++ {
		w.watched.Store(time.Now().UnixNano())
		if _, ok := w.watchNow.Sleep(ctx, backoff.Delay(quiet, w.cfg.PollInterval, w.cfg.MaxPollInterval, rand.Float64())); !ok {
			return
		}
		var busy []string
		units := w.allUnits()
		for _, u := range units {
			if u.reload.revision.Load() != noRevision {
				busy = append(busy, u.name)
			}
		}
		if len(busy) == 0 {
			continue
		}
		found, err := w.signalMoved(ctx, units, busy)
		if err == nil {
			err = w.watchAges(ctx)
		}
		w.taskFailed(ctx, taskWatch, "", err)
		if found {
			quiet = 0
		}
	}
}

func (w *Worker) signalMoved(ctx context.Context, units []*unit, names []string) (found bool, err error) {
	before := make(map[string]int64, len(units))
	for _, u := range units {
		before[u.name] = u.reload.revision.Load()
	}
	var revisions map[string]int64
	err = w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		revisions, err = w.checkpoints.Revisions(ctx, w.db, names)
		return err
	})
	if err != nil {
		return false, err
	}
	for _, u := range units {
		known := u.reload.revision.Load()
		if known != before[u.name] {
			continue // the loop itself has moved it meanwhile
		}
		// A revision that fell is news, too: a backup was restored.
		if now, ok := revisions[u.name]; ok && known != noRevision && now != known {
			found = true
			select {
			case u.reload.c <- struct{}{}:
			default:
			}
		}
	}
	return found, nil
}
