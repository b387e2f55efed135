package jobs

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
)

const (
	// unknownEvery is how often an idle loop reads the kinds without handlers.
	unknownEvery = 10 * time.Second
	// claimBytes bounds the bytes of arguments that a claim is to return. The size is estimated
	// from the last claim.
	claimBytes = 32 << 20
)

// loop claims the jobs of one queue and starts them. One goroutine runs it. So its claims and its
// reconciliations never overlap.
type loop struct {
	w              *Worker
	name           string
	capacity       int
	seat           *seat
	woken          chan struct{}
	turn           watchdog.Iteration
	newJobs        atomic.Bool // a notification of new jobs has arrived
	reconcileAsked atomic.Bool // reconcile the jobs in flight now
	back           atomic.Bool // jobs were released, or are to be retried
	unwanted       atomic.Bool // the listening connection is new: the server may have lost the request for notifications

	lanes     lanes
	low       bool      // the last claim began at the bottom of the lanes
	ready     []*run    // prefetched, in the order to run
	claimable bool      // there may be more jobs to claim
	doubt     time.Time // until then, a claim with a lost answer may be under way; zero: none
	width     int       // bytes of arguments per job in the last claim

	walkAt       time.Time     // when the last claim was sent
	walkedAt     time.Time     // when the last claim was answered
	took         time.Duration // duration of the last claim, including waits
	claimedAt    time.Time
	peekTook     time.Duration // duration of the last peek
	peekedAt     time.Time
	startAt      time.Time    // when prefetched jobs may start even if few slots are free
	pausedTo     time.Time    // after a failure: no claim before this time
	polls        jobrun.Polls // WithPollInterval, WithMaxPollInterval
	pollAt       time.Time
	notifyDown   bool // notifications did not arrive in the last turn
	reconcileAt  time.Time
	reconciledAt time.Time
	wantedAt     time.Time // when notifications were last requested; zero: never, or the request failed
	wantAt       time.Time // when to request them again
	unknownAt    time.Time
	failures     int

	mu      sync.Mutex // guards the fields below
	running int
	s       QueueStatus
}

func newLoop(w *Worker, q queueConfig) *loop {
	l := &loop{w: w, name: q.name, capacity: q.concurrency, woken: make(chan struct{}, 1), claimable: true,
		polls: jobrun.Polls{First: w.cfg.pollInterval, Longest: max(w.cfg.pollInterval, w.cfg.maxPollInterval)},
		s:     QueueStatus{Name: q.name, Concurrency: q.concurrency}}
	l.seat = w.slots.seat(w.cfg.priorityOf(q.name), l.free, func() bool { return l.turn.Lasts() > w.limit })
	return l
}

// loops are the loops of all queues.
type loops []*loop

func (all loops) wake() {
	for _, l := range all {
		l.wake()
	}
}

// requestPolls makes every queue poll soon.
func (all loops) requestPolls() {
	for _, l := range all {
		l.requestPoll()
	}
}

// poll makes every queue poll for new jobs.
func (all loops) poll() {
	for _, l := range all {
		l.newJobs.Store(true)
		l.wake()
	}
}

// wake wakes the loop.
func (l *loop) wake() { jobrun.Wake(l.woken) }

// release gives back n slots after their handler has returned.
func (l *loop) release(n int) {
	l.mu.Lock()
	l.running -= n
	l.mu.Unlock()
	l.w.slots.give(n)
	l.wake()
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

// count counts a settled job. In a capped queue the job's slot is free only now.
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
		l.newJobs.Store(true)
		l.wake()
	}
	if state == queue.Available {
		l.requestPoll()
	}
}

func (l *loop) countLost() { l.change(func(s *QueueStatus) { s.Lost++ }) }

// free returns how many slots of the queue itself are free.
func (l *loop) free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.capacity - l.running
}

// run runs the loop until intake has ended and no job of the queue is in flight. Jobs whose
// handlers were given up do not count.
func (l *loop) run(ctx, intake context.Context) {
	l.reconcileAt = time.Now().Add(l.w.cfg.heartbeat)
	for intake.Err() == nil && !l.w.slots.spent() {
		l.step(ctx)
		l.rest(intake)
	}
	if intake.Err() == nil {
		l.w.Stop() // after WithStopAfterJobs
	}
	l.giveBack()
	for l.w.inFlight.Busy(l.has) && ctx.Err() == nil {
		if l.reconcileDue(time.Now()) {
			l.reconcile(ctx)
			l.giveBack() // jobs that reconcile has adopted
		}
		l.sleep(ctx, time.Until(l.reconcileAt))
	}
}

