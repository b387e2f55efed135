package worker

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// unit is what is assigned, checkpointed and shown: today a consumer.
type unit struct {
	name     string
	consumer consumer.Consumer
	bulk     consumer.BatchConsumer // the same, if it takes whole batches
	types    []string               // none: all
	start    consumer.Start
	nudge    *nudge
	voids    voidRows
	log      string        // the incarnation in which its checkpoint was last sound
	placed   chan struct{} // closed when it has its first checkpoint; nil if it had one at the start
}

// reopenAfter is how many times in a row another server may answer a loop until
// the frontier takes another connection.
const reopenAfter = 3

// consumerLoop runs one consumer for as long as it is assigned to this worker.
type consumerLoop struct {
	w        *Worker
	unit     *unit
	status   *unitStatus
	progress *progress.State // nil: load it
	looked   *frontier.Value // all that it allows was read; nil: not yet
	below    *frontier.Value // the consumer is above its Safe, and was loaded since

	reader *reader.Reader

	tally     tally           // of what went wrong with new and late events
	again     tally           // and with the dead letter that is tried again
	overtaken int             // in a row
	sentence  *sentence       // for what failed too often; nil: nothing has
	crowded   bool            // it waits for open ranges to close, and has said so
	refused   *progress.Retry // the dead letter that has just failed again; nil: none has
	last      *lastBatch
	lent      atomic.Bool     // a handler has had the loop's connection in hand
	stop      context.Context // the worker's intake; nil: that of run

	triedLetter bool // in the step before, so it is the turn of what is new
}

// newLoop makes the loop of a consumer.
func (w *Worker) newLoop(u *unit) *consumerLoop {
	return &consumerLoop{w: w, unit: u, status: w.status[u.name], reader: w.ahead.Reader(u.types)}
}

// tallyOf returns the tally of a batch: that of the dead letter it tries again,
// if it does.
func (c *consumerLoop) tallyOf(r *progress.Retry) *tally {
	if r != nil {
		return &c.again
	}
	return &c.tally
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
		fatal = c.close(ctx, fatal)
		c.forget()
		c.reader.Close() // the loop ends with all that it has begun
	}()
	for intake.Err() == nil {
		changed, back := c.w.frontier.Changed(), c.w.frontier.Back()
		began := time.Now()
		did, fatal, err := c.turn(ctx, intake)
		if fatal != nil {
			return fatal
		}
		if errors.Is(err, errLeftOpen) {
			return &ConsumerError{Consumer: c.unit.name, Err: err}
		}
		if leadsElsewhere(err) {
			c.forget()
			c.yield(intake, back, err)
			continue
		}
		if err != nil {
			c.forget() // a surprise: what is known may no longer be so
			pause, fatal := c.trouble(intake, began, err)
			if fatal != nil {
				return fatal
			}
			c.rest(intake, pause, back)
			continue
		}
		c.worked()
		switch did {
		case nothing:
			c.await(intake, changed)
		case batch:
			sleepUntil(intake, c.gather(), nil)
		case fullBatch:
			if c.w.cfg.BatchPause > 0 {
				backoff.Sleep(intake, c.w.cfg.BatchPause)
			}
		case reload:
			c.yield(intake, back, nil)
		}
		sleepUntil(intake, c.tally.due(), nil)
	}
	return nil
}

// turn is a step, and the question what became of the last batch, where only
// that can tell whether its handler ended the transaction. If it did, that is
// fatal.
func (c *consumerLoop) turn(ctx, intake context.Context) (did did, fatal, err error) {
	did, err = c.step(ctx, intake)
	if !c.rowTells(ctx, err) {
		return did, nil, err
	}
	chance, cancel := c.lastChance(ctx)
	defer cancel()
	fatal = c.answer(ctx, chance)
	if errors.Is(err, errRowTells) {
		return reload, fatal, nil
	}
	return did, fatal, err
}

// worked takes note that a step got through.
func (c *consumerLoop) worked() {
	over, againOver := c.tally.worked(), c.again.worked()
	if (over || againOver) && !c.crowded {
		c.status.recovered()
	}
	c.w.recovered(c.about(TroubleDatabase))
}

