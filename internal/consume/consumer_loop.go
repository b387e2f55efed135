package consume

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// consumerLoop runs one consumer for as long as it is assigned to this worker:
// it reads, plans, runs and settles one batch after the other.
type consumerLoop struct {
	w      *Worker
	unit   *unit
	status *unitStatus
	reader *reader.Reader

	progress *progress.State // nil: load it
	polled   *frontier.Value // all that it allows was read; nil: not yet
	below    *frontier.Value // the consumer is above its Safe, and was loaded since

	tally     tally           // of what went wrong with new and late events
	again     tally           // and with the dead letter that is tried again
	overtaken int             // in a row
	misled    bool            // another server has answered, as the status says
	poison    *poison         // what failed too often; nil: nothing has
	crowded   bool            // it waits for open ranges to close, and has said so
	refused   *progress.Retry // the dead letter that has just failed again; nil: none has
	last      *lastBatch
	zombie    suspicion       // what the guards' watches have found that holds the row
	lent      atomic.Bool     // a handler has had the loop's connection in hand
	stop      context.Context // the worker's intake; nil: that of run

	triedLetter bool // in the turn before, so new events come next
	suspects    int  // among so many of the next events one cannot be read; 0: none is known

	rescaling rescaling
	lazily    lazily
	pace      pace

	precedence precedence
}

// newLoop makes the loop of a consumer.
func (w *Worker) newLoop(u *unit) *consumerLoop {
	var share *reader.Share
	if u.isPart() {
		share = &reader.Share{Of: u.title, Slot: u.slotOf, First: u.slots.First, Last: u.slots.Last, OneIn: partition.Slots / u.slots.Size()}
	}
	return &consumerLoop{w: w, unit: u, status: u.status, reader: w.ahead.Reader(u.types, share)}
}

// run works until intake ends, then finishes the batch in hand within ctx. It
// returns an error only if the worker must end.
func (c *consumerLoop) run(ctx, intake context.Context) (fatal error) {
	if c.unit.placed != nil {
		select {
		case <-c.unit.placed:
		case <-intake.Done():
		}
	}
	if c.stop == nil {
		c.stop = intake
	}
	defer func() {
		c.leaveMeeting()
		fatal = c.close(ctx, fatal)
		c.forget()
		c.reader.Close() // the loop ends with all that it has begun
	}()
	for intake.Err() == nil {
		n := news{c.w.frontier.Changed(), c.w.frontier.Back(), c.w.coord.Changed(), nil, nil}
		if c.unit.isPart() {
			n.met, n.joined = c.w.meetings.changed(), c.w.awaited.joined(c.unit.title)
		}
		r, fatal := c.inTurn(ctx, intake)
		if fatal != nil {
			return fatal
		}
		if r.failed() {
			pause, fatal := c.trouble(intake, r)
			if fatal != nil {
				return fatal
			}
			c.restAfterTrouble(intake, pause, n)
			continue
		}
		if !c.rescale(intake) {
			c.rest(intake, r, n)
		}
	}
	return nil
}

// inTurn is step. The parts of a consumer that does not say that they may run at the
// same time make one step after the other.
func (c *consumerLoop) inTurn(ctx, intake context.Context) (r result, fatal error) {
	if c.unit.isPart() && c.unit.inTurn != nil {
		select {
		case c.unit.inTurn <- struct{}{}:
			defer func() { <-c.unit.inTurn }()
		case <-intake.Done():
			return result{outcome: idle}, nil
		}
	}
	return c.step(ctx, intake)
}

// step makes one turn and settles its result.
func (c *consumerLoop) step(ctx, intake context.Context) (r result, fatal error) {
	if r = c.turn(ctx, intake); r.fatal != nil {
		return r, r.fatal
	}
	return r, c.settle(ctx, &r)
}

// turn reads the next work, plans it and runs it, on one connection.
func (c *consumerLoop) turn(ctx, intake context.Context) (r result) {
	began := time.Now()
	defer func() { r.began = began }()
	ahead := c.takeReadAhead(intake)
	v := c.w.frontier.Value()
	if c.outdated(v) {
		c.forget()
		ahead = nil
	}
	if ahead == nil && c.progress != nil && !c.hasWork(v) {
		return result{outcome: idle}
	}
	conn, release, err := c.w.loopConn(intake, c.quickLimit())
	if err != nil {
		return result{outcome: disturbed, err: err}
	}
	defer func() { r.left = release(r.isOurs(), c.lent.Swap(false)) }()
	if r := c.load(intake, conn, v); r.outcome != again {
		return r
	}
	w := ahead
	if w == nil {
		if w, r = c.read(intake, conn, v); w == nil {
			return r
		}
		w.Took = time.Since(began)
	}
	if err := c.reader.Failure(); err != nil {
		return result{outcome: disturbed, err: err}
	}
	if err = c.findDeadLetters(intake, c.w.db.Plans.On(conn, conn), w); err != nil {
		return result{outcome: disturbed, err: err}
	}
	c.plan(intake, w)
	if w.isEmpty() && w.retried == nil {
		return result{outcome: passedOver, work: w}
	}
	if c.passesLazily(w) {
		return result{outcome: passedLazily, work: w}
	}
	return c.runBatch(ctx, intake, conn, w)
}

