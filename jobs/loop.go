package jobs

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
)

const (
	// gather bounds the pause in which slots gather for the next claim, while there
	// is more to do than slots.
	gather = 5 * time.Millisecond
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
	seat     *seat
	wake     chan struct{}
	turn     watchdog.Iteration
	news     atomic.Bool // new jobs were told
	look     atomic.Bool // look at the jobs in hand now
	back     atomic.Bool // jobs were given back, or are to be tried again
	unwanted atomic.Bool // the listening connection is new: the server may have forgotten what it was asked

	lanes  lanes
	low    bool      // the last claim began at the bottom of the lanes
	ready  []*run    // prefetched, in the order to run
	hungry bool      // there may be more to claim
	doubt  time.Time // until then a claim may be under way whose answer was lost; zero: none
	width  int       // bytes of a job's arguments in the last claim

	walkAt    time.Time     // when the last claim was sent
	walkedAt  time.Time     // when it was answered
	took      time.Duration // by the last claim, with what it waited for
	claimedAt time.Time
	peekTook  time.Duration // by the last peek
	peekedAt  time.Time
	startAt   time.Time // when prefetched jobs may start, however few have slots
	pausedTo  time.Time // after a failure: no claim before
	polls     polls
	pollAt    time.Time
	deaf      bool // notifications did not arrive in the last turn
	lookAt    time.Time
	lookedAt  time.Time
	wantedAt  time.Time // when it was last asked to be told of new jobs; zero: never, or in vain
	wantAt    time.Time // when to ask again
	unknownAt time.Time
	failures  int

	mu      sync.Mutex // guards what follows
	running int
	s       QueueStatus
}

func newLoop(w *Worker, q queueConfig) *loop {
	l := &loop{w: w, name: q.name, capacity: q.concurrency, wake: make(chan struct{}, 1), hungry: true,
		polls: polls{first: w.cfg.pollInterval, longest: max(w.cfg.pollInterval, w.cfg.maxPollInterval)},
		s:     QueueStatus{Name: q.name, Concurrency: q.concurrency}}
	l.seat = w.slots.seat(w.cfg.priorityOf(q.name), l.free, func() bool { return l.turn.Lasts() > w.limit })
	return l
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
	if state == queue.Available {
		l.come()
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
	if intake.Err() == nil {
		l.w.Stop() // after WithStopAfterJobs
	}
	l.giveBack()
	for l.inHand() && ctx.Err() == nil {
		if l.lookDue(time.Now()) {
			l.lookNow(ctx)
			l.giveBack() // what it has found
		}
		l.sleep(ctx, time.Until(l.lookAt))
	}
}

// step does what there is to do.
func (l *loop) step(ctx context.Context) {
	l.turn.Begin()
	defer l.turn.End()
	now := time.Now()
	if l.lookDue(now) {
		l.lookNow(ctx)
	}
	l.startReady(ctx)
	l.heed(now)
	switch {
	case l.news.Swap(false):
		l.hungry, l.polls.quiet = true, 0
	case !l.hungry && !now.Before(l.pollAt) && !now.Before(l.pausedTo):
		l.peek(ctx, true)
	case !l.hungry && l.wantDue(now):
		l.want(ctx)
	}
	l.wantSlots()
	if want := l.mayClaim(time.Now()); want > 0 {
		l.claim(ctx, want)
		l.wantSlots()
	}
}

// wantSlots makes queues of lower priorities leave slots for the jobs that this one could
// start now.
func (l *loop) wantSlots() {
	switch {
	case time.Now().Before(l.pausedTo):
		l.w.slots.want(l.seat, 0)
	case l.hungry && !l.w.settler.full():
		l.w.slots.want(l.seat, l.capacity)
	default:
		l.w.slots.want(l.seat, len(l.ready))
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
	if most := l.w.cfg.claimBatch; most > 0 {
		want = min(want, most)
	}
	return want
}

// room is how many jobs could be claimed now.
func (l *loop) room() int {
	return l.w.slots.room(min(l.free(), l.w.slots.available(l.seat)) + l.w.cfg.prefetch - len(l.ready))
}

// gathers reports whether slots should gather before the next claim: the last one
// was full, it was a moment ago, and less than half are free.
func (l *loop) gathers(now time.Time, want int) bool {
	return want < (l.capacity+l.w.cfg.prefetch+1)/2 && now.Before(l.claimedAt.Add(min(l.took, gather)))
}

// rest sleeps until there is something to do.
func (l *loop) rest(ctx context.Context) {
	if l.w.slots.spent() {
		return
	}
	now := time.Now()
	until := l.lookAt
	if len(l.ready) > 0 && now.Before(l.pausedTo) {
		until = earlier(until, l.pausedTo)
	}
	if l.startGathers(now) {
		until = earlier(until, l.startAt)
	}
	switch want := l.room(); {
	case !l.hungry && l.pollAt.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case !l.hungry:
		until = earlier(until, l.pollAt)
		if l.w.cfg.notify != "" {
			until = earlier(until, l.nextWant())
		}
	case now.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case want > 0 && l.gathers(now, want):
		until = earlier(until, l.claimedAt.Add(min(l.took, gather)))
	case want > 0 && !l.w.settler.full():
		return // there is something to do
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

// inHand reports whether handlers of this queue run that were not given up.
func (l *loop) inHand() bool {
	for _, p := range l.w.hand.of(l) {
		if p != settling {
			return true
		}
	}
	return false
}