// step does one turn of the loop: reconcile, start, peek and claim.
func (l *loop) step(ctx context.Context) {
	l.turn.Begin()
	defer l.turn.End()
	now := time.Now()
	if l.reconcileDue(now) {
		l.reconcile(ctx)
	}
	l.startReady(ctx)
	l.handleNotices(now)
	switch {
	case l.newJobs.Swap(false):
		l.claimable, l.polls.Quiet = true, 0
	case !l.claimable && !now.Before(l.pollAt) && !now.Before(l.pausedTo):
		l.peek(ctx, true)
	case !l.claimable && l.wantDue(now):
		l.want(ctx)
	}
	l.wantSlots()
	if want := l.mayClaim(time.Now()); want > 0 {
		l.claim(ctx, want)
		l.wantSlots()
	}
}

// wantSlots reserves slots for the jobs that this queue could start now. Queues of lower priorities
// leave these slots free.
func (l *loop) wantSlots() {
	switch {
	case time.Now().Before(l.pausedTo):
		l.w.slots.want(l.seat, 0)
	case l.claimable && !l.w.settler.Full():
		l.w.slots.want(l.seat, l.capacity)
	default:
		l.w.slots.want(l.seat, len(l.ready))
	}
}

// mayClaim returns how many jobs to claim now.
func (l *loop) mayClaim(now time.Time) (want int) {
	want = l.room()
	switch {
	case !l.claimable || want <= 0 || now.Before(l.pausedTo) || l.w.settler.Full():
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

// room returns how many jobs the slots and WithPrefetch allow to claim now.
func (l *loop) room() int {
	return l.w.slots.room(min(l.free(), l.w.slots.available(l.seat)) + l.w.cfg.prefetch - len(l.ready))
}

// gathers reports whether the next claim should wait for more free slots. It waits if less than
// half of the slots are free and the last claim was at most [jobrun.Gather] ago.
func (l *loop) gathers(now time.Time, want int) bool {
	return want < (l.capacity+l.w.cfg.prefetch+1)/2 && now.Before(l.claimedAt.Add(min(l.took, jobrun.Gather)))
}

// rest sleeps until the next step is due.
func (l *loop) rest(ctx context.Context) {
	if l.w.slots.spent() {
		return
	}
	now := time.Now()
	until := l.reconcileAt
	if len(l.ready) > 0 && now.Before(l.pausedTo) {
		until = earlier(until, l.pausedTo)
	}
	if l.startGathers(now) {
		until = earlier(until, l.startAt)
	}
	switch want := l.room(); {
	case !l.claimable && l.pollAt.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case !l.claimable:
		until = earlier(until, l.pollAt)
		if l.w.cfg.notify != "" {
			until = earlier(until, l.nextWant())
		}
	case now.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case want > 0 && l.gathers(now, want):
		until = earlier(until, l.claimedAt.Add(min(l.took, jobrun.Gather)))
	case want > 0 && !l.w.settler.Full():
		return // a claim is due
	}
	l.sleep(ctx, until.Sub(now))
}

func (l *loop) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.woken:
	case <-ctx.Done():
	}
}

// has reports whether a run is of this queue.
func (l *loop) has(r *run) bool { return r.loop == l }

// inFlight returns the runs of this queue.
func (l *loop) inFlight() map[queue.Run]*run {
	mine := map[queue.Run]*run{}
	for _, r := range l.w.inFlight.All() {
		if l.has(r) {
			mine[r.Claim] = r
		}
	}
	return mine
}

// mostLooping bounds the connections that the loops of all queues use at once: a worker of a
// thousand queues would open as many when it starts.
const mostLooping = 32

// on is [env.on] for the statements of a loop, which take turns.
func (l *loop) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	select {
	case l.w.looping <- struct{}{}:
		defer func() { <-l.w.looping }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return l.w.on(ctx, f)
}

// onLoop is [loop.on] for statements with an answer.
func onLoop[T any](ctx context.Context, l *loop, f func(conn *sql.Conn) (T, error)) (answer T, err error) {
	err = l.on(ctx, func(conn *sql.Conn) (err error) {
		answer, err = f(conn)
		return err
	})
	return answer, err
}