// plan decides what going over new events means, and reads on behind them. A
// dead letter that is tried again moves nothing.
func (c *consumerLoop) plan(intake context.Context, w *work) {
	if w.retried != nil {
		w.advance = progress.Advance{To: w.from.Position, Head: w.head, Token: w.under.Token}
		w.takeEffects()
		return
	}
	c.triedLetter = false
	blocked := w.plan(c.w.cfg.MaxOpenRanges)
	c.waits(blocked, w.advance.To)
	c.polled = w.under
	if w.Positions.Through >= w.under.Safe && len(w.Events) > 0 && len(w.from.Open) == 0 {
		c.w.frontier.Follow()
	}
	if w.Full && !w.isEmpty() && !c.rescaling.bounded && len(w.from.Open) == 0 && !w.advance.MovesOpen() && !c.tally.bisect.active() && !c.paced() && c.suspects == 0 {
		c.reader.Begin(intake, w.advance.To, w.Events)
	}
	w.setAside(c.poison, c.w.text)
	w.noteLast()
	w.takeEffects()
}

// waits tells that the consumer waits for open ranges to close, or that it does
// so no longer.
func (c *consumerLoop) waits(blocked bool, at int64) {
	if blocked {
		err := errTooManyOpen{c.unit.name, c.w.cfg.MaxOpenRanges, at}
		c.status.disturbed(err)
		if !c.crowded {
			c.w.observers.Notify(observe.ConsumerWaiting{Consumer: c.unit.name, Condition: observe.ConditionDoubts, Err: err})
		}
		c.w.observers.Begin(c.about(observe.ConditionDoubts), err)
	} else {
		c.w.observers.End(c.about(observe.ConditionDoubts))
	}
	c.crowded = blocked
}

// settle takes note of what a turn came to. fatal ends the worker.
func (c *consumerLoop) settle(ctx context.Context, r *result) (fatal error) {
	switch r.outcome {
	case passedOver:
		r.outcome = c.passOver(r.work)
	case committed:
		c.committed(r.work, r.moved)
	case idle, again, passedLazily:
	default:
		c.forget() // whether anything happened, the database knows
	}
	if c.rowTells(ctx, r.err) {
		if fatal := c.answerInTime(ctx); fatal != nil {
			return fatal
		}
		if errors.Is(r.err, errRowTells) {
			*r = result{outcome: overtaken}
		}
	}
	if r.err == nil && r.left != nil {
		return &observe.ConsumerError{Consumer: c.unit.name, Err: r.left}
	}
	switch elsewhere := errors.Is(r.err, store.ErrIncarnation); {
	case r.outcome == overtaken && r.err != nil && !elsewhere:
		r.outcome, r.work = disturbed, nil // nobody knows why the guard refused
	case r.outcome == disturbed && r.work == nil && elsewhere:
		r.outcome = overtaken // a statement of the loop's own; what a handler returns never means that
	case r.err == nil:
		c.worked()
	}
	return nil
}

// passOver takes note that there was nothing to commit.
func (c *consumerLoop) passOver(w *work) outcome {
	before := c.tally.bisect
	c.passed(nil, w.Positions.Through)
	if c.tally.bisect != before || w.under != c.w.frontier.Value() {
		c.polled = nil
		return again
	}
	if c.progress.Retry {
		return again // a dead letter is to be tried
	}
	return idle
}

// committed takes note of a batch that was committed.
func (c *consumerLoop) committed(w *work, moved progress.Moved) {
	a := w.advance
	c.progress.Position, c.progress.Version = a.To, moved.Version
	if a.Effects != nil {
		c.progress.Effects = *a.Effects
	}
	if a.To >= c.lazily.upTo {
		c.lazily = lazily{}
	}
	c.noteHandled(w)
	if c.passed(w.retried, w.Positions.Through); !c.tally.bisect.active() {
		c.poison = nil
	} else if c.poison != nil {
		c.poison.revision = moved.Revision
	}
	c.overtaken = 0
	c.unit.reload.revision.Store(moved.Revision)
	c.status.advanced(a.To, len(w.Events), c.tally.failures)
	c.noteVoids(a.Marks)
	c.announce()
	c.w.skipped(c.unit.name, a.Marks)
	c.w.deadLettered(c.unit.name, w.deadLetters)
	c.settleDeadLetters(w)
	if a.MovesOpen() || w.shortened {
		c.forget() // there are open ranges now that it does not have, or not all is done that was planned
	}
	if w.Full {
		c.polled = nil
	}
}

// announce tells those who wait for the consumer how far it is.
func (c *consumerLoop) announce() {
	at := c.progress.Position
	if c.unit.isPart() {
		at = c.w.reached(c.unit.declared)
	}
	c.w.awaited.advanced(c.unit.title, at)
}