// did is what a step of the loop did.
type did int

const (
	nothing   did = iota // nothing is safe to read yet
	batch                // everything that was safe when it was read
	fullBatch            // there is probably more
	reload               // somebody else moved the progress
)

// gathering is how long a consumer lets events gather that come one upon another.
const gathering = 10 * time.Millisecond

// gather returns how long to wait after a batch. While events come faster than
// they are handled, larger batches cost the database less than more of them. An
// event on a quiet log does not wait: nothing has come during the batch before.
func (c *consumerLoop) gather() time.Duration {
	v, before := c.w.frontier.Value(), c.looked
	if before == nil || v.Token != before.Token || v.Safe <= before.Safe {
		return 0
	}
	return gathering
}

// await waits for a new frontier, or for somebody else to move the progress.
func (c *consumerLoop) await(intake context.Context, changed <-chan struct{}) {
	select {
	case <-changed:
	case <-c.unit.nudge.c:
		c.forget()
	case <-intake.Done():
	}
}

// rest pauses after trouble. If that was the database's, and the frontier sees
// that it works again, there is no need to wait longer.
func (c *consumerLoop) rest(intake context.Context, pause time.Duration, back <-chan struct{}) {
	if c.tally.disturbed+c.again.disturbed == 0 {
		back = nil
	}
	sleepUntil(intake, pause, back)
}

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

// forget makes the loop load its progress again.
func (c *consumerLoop) forget() {
	c.progress = nil
	c.looked = nil
	c.unit.nudge.revision.Store(noRevision)
}

// step makes one batch, if there is anything to do.
func (c *consumerLoop) step(ctx, intake context.Context) (_ did, err error) {
	var p page
	var ahead *frontier.Value
	if !c.lettersTurn() {
		p, ahead = c.takeReadAhead(intake)
	}
	v := c.w.frontier.Value()
	if c.outdated(v) {
		c.forget()
		ahead = nil
	}
	if ahead == nil && c.progress != nil && !c.worthALook(v) {
		return nothing, nil
	}
	began := time.Now()
	conn, release, err := c.w.loopConn(intake, c.patience())
	if err != nil {
		return nothing, err
	}
	defer func() {
		if left := release(err, c.lent.Swap(false)); left != nil && err == nil {
			err = left
		}
	}()
	if c.progress == nil {
		if err := c.quickly(intake, func(ctx context.Context) error { return c.load(ctx, conn, v) }); err != nil {
			return nothing, err
		}
		if err := c.restarted(); err != nil {
			return c.stopRestarted(intake, conn, err)
		}
	}
	switch {
	case ahead != nil:
		v = ahead
	case v.Token == "" || !c.worthALook(v):
		return nothing, nil
	case c.sentence != nil && c.sentence.policy == FailPause:
		return c.pause(intake, conn)
	case c.lettersTurn() || !c.hasNews(v):
		c.triedLetter = true
		return c.retryLetter(ctx, intake, conn, v)
	default:
		pid := c.w.sessionOf(conn)
		err := c.reading(intake, func() int64 { return pid }, func(ctx context.Context) (err error) {
			p, err = c.lookAround(ctx, conn, v)
			return err
		})
		if err != nil {
			return nothing, err
		}
		p.Took = time.Since(began)
	}
	c.triedLetter = false
	done, err := c.cross(ctx, intake, conn, v, p)
	if done == nothing && err == nil && c.lettersTurn() {
		done = batch
	}
	return done, err
}

// outdated reports whether the progress must be loaded again before v is used.
func (c *consumerLoop) outdated(v *frontier.Value) bool {
	switch {
	case c.progress == nil:
		return false
	case c.progress.Token != v.Token:
		// The server crashed since, or a backup was restored. That may have set
		// the progress back, and counted its revision up again from there.
		return true
	case v.Safe < c.progress.Position && v != c.below:
		// Another worker's frontier was further, or the sequence was set back.
		c.below = v
		return true
	}
	return false
}

