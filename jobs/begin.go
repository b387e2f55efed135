package jobs

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

// start calls the handlers of runs that hold slots. The runs of one batch handler share a call, up
// to BatchSize.
func (l *loop) start(runs []*run) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	l.running += len(runs)
	l.mu.Unlock()
	called := func() {
		now := time.Now()
		for _, r := range runs {
			r.Call(now)
		}
	}
	called() // from here on the runs are not prefetched
	if before := l.w.cfg.hooks.BeforeHandle; before != nil {
		for _, r := range runs {
			l.w.observers.Call("BeforeHandle", func() { before(l.w.handling, r.header) })
		}
		called() // the time of the hooks is not the handlers'
	}
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

// startGathers reports whether prefetched jobs should wait for more free slots. They wait while
// fewer than half of the slots are free and the last start was at most [jobrun.Gather] ago.
func (l *loop) startGathers(now time.Time) bool {
	return now.Before(l.startAt) && l.free() < min(len(l.ready), (l.capacity+1)/2)
}

// startReady starts as many prefetched jobs as there are free slots. If the answer of a claim was
// lost, the claim may have started its jobs already.
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
			l.unclaim(r) // cancelled, expired or lost: the settler's statement finds out which
		}
	}
	l.w.slots.give(n - len(start))
	l.w.slots.begin(len(start), n-len(start))
	l.showPrefetched()
	l.start(start)
}

// mayStart marks runs as started and returns the IDs of the jobs that may start. It skips runs that
// have started already.
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
	l.startAt = time.Now().Add(min(time.Since(begin), jobrun.Gather))
	for _, id := range ids {
		may[id] = true
	}
	return may, err
}

// unclaim releases a job that has not started.
func (l *loop) unclaim(r *run) {
	l.w.settler.settling(r)
	l.w.settler.add(&ending{outcome: outcome{run: r, kind: unstarted}, end: queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released}})
}

// giveBack releases all prefetched jobs.
func (l *loop) giveBack() {
	for _, r := range l.ready {
		l.unclaim(r)
	}
	l.ready = nil
	l.showPrefetched()
}