// worked takes note that a turn got through.
func (c *consumerLoop) worked() {
	over, againOver := c.tally.worked(), c.again.worked()
	if (over || againOver || c.misled) && !c.crowded {
		c.status.recovered()
	}
	c.misled = false
	c.w.observers.End(c.about(observe.ConditionDatabase))
	c.w.observers.End(c.about(observe.ConditionKey))
}

// news are closed when there is something new since they were taken.
type news struct {
	changed <-chan struct{} // the frontier's value
	back    <-chan struct{} // the frontier works again
	dealt   <-chan struct{} // the assignments, or the partitions that are wanted
	met     <-chan struct{} // how parts meet that are to be merged
	joined  <-chan struct{} // those who wait for the consumer
}

// rest waits until the next turn is due.
func (c *consumerLoop) rest(intake context.Context, r result, n news) {
	switch {
	case r.outcome == overtaken:
		c.yield(intake, n.back, r.err)
		if r.err != nil {
			return
		}
	case r.outcome == idle:
		c.await(intake, n)
	case (r.outcome == committed || r.outcome == passedLazily) && !r.work.Full:
		sleepUntil(intake, c.gather(r.outcome), nil)
	case r.outcome == committed && c.w.cfg.BatchPause > 0:
		backoff.Sleep(intake, c.w.cfg.BatchPause)
	}
	sleepUntil(intake, c.tally.due(), nil)
}

// gathering is how long a consumer lets events gather that come one upon another.
const gathering = 10 * time.Millisecond

// gather returns how long to wait after a batch. While events come faster than
// they are handled, larger batches cost the database less than more of them. An
// event on a quiet log does not wait: nothing has come during the batch before. A part
// waits after each batch, as the next event is seldom its own.
func (c *consumerLoop) gather(o outcome) time.Duration {
	if o == committed && c.unit.isPart() {
		return gatheringOf(c.unit.slots)
	}
	v, before := c.w.frontier.Value(), c.polled
	if before == nil || v.Token != before.Token || v.Safe <= before.Safe {
		return 0
	}
	return gathering
}

// gatheringOf is how long a part lets its events gather: the longer, the more parts there
// are. Each has transactions of its own, and fewer events for each of them.
func gatheringOf(slots partition.Range) time.Duration {
	n := partition.Slots / slots.Size()
	return min(gathering+time.Duration(n)*gathering/16, 3*gathering)
}

// await waits for news, or for somebody else to move the progress.
func (c *consumerLoop) await(intake context.Context, n news) {
	var again <-chan time.Time
	if at, ok := c.nextLook(); ok {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		again = timer.C
	}
	if c.lazily.upTo == 0 {
		n.joined = nil // nothing is kept back
	}
	select {
	case <-again:
	case <-n.changed:
	case <-n.dealt:
	case <-n.met:
	case <-n.joined:
	case <-c.unit.reload.c:
		c.forget()
	case <-intake.Done():
	}
}

// restAfterTrouble pauses. If the trouble was the database's, and the frontier
// sees that it works again, there is no need to wait longer.
func (c *consumerLoop) restAfterTrouble(intake context.Context, pause time.Duration, n news) {
	if c.tally.disturbed+c.again.disturbed == 0 {
		n.back = nil
	}
	sleepUntil(intake, pause, n.back)
}

// reopenAfter is how many times in a row another server may answer a loop until
// the frontier takes another connection.
const reopenAfter = 3

// yield pauses before the progress is loaded again. Once, somebody else moved
// it. Repeated refusals mean that the assignment or the server's incarnation
// changed and this loop has not been told: asking in a tight loop would only be
// in the way. elsewhere is store.ErrIncarnation if another server has answered.
// If that repeats, the frontier's own session may be the one that leads to the
// wrong server.
func (c *consumerLoop) yield(intake context.Context, back <-chan struct{}, elsewhere error) {
	const first, limit = 10 * time.Millisecond, 250 * time.Millisecond
	c.overtaken++
	if elsewhere != nil {
		c.w.frontier.Wake()
		if c.overtaken > reopenAfter {
			c.status.disturbed(elsewhere)
			c.misled = true
			c.w.frontier.Reopen()
		}
	}
	if c.overtaken > 1 {
		sleepUntil(intake, backoff.Delay(c.overtaken-1, first, limit, rand.Float64()), back)
	}
}

// sleepUntil waits for d, or for the end of intake, or for back.
func sleepUntil(intake context.Context, d time.Duration, back <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-back:
	case <-intake.Done():
	}
}

// noteResumed reports that an operator has resumed the consumer which a worker, perhaps another
// one, has paused.
func (c *consumerLoop) noteResumed() {
	switch p := c.progress.Paused; {
	case p == nil:
		c.w.observers.End(c.about(observe.ConditionPaused))
	case p.ByWorker():
		c.w.observers.Begin(c.about(observe.ConditionPaused), errors.New(p.Reason))
	}
}

// passed records that everything up to a position is done.
func (c *consumerLoop) passed(r *progress.Retry, position int64) {
	t := c.tallyOf(r)
	if t.passed(position); t.clean() {
		c.w.observers.End(c.aboutBatch(observe.ConditionBatch, r))
	}
}
