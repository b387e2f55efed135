package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

// starter starts claimed jobs.
type starter struct {
	*shared
	handlers *Handlers
	inFlight *jobrun.InFlight[*run]
	settler  *settler
	runners  *runners
	handling context.Context // of all handlers
	ready    []*run          // prefetched, in the order to run
	at       time.Time       // when prefetched jobs may start even if few slots are free
}

// admit adds claimed jobs to the jobs in flight, in the order in which they are to run.
func (s *starter) admit(jobs []queue.Job) {
	slices.SortFunc(jobs, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.RunAt.Compare(b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	var start []*run
	for _, j := range jobs {
		r := s.newRun(j)
		s.inFlight.Add(r)
		if j.Started {
			start = append(start, r)
		} else {
			s.ready = append(s.ready, r)
		}
	}
	s.showPrefetched()
	s.start(start)
}

func (s *starter) newRun(j queue.Job) *run {
	h := s.handlers.of[j.Kind]
	return &run{Run: jobrun.Run{Claim: j.Run}, env: s.env, queue: s.servedQueue, handler: h, row: j, header: headerOf(j, s.name, cmp.Or(j.Most, h.maxAttempts))}
}

func (s *starter) showPrefetched() {
	n := len(s.ready)
	s.change(func(q *QueueStatus) { q.Prefetched = n })
}

// start calls the handlers of runs that hold slots. The runs of one batch handler share a call, up
// to BatchSize.
func (s *starter) start(runs []*run) {
	if len(runs) == 0 {
		return
	}
	s.begin(len(runs))
	called := func() {
		now := time.Now()
		for _, r := range runs {
			r.Call(now)
		}
	}
	called() // from here on the runs are not prefetched
	if before := s.cfg.hooks.BeforeHandle; before != nil {
		for _, r := range runs {
			s.observers.Call("BeforeHandle", func() { before(s.handling, r.header) })
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
	s.runners.run(calls)
}

// gathers reports whether prefetched jobs should wait for more free slots. They wait while
// fewer than half of the slots are free and the last start was at most [jobrun.Gather] ago.
func (s *starter) gathers(now time.Time) bool {
	return now.Before(s.at) && s.free() < min(len(s.ready), (s.capacity+1)/2)
}

// startReady starts as many prefetched jobs as there are free slots. If the answer of a claim was
// lost, the claim may have started its jobs already.
func (s *starter) startReady(ctx context.Context) {
	if len(s.ready) == 0 || s.gathers(time.Now()) {
		return
	}
	n := s.slots.take(s.seat, min(len(s.ready), s.free()))
	if n == 0 {
		return
	}
	first := s.ready[:n]
	may, err := s.mayStart(ctx, first)
	s.failed(err)
	if err != nil {
		s.slots.give(n)
		return
	}
	s.ready = slices.Clone(s.ready[n:])
	var start []*run
	for _, r := range first {
		if r.row.Started || may[r.row.ID] {
			r.row.Started = true
			start = append(start, r)
		} else {
			s.unclaim(r) // cancelled, expired or lost: the settler's statement finds out which
		}
	}
	s.slots.give(n - len(start))
	s.slots.begin(len(start), n-len(start))
	s.showPrefetched()
	s.start(start)
}

// mayStart marks runs as started and returns the IDs of the jobs that may start. It skips runs that
// have started already.
func (s *starter) mayStart(ctx context.Context, all []*run) (may map[int64]bool, err error) {
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
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	begin := time.Now()
	err = batch.Each(runs, func(part []queue.Run) error {
		ids, err := onLoop(ctx, s.shared, func(conn *sql.Conn) ([]int64, error) { return s.queue.Start(ctx, s.planned(conn, conn), part) })
		for _, id := range ids {
			may[id] = true
		}
		return err
	}, func(r queue.Run, err error) error { return s.refuse(r.ID, err) })
	s.at = time.Now().Add(min(time.Since(begin), jobrun.Gather))
	return may, err
}

// unclaim releases a job that has not started.
func (s *starter) unclaim(r *run) {
	s.settler.settling(r)
	s.settler.add(&ending{outcome: outcome{run: r, kind: unstarted}, end: queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released}})
}

// adopt adds a job whose claim got no answer. The job runs once there is a slot.
func (s *starter) adopt(j queue.Job) {
	if s.handlers.of[j.Kind] == nil {
		return
	}
	r := s.newRun(j)
	s.inFlight.Add(r)
	s.ready = append(s.ready, r)
	s.slots.adopt()
	s.showPrefetched()
}

// drop forgets a prefetched job that another worker has.
func (s *starter) drop(r *run) {
	s.ready = slices.DeleteFunc(s.ready, func(o *run) bool { return o == r })
	s.showPrefetched()
	s.slots.begin(0, 1)
	s.settler.lost(r)
}

// giveBack releases all prefetched jobs.
func (s *starter) giveBack() {
	for _, r := range s.ready {
		s.unclaim(r)
	}
	s.ready = nil
	s.showPrefetched()
}