// load loads the progress from the incarnation of v.
func (c *consumerLoop) load(ctx context.Context, q store.Querier, v *frontier.Value) error {
	p, err := c.w.checkpoints.Load(ctx, q, c.unit.name)
	if err != nil {
		return err
	}
	if v.Token != "" && p.Token != v.Token {
		return store.ErrIncarnation
	}
	if c.last.look(p) {
		return errRowTells
	}
	if v.Token != "" && c.last.isOpen() {
		c.last = nil // of another incarnation: nothing shows any more what its handler did
	}
	c.progress = p
	c.unit.nudge.revision.Store(c.progress.Revision)
	if c.progress.Paused != nil {
		c.tally.reset() // the failures are now the affair of those who resume it
	}
	c.noteResumed()
	if c.sentence != nil && c.sentence.revision != c.progress.Revision {
		if c.pausedAsSentenced() {
			c.announcePause() // the answer was lost
		}
		c.sentence = nil // somebody has moved the consumer since
	}
	c.status.loaded(c.progress)
	c.w.awaited.advanced(c.unit.name, c.progress.Position)
	return nil
}

// cross goes over a page that was read under v, in one batch.
func (c *consumerLoop) cross(ctx, intake context.Context, conn *sql.Conn, v *frontier.Value, p page) (did, error) {
	a, blocked := p.cross(v, c.progress.Open, c.w.cfg.MaxOpenRanges)
	a.Head = c.w.visible(v)
	if blocked {
		err := errTooManyOpen{c.unit.name, c.w.cfg.MaxOpenRanges, a.To}
		c.status.disturbed(err)
		if !c.crowded {
			tell(c.w.observer.ConsumerWaiting, ConsumerWait{c.unit.name, TroubleDoubts, err})
		}
		c.w.troubled(c.about(TroubleDoubts), err)
	} else {
		c.w.recovered(c.about(TroubleDoubts))
	}
	c.crowded = blocked
	c.looked = v
	if p.Look.Through >= v.Safe && len(p.Events) > 0 && len(c.progress.Open) == 0 {
		c.w.frontier.Follow()
	}
	if a.Empty(c.progress.Position) {
		before := c.tally.suspect
		c.passed(nil, p.Look.Through)
		if c.tally.suspect != before || v != c.w.frontier.Value() {
			c.looked = nil
			return batch, nil // look again
		}
		return nothing, nil
	}
	if p.Full && len(c.progress.Open) == 0 && !a.MovesOpen() && !c.tally.suspect.active() {
		c.reader.Begin(intake, a.To, p.Events)
	}
	if err := c.sortOut(intake, conn, &p); err != nil {
		return nothing, err
	}
	return c.settle(c.runBatch(ctx, intake, conn, p, a), p, a)
}

// worthALook: the consumer has news, or an operator has asked for something.
func (c *consumerLoop) worthALook(v *frontier.Value) bool {
	return c.progress.Paused == nil && (c.progress.Retry || c.hasNews(v))
}

// hasNews reports whether there are new positions, or news about open ones.
func (c *consumerLoop) hasNews(v *frontier.Value) bool {
	return c.looked != v && (v.Safe > c.progress.Position || len(c.progress.Open) > 0)
}

// settle takes a batch's result into account.
func (c *consumerLoop) settle(r result, p page, a progress.Advance) (did, error) {
	if r.outcome != committed {
		revision := c.progress.Revision
		c.forget() // whether anything happened, the database knows
		if r.outcome == overtaken {
			return reload, r.err
		}
		return nothing, &batchError{r, p.Events, p.retried, revision}
	}
	c.progress.Position, c.progress.Version = a.To, r.moved.Version
	if c.passed(p.retried, p.Look.Through); !c.tally.suspect.active() {
		c.sentence = nil
	}
	c.overtaken = 0
	c.unit.nudge.revision.Store(r.moved.Revision)
	c.status.advanced(a.To, len(p.Events), c.tally.failures)
	c.noteVoids(a.Marks)
	c.w.awaited.advanced(c.unit.name, a.To)
	c.w.observer.skipped(c.unit.name, a.Marks)
	c.w.observer.deadLettered(c.unit.name, p.letters)
	c.settleLetters(p)
	if a.MovesOpen() {
		c.forget() // there are open ranges now that it does not have
	}
	if p.Full {
		c.looked = nil
		return fullBatch, nil
	}
	return batch, nil
}
