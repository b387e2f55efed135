package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/queue"
)

const (
	// gather bounds the pause in which slots gather for the next claim, while there
	// is more to do than slots.
	gather = 5 * time.Millisecond
	// wantEvery is how often an idle loop that listens asks to be told of new jobs.
	wantEvery = 15 * time.Second
	// unknownEvery is how often an idle loop looks for kinds without handlers.
	unknownEvery = 10 * time.Second
	// claimBytes bounds the arguments that a claim is to bring.
	claimBytes = 32 << 20
)

// loop claims the jobs of one queue and starts them. One goroutine runs it; its
// claims and its looks are never under way at the same time.
type loop struct {
	w        *Worker
	name     string
	capacity int
	wake     chan struct{}
	news     atomic.Bool // new jobs were told
	look     atomic.Bool // look at the jobs in hand now

	lanes  lanes
	ready  []*run // prefetched, in the order to run
	hungry bool   // there may be more to claim
	doubt  bool   // the answer of a claim was lost
	width  int    // bytes of a job's arguments in the last claim

	took      time.Duration // by the last claim
	claimedAt time.Time
	peekTook  time.Duration // by the last peek
	peekedAt  time.Time
	pausedTo  time.Time // after a failure: no claim before
	pollAt    time.Time
	lookAt    time.Time
	wantedTo  time.Time
	unknownAt time.Time
	failures  int

	mu      sync.Mutex // guards what follows
	running int
	s       QueueStatus
}

func newLoop(w *Worker, q queueConfig) *loop {
	return &loop{w: w, name: q.name, capacity: q.concurrency, wake: make(chan struct{}, 1), hungry: true,
		s: QueueStatus{Name: q.name, Concurrency: q.concurrency}}
}

// nudge makes the loop look what it can do.
func (l *loop) nudge() { signal(l.wake) }

// release gives the slots of jobs back whose handler has returned.
func (l *loop) release(n int) {
	l.mu.Lock()
	l.running -= n
	l.mu.Unlock()
	l.w.slots.give(n)
	l.nudge()
}

func (l *loop) status() QueueStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.s
	s.Running, s.UnknownKinds = l.running, slices.Clone(s.UnknownKinds)
	return s
}

func (l *loop) change(f func(s *QueueStatus)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.s)
}

// count takes note of a job that was settled. The slot of a capped queue is free
// only now.
func (l *loop) count(state queue.State, failed bool) {
	l.mu.Lock()
	capped := l.s.Capped
	switch {
	case state == queue.Completed:
		l.s.Completed++
	case failed:
		l.s.Failed++
	}
	l.mu.Unlock()
	if capped {
		l.news.Store(true)
		l.nudge()
	}
}

func (l *loop) countLost() { l.change(func(s *QueueStatus) { s.Lost++ }) }

// free is how many slots the queue itself has left.
func (l *loop) free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.capacity - l.running
}

// run runs the loop until intake has ended and no job of the queue is in hand, or
// its handlers were given up.
func (l *loop) run(ctx, intake context.Context) {
	l.lookAt = time.Now().Add(l.w.cfg.heartbeat)
	for intake.Err() == nil && !l.w.slots.spent() {
		l.step(ctx)
		l.rest(intake)
	}
	l.w.Stop() // after WithStopAfterJobs
	l.giveBack()
	for l.inHand() && ctx.Err() == nil {
		if l.lookDue(time.Now()) {
			l.lookNow(ctx)
		}
		l.sleep(ctx, time.Until(l.lookAt))
	}
}

// step does what there is to do.
func (l *loop) step(ctx context.Context) {
	now := time.Now()
	if l.lookDue(now) {
		l.lookNow(ctx)
	}
	l.startReady(ctx)
	switch {
	case l.news.Swap(false):
		l.hungry = true
	case !l.hungry && !now.Before(l.pollAt) && !now.Before(l.pausedTo):
		l.peek(ctx, true)
	}
	if want := l.mayClaim(time.Now()); want > 0 {
		l.claim(ctx, want)
	}
}

// mayClaim is how many jobs to claim now.
func (l *loop) mayClaim(now time.Time) (want int) {
	want = l.room()
	switch {
	case !l.hungry || want <= 0 || now.Before(l.pausedTo) || l.w.settler.full():
		return 0
	case l.gathers(now, want):
		return 0
	}
	if l.width > 0 {
		want = max(1, min(want, claimBytes/l.width))
	}
	return want
}

