package jobs

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// start runs jobs that have slots, those of a handler of batches together.
func (l *loop) start(runs []*run) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	l.running += len(runs)
	l.mu.Unlock()
	l.w.hand.enter(running, runs...)
	if before := l.w.cfg.hooks.BeforeHandle; before != nil {
		for _, r := range runs {
			l.w.observers.Call("BeforeHandle", func() { before(l.w.handling, r.header) })
		}
	}
	l.w.hand.call(time.Now(), runs)
	calls := make([][]*run, 0, len(runs))
	type group struct {
		h    *handler
		most int
	}
	batches := map[group][]*run{}
	for i, r := range runs {
		g := group{r.handler, r.handler.batchAfter(r.row.Failures)}
		if g.most == 1 {
			calls = append(calls, runs[i:i+1:i+1])
			continue
		}
		if batches[g] = append(batches[g], r); len(batches[g]) == g.most {
			calls = append(calls, batches[g])
			delete(batches, g)
		}
	}
	for _, batch := range batches {
		calls = append(calls, batch)
	}
	l.w.runners.run(calls)
}

// startGathers reports whether slots should gather before prefetched jobs start:
// others started a moment ago, and less than half are free.
func (l *loop) startGathers(now time.Time) bool {
	return now.Before(l.startAt) && l.free() < min(len(l.ready), (l.capacity+1)/2)
}

// startReady starts prefetched jobs as far as there are slots. Those of a claim that
// was not answered may have been started by it.
func (l *loop) startReady(ctx context.Context) {
	if len(l.ready) == 0 || l.startGathers(time.Now()) {
		return
	}
	n := l.w.slots.take(l.seat, min(len(l.ready), l.free()))
	if n == 0 {
		return
	}
	first := l.ready[:n]
	may, err := l.mayStart(ctx, first)
	l.failed(err)
	if err != nil {
		l.w.slots.give(n)
		return
	}
	l.ready = slices.Clone(l.ready[n:])
	var start []*run
	for _, r := range first {
		if r.row.Started || may[r.row.ID] {
			r.row.Started = true
			start = append(start, r)
		} else {
			l.unclaim(r) // cancelled, expired, or lost: the settler is told which
		}
	}
	l.w.slots.give(n - len(start))
	l.w.slots.begin(len(start), n-len(start))
	l.showPrefetched()
	l.start(start)
}

// mayStart marks the runs as started that have not started, and returns which of
// them may.
func (l *loop) mayStart(ctx context.Context, all []*run) (may map[int64]bool, err error) {
	var runs []queue.Run
	for _, r := range all {
		if !r.row.Started {
			runs = append(runs, r.row.Run)
		}
	}
	may = make(map[int64]bool, len(runs))
	if len(runs) == 0 {
		return may, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	ids, err := onLoop(ctx, l, func(conn *sql.Conn) ([]int64, error) { return l.w.queue.Start(ctx, l.w.planned(conn, conn), runs) })
	l.startAt = time.Now().Add(min(time.Since(begin), gather))
	for _, id := range ids {
		may[id] = true
	}
	return may, err
}

// unclaim gives a job back that did not begin.
func (l *loop) unclaim(r *run) {
	l.w.hand.enter(settling, r)
	l.w.settler.add(&ending{outcome: outcome{run: r, kind: unstarted}, end: queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released}})
}

// giveBack gives prefetched jobs back.
func (l *loop) giveBack() {
	for _, r := range l.ready {
		l.unclaim(r)
	}
	l.ready = nil
	l.showPrefetched()
}
