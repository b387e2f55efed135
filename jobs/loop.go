package jobs

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// loop claims the jobs of one queue and starts them. One goroutine runs it. So its claims and its
// reconciliations never overlap.
type loop struct {
	*shared
	claimer    *claimer
	poller     *poller
	starter    *starter
	reconciler *reconciler
	stop       func() // after WithStopAfterJobs
}

// run runs the loop until intake has ended and no job of the queue is in flight. Jobs whose
// handlers were given up do not count.
func (l *loop) run(ctx, intake context.Context) {
	l.reconciler.at = time.Now().Add(l.cfg.heartbeat)
	for intake.Err() == nil && !l.slots.spent() {
		l.step(ctx)
		l.rest(intake)
	}
	if intake.Err() == nil {
		l.stop()
	}
	l.starter.giveBack()
	for l.starter.inFlight.Busy(l.has) && ctx.Err() == nil {
		if l.reconciler.due(time.Now()) {
			l.reconciler.reconcile(ctx)
			l.starter.giveBack() // jobs that reconcile has adopted
		}
		l.sleep(ctx, time.Until(l.reconciler.at))
	}
}

// step does one turn of the loop: reconcile, start, peek and claim.
func (l *loop) step(ctx context.Context) {
	l.turn.Begin()
	defer l.turn.End()
	now := time.Now()
	if l.reconciler.due(now) {
		l.reconciler.reconcile(ctx)
	}
	l.starter.startReady(ctx)
	l.poller.handleNotices(now)
	switch {
	case l.newJobs.Swap(false):
		l.claimable, l.poller.polls.Quiet = true, 0
	case !l.claimable && !now.Before(l.poller.at) && !now.Before(l.pausedTo):
		l.poller.peek(ctx, true)
	case !l.claimable && l.poller.wantDue(now):
		l.poller.want(ctx)
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
		l.slots.want(l.seat, 0)
	case l.claimable && !l.starter.settler.Full():
		l.slots.want(l.seat, l.capacity)
	default:
		l.slots.want(l.seat, len(l.starter.ready))
	}
}

// mayClaim returns how many jobs to claim now.
func (l *loop) mayClaim(now time.Time) (want int) {
	want = l.room()
	if !l.claimable || want <= 0 || now.Before(l.pausedTo) || l.starter.settler.Full() || l.claimer.gathers(now, want) {
		return 0
	}
	return l.claimer.most(want)
}

// room returns how many jobs the slots and WithPrefetch allow to claim now.
func (l *loop) room() int {
	return l.slots.room(min(l.free(), l.slots.available(l.seat)) + l.cfg.prefetch - len(l.starter.ready))
}

// claim claims up to want jobs, and starts the jobs that have slots.
func (l *loop) claim(ctx context.Context, want int) {
	condition, skip := l.claimer.before(ctx)
	if skip {
		l.claimable, l.poller.at = false, time.Now().Add(l.poller.polls.First)
		return
	}
	slots := l.slots.take(l.seat, min(want, l.free()))
	want = l.slots.allot(pgdriver.RoundLimit(min(want, slots+l.cfg.prefetch-min(l.cfg.prefetch, len(l.starter.ready)))))
	if want == 0 { // another queue was faster; give wakes this loop
		l.slots.give(slots)
		return
	}
	jobs, err := l.claimer.claim(ctx, want, min(slots, want), condition)
	started := 0
	for _, j := range jobs {
		if j.Started {
			started++
		}
	}
	l.slots.restore(want, len(jobs), started)
	l.slots.give(slots - started)
	l.failed(err)
	if err != nil {
		l.reconciler.doubtClaim()
		return
	}
	l.starter.admit(jobs)
	if len(jobs) < want {
		l.poller.idle(ctx, len(jobs))
	}
}

// rest sleeps until the next step is due.
func (l *loop) rest(ctx context.Context) {
	if l.slots.spent() {
		return
	}
	now := time.Now()
	until := l.reconciler.at
	if len(l.starter.ready) > 0 && now.Before(l.pausedTo) {
		until = earlier(until, l.pausedTo)
	}
	if l.starter.gathers(now) {
		until = earlier(until, l.starter.at)
	}
	switch want := l.room(); {
	case !l.claimable && l.poller.at.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case !l.claimable:
		until = earlier(until, l.poller.at)
		if l.cfg.notify != "" {
			until = earlier(until, l.poller.nextWant())
		}
	case now.Before(l.pausedTo):
		until = earlier(until, l.pausedTo)
	case want > 0 && l.claimer.gathers(now, want):
		until = earlier(until, l.claimer.gathered())
	case want > 0 && !l.starter.settler.Full():
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

// loops are the loops of all queues.
type loops []*loop

func (all loops) each(f func(*servedQueue)) {
	for _, l := range all {
		f(l.servedQueue)
	}
}

// wake wakes all loops.
func (all loops) wake() { all.each((*servedQueue).wake) }