// room is how many jobs could be claimed now.
func (l *loop) room() int {
	return min(l.free(), l.w.slots.available()) + l.w.cfg.prefetch - len(l.ready)
}

// gathers reports whether slots should gather before the next claim: the last one
// was full, it was a moment ago, and less than half are free.
func (l *loop) gathers(now time.Time, want int) bool {
	return want < (l.capacity+l.w.cfg.prefetch+1)/2 && now.Before(l.claimedAt.Add(min(l.took, gather)))
}

// rest sleeps until there is something to do.
func (l *loop) rest(ctx context.Context) {
	now := time.Now()
	until := l.lookAt
	if len(l.ready) > 0 && now.Before(l.pausedTo) {
		until = earlier(until, l.pausedTo)
	}
	switch want := l.room(); {
	case !l.hungry && l.pollAt.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case !l.hungry:
		until = earlier(until, l.pollAt)
	case now.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case want > 0 && l.gathers(now, want):
		until = earlier(until, l.claimedAt.Add(min(l.took, gather)))
	case want > 0 && !l.w.settler.full():
		return
	}
	l.sleep(ctx, until.Sub(now))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (l *loop) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

// claim claims up to want jobs, and starts those that have slots.
func (l *loop) claim(ctx context.Context, want int) {
	condition, skip := l.beforeClaim(ctx)
	if skip {
		l.hungry, l.pollAt = false, time.Now().Add(l.w.cfg.pollInterval)
		return
	}
	slots := l.w.slots.take(min(want, l.free()))
	want = l.w.slots.allot(min(want, slots+l.w.cfg.prefetch-min(l.w.cfg.prefetch, len(l.ready))))
	if want == 0 { // another queue was faster; a slot that is given back nudges
		l.w.slots.give(slots)
		return
	}
	jobs, err := l.claimOnce(ctx, want, min(slots, want), condition)
	l.w.slots.restore(want - len(jobs))
	started := 0
	for _, j := range jobs {
		if j.Started {
			started++
		}
	}
	l.w.slots.give(slots - started)
	l.failed(err)
	if err != nil {
		l.doubt = true
		return
	}
	l.admit(jobs)
	if len(jobs) >= want {
		return
	}
	l.idle(ctx, len(jobs))
}

// claimOnce claims above the floors, or from the bottom if that is due, or the user
// has a condition.
func (l *loop) claimOnce(ctx context.Context, want, slots int, condition Claim) (jobs []queue.Job, err error) {
	low := condition.Condition != "" || !time.Now().Before(l.lanes.lowDue)
	d := queue.Demand{
		Worker: l.w.id, Claim: rand.Int64N(1<<63-1) + 1, Queue: l.name, Lanes: l.lanes.next(low), Kinds: l.w.kinds,
		Limit: want, Start: slots, Condition: condition.Condition, Args: condition.Args,
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	looked := true
	if l.capped() {
		err = l.w.on(ctx, func(conn *sql.Conn) (err error) {
			jobs, looked, err = l.claimCapped(ctx, conn, d)
			return err
		})
	} else {
		jobs, err = onPool(ctx, l.w, func(conn *sql.Conn) ([]queue.Job, error) { return l.w.queue.Claim(ctx, conn, d) })
	}
	now := time.Now()
	l.took, l.claimedAt = now.Sub(begin), now
	if err != nil {
		return nil, err
	}
	if looked {
		l.lanes.claimed(jobs, want, low, l.took, now)
	}
	if len(jobs) > 0 {
		tell(l.w.voice, "JobsClaimed", func(o *Observer) func(Claimed) { return o.JobsClaimed }, Claimed{l.name, len(jobs), l.took})
		l.change(func(s *QueueStatus) { s.Claimed += int64(len(jobs)) })
	}
	return jobs, nil
}

func (l *loop) capped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s.Capped
}

// claimCapped claims under the caps, whose lock it holds until the claim is
// committed. It does not look for jobs if there is no room.
func (l *loop) claimCapped(ctx context.Context, conn *sql.Conn, d queue.Demand) (jobs []queue.Job, looked bool, err error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, false, fmt.Errorf("jobs: claim from queue %q: %w", l.name, err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	room, err := l.w.queue.Room(ctx, tx, l.name, d.Limit)
	if err != nil || room == 0 {
		return nil, false, err
	}
	d.Limit, d.Start, d.Capped = room, min(room, d.Start), true
	if jobs, err = l.w.queue.Claim(ctx, tx, d); err != nil {
		return nil, false, err
	}
	if err := tx.Commit(); err != nil {
		return nil, false, fmt.Errorf("jobs: claim from queue %q: commit: %w", l.name, err)
	}
	return jobs, true, nil
}

// failed takes note of whether a statement of the loop has failed.
func (l *loop) failed(err error) {
	err = errtext.Of(err)
	l.change(func(s *QueueStatus) { s.LastError = err })
	if err == nil {
		l.failures = 0
		l.w.recovered("queue", l.name)
		return
	}
	l.failures++
	l.pausedTo = time.Now().Add(backoff.Session(l.failures))
	l.w.troubled("queue", l.name, func() {
		tell(l.w.voice, "QueueFailed", func(o *Observer) func(Trouble) { return o.QueueFailed }, Trouble{l.name, err})
	})
}

// idle takes note that there was less to claim than slots, and looks when there
// will be more.
func (l *loop) idle(ctx context.Context, found int) {
	l.hungry = false
	if now := time.Now(); l.w.cfg.notify != "" && now.After(l.wantedTo) {
		ctx, cancel := context.WithTimeout(ctx, l.w.limit)
		defer cancel()
		err := l.w.on(ctx, func(conn *sql.Conn) error { return l.w.queue.Want(ctx, conn, l.name) })
		l.failed(err)
		l.wantedTo = now.Add(wantEvery)
		l.hungry = err == nil // what was enqueued before this is not told
		return
	}
	if l.pollAt = l.peekedAt.Add(10 * l.peekTook); !time.Now().Before(l.pollAt) {
		l.peek(ctx, found > 0)
	}
}

// peek looks when the next job is due: at once, if it may be claimed now, or after
// the pause of a poll at most.
func (l *loop) peek(ctx context.Context, now bool) {
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	begin := time.Now()
	p, err := onPool(ctx, l.w, func(conn *sql.Conn) (queue.Peek, error) { return l.w.queue.Peek(ctx, conn, l.name, l.w.kinds) })
	l.peekedAt = time.Now()
	l.peekTook = l.peekedAt.Sub(begin)
	l.failed(err)
	poll := l.w.cfg.pollInterval
	l.pollAt = l.peekedAt.Add(poll - time.Duration(rand.Float64()*float64(poll)/4))
	if err != nil {
		return
	}
	wasCapped := l.capped()
	l.change(func(s *QueueStatus) { s.Capped, s.Paused = p.Capped, p.Paused })
	switch {
	case p.None || p.Paused:
	case p.Due > 0:
		l.pollAt = earlier(l.pollAt, l.peekedAt.Add(p.Due))
	case now || p.Capped && !wasCapped:
		l.hungry, l.lanes.lowDue = true, time.Time{}
	}
	if p.None && l.peekedAt.After(l.unknownAt) {
		l.unknownAt = l.peekedAt.Add(unknownEvery)
		l.lookForUnknown(ctx)
	}
}

// lookForUnknown tells of kinds that wait and that there are no handlers for.
func (l *loop) lookForUnknown(ctx context.Context) {
	kinds, err := onPool(ctx, l.w, func(conn *sql.Conn) ([]string, error) { return l.w.queue.Unknown(ctx, conn, l.name, l.w.kinds) })
	if err != nil {
		l.failed(err)
		return
	}
	changed := false
	l.change(func(s *QueueStatus) {
		changed = !slices.Equal(s.UnknownKinds, kinds)
		s.UnknownKinds = kinds
	})
	if changed && len(kinds) > 0 {
		tell(l.w.voice, "UnknownKinds", func(o *Observer) func(Unknown) { return o.UnknownKinds }, Unknown{l.name, kinds})
	}
}

// conditionParameter is a parameter of a user's condition.
var conditionParameter = regexp.MustCompile(`\$([0-9]+)`)

// conditionOffset is how many parameters a claim has before those of a condition.
const conditionOffset = 7

// beforeClaim asks the user's hook.
func (l *loop) beforeClaim(ctx context.Context) (c Claim, skip bool) {
	hook := l.w.cfg.hooks.BeforeClaim
	if hook == nil {
		return c, false
	}
	if !l.w.voice.aside("BeforeClaim", func() { c = hook(ctx, l.name) }) {
		return Claim{}, true
	}
	c.Condition = conditionParameter.ReplaceAllStringFunc(c.Condition, func(p string) string {
		n, err := strconv.Atoi(p[1:])
		if err != nil {
			return p
		}
		return "$" + strconv.Itoa(n+conditionOffset)
	})
	return c, c.Skip
}

// admit takes claimed jobs in, in the order in which they are to run.
func (l *loop) admit(jobs []queue.Job) {
	slices.SortFunc(jobs, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.RunAt.Compare(b.RunAt), cmp.Compare(a.ID, b.ID))
	})
	var start []*run
	bytes := 0
	for _, j := range jobs {
		bytes += len(j.Args)
		r := l.newRun(j)
		if older := l.w.hand.add(r); older != nil {
			older.end(ErrClaimLost)
		}
		if j.Started {
			start = append(start, r)
		} else {
			l.ready = append(l.ready, r)
		}
	}
	if len(jobs) > 0 {
		l.width = bytes / len(jobs)
	}
	l.showPrefetched()
	l.start(start)
}

func (l *loop) newRun(j queue.Job) *run {
	h := l.w.handlers.of[j.Kind]
	most := j.Most
	if most == 0 {
		most = h.maxAttempts
	}
	return &run{w: l.w, loop: l, handler: h, row: j, header: headerOf(j, l.name, most)}
}

func (l *loop) showPrefetched() {
	n := len(l.ready)
	l.change(func(s *QueueStatus) { s.Prefetched = n })
}

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
			l.w.voice.aside("BeforeHandle", func() { before(l.w.handling, r.header) })
		}
	}
	now := time.Now()
	calls := make([][]*run, 0, len(runs))
	type group struct {
		h    *handler
		most int
	}
	batches := map[group][]*run{}
	for i, r := range runs {
		r.started = now
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
	l.w.crew.run(calls)
}

// startReady starts prefetched jobs as far as there are slots.
func (l *loop) startReady(ctx context.Context) {
	if len(l.ready) == 0 {
		return
	}
	n := l.w.slots.take(min(len(l.ready), l.free()))
	if n == 0 {
		return
	}
	first := l.ready[:n]
	runs := make([]queue.Run, n)
	for i, r := range first {
		runs[i] = r.row.Run
	}
	ctx, cancel := context.WithTimeout(ctx, l.w.limit)
	defer cancel()
	ids, err := onPool(ctx, l.w, func(conn *sql.Conn) ([]int64, error) { return l.w.queue.Start(ctx, conn, runs) })
	l.failed(err)
	if err != nil {
		l.w.slots.give(n)
		return
	}
	l.ready = slices.Clone(l.ready[n:])
	may := make(map[int64]bool, len(ids))
	for _, id := range ids {
		may[id] = true
	}
	var start []*run
	for _, r := range first {
		if may[r.row.ID] {
			r.row.Started = true
			start = append(start, r)
		} else {
			// Cancelled, expired, or lost: whatever it is, the settler is told.
			l.w.hand.enter(settling, r)
			l.w.settler.add(&ending{outcome: outcome{run: r, kind: unstarted}, end: released(r)})
		}
	}
	l.w.slots.give(n - len(start))
	l.showPrefetched()
	l.start(start)
}

// released is the end of a run that did not begin.
func released(r *run) queue.End {
	return queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released}
}

// giveBack gives prefetched jobs back.
func (l *loop) giveBack() {
	for _, r := range l.ready {
		l.w.hand.enter(settling, r)
		l.w.settler.add(&ending{outcome: outcome{run: r, kind: unstarted}, end: released(r)})
	}
	l.ready = nil
	l.showPrefetched()
}

// inHand reports whether handlers of this queue run that were not given up.
func (l *loop) inHand() bool {
	for _, p := range l.w.hand.of(l) {
		if p != settling {
			return true
		}
	}
	return false
}
