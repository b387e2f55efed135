package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/consume/precedence"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// consumerLoop runs one unit for as long as it is assigned to this worker. It reads, plans,
// runs and settles one batch after the other.
type consumerLoop struct {
	w       *shared
	unit    *unit
	status  *unitStatus
	reader  *reader.Reader
	handler *batch.Handler

	statements
	agenda
	deadLetters deadLetters
	failures    failureActions
	precedence  precedence.Precedence

	overtakes overtakes
	check     txcheck.Check
	guards    lockwatch.Guards
	stop      context.Context // the worker's intake; nil: the intake of run
}

// newLoop makes the loop of a unit of w.
func newLoop(w *shared, u *unit) *consumerLoop {
	var share *reader.Share
	if u.isPart() {
		share = &reader.Share{Of: u.consumerName, Slot: u.key.SlotOf, First: u.slots.First, Last: u.slots.Last, OneIn: partition.Slots / u.slots.Size()}
	}
	h := &batch.Handler{
		Consumer: u.consumer, Bulk: u.bulk, Forgets: u.forgets, Middleware: w.cfg.HandleMiddleware, Decoder: w.cfg.Decoder,
		Timeout: w.cfg.BatchTimeout, Size: w.cfg.BatchSize, Key: u.key.Name(), SlotOf: u.key.SlotOf,
	}
	c := &consumerLoop{
		w: w, unit: u, status: u.status, reader: w.ahead.Reader(u.types, share), handler: h, guards: lockwatch.New(u.row(w)),
		agenda:     agenda{cfg: &w.cfg, unit: u, awaited: w.awaited, rescaling: partitions.New(u.rescaling(w))},
		precedence: u.precedence(w),
	}
	c.statements = statements{w, u, &c.tally}
	c.check = txcheck.New(checkedUnit(c))
	c.deadLetters = deadLetters{c.statements, &c.agenda}
	c.failures = failureActions{statements: c.statements, agenda: &c.agenda, deadLetters: &c.deadLetters}
	return c
}

// run works until intake ends, then finishes the batch in flight within ctx. It returns an
// error only if the worker must end.
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
		c.rescaling.Leave()
		fatal = c.check.Close(ctx, fatal)
		c.forget()
		c.reader.Close() // the loop waits for every read that it has begun
	}()
	for intake.Err() == nil {
		n := signals{c.w.frontier.Changed(), c.w.frontier.Back(), c.w.coord.Changed(), nil, nil}
		if c.unit.isPart() {
			n.barrier, n.callers = c.w.barriers.Changed(), c.w.awaited.Joined(c.unit.consumerName)
		}
		r, fatal := c.step(ctx, intake)
		if fatal != nil {
			return fatal
		}
		if r.failed() {
			pause, fatal := c.failures.after(intake, r)
			if fatal != nil {
				return fatal
			}
			n.restAfterFailure(intake, pause, c.disturbed(), c.unit.reload.moves())
			c.unit.reload.forget()
			continue
		}
		if !c.rescale(intake) {
			c.rest(intake, r, n)
		}
	}
	return nil
}

// step runs one iteration and settles its result. The iteration reads the next work, plans
// it and runs it, on one connection.
func (c *consumerLoop) step(ctx, intake context.Context) (r result, fatal error) {
	leave, ok := c.unit.enter(intake)
	if !ok {
		return result{outcome: idle}, nil
	}
	defer leave()
	began := time.Now()
	var conn heldConn
	defer func() { _ = conn.release(false) }() // after a handler has ended the goroutine
	w, r := c.next(intake, &conn)
	if w != nil {
		r = c.runBatch(ctx, intake, &conn, w)
	}
	r.began, r.left = began, conn.release(r.isOurs())
	if r.fatal != nil {
		return r, r.fatal
	}
	return r, c.settle(ctx, &r)
}

// next returns the next work that needs a batch, and takes the connection for it. Without
// such work it returns the reason as a result.
func (c *consumerLoop) next(intake context.Context, held *heldConn) (w *work, r result) {
	began := time.Now()
	ahead := c.takeReadAhead(intake)
	v := c.w.frontier.Value()
	if c.outdated(v) {
		c.forget()
		ahead = nil
	}
	if ahead == nil && c.progress != nil && !c.hasWork(v) {
		return nil, result{outcome: idle}
	}
	conn, release, err := c.w.loopConn(intake, c.quickLimit())
	if err != nil {
		return nil, result{outcome: disturbed, err: err}
	}
	held.Conn, held.giveBack = conn, release
	if r := c.load(intake, conn, v); r.outcome != again {
		return nil, r
	}
	if w = ahead; w == nil {
		if w, r = c.read(intake, conn, v); w == nil {
			return nil, r
		}
		w.Took = time.Since(began)
	}
	if err := c.reader.Failure(); err != nil {
		return nil, result{outcome: disturbed, err: err}
	}
	if err = c.deadLetters.find(intake, c.w.db.Plans.On(conn, conn), w); err != nil {
		return nil, result{outcome: disturbed, err: err}
	}
	c.plan(intake, w)
	if w.isEmpty() && w.retried == nil {
		return nil, result{outcome: passedOver, work: w}
	}
	if c.deferCommit(w) {
		c.status.passed(w.advance.To)
		return nil, result{outcome: commitDeferred, work: w}
	}
	return w, result{}
}

// plan plans new events and starts the read-ahead behind them. The retry of a dead letter
// moves no checkpoint, so it is not planned.
func (c *consumerLoop) plan(intake context.Context, w *work) {
	if w.retried != nil {
		w.advance = progress.Advance{To: w.from.Position, Head: w.head, Token: w.under.Token}
		w.planDelivered()
		w.planReceipt(math.MaxInt64)
		return
	}
	c.triedDeadLetter = false
	blocked := w.plan(c.w.cfg.MaxOpenRanges)
	c.reportOpenRangeLimit(blocked, w.advance.To)
	c.polled = w.under
	if w.Positions.Through >= w.under.Safe && len(w.Events) > 0 && len(w.from.Open) == 0 {
		c.w.frontier.Follow()
	}
	_, bounded := c.rescaling.Bound()
	if w.Full && !w.isEmpty() && !bounded && len(w.from.Open) == 0 && !w.advance.MovesOpen() && !c.tally.Bisection.Active() && !c.paced() && c.suspects == 0 {
		c.reader.Begin(intake, w.advance.To, w.Events)
	}
	w.setAside(c.poison, c.w.text)
	w.recordLast()
	w.planDelivered()
	w.planReceipt(math.MaxInt64)
}

// reportOpenRangeLimit reports that the unit waits for open ranges to close, or that the
// wait is over.
func (c *consumerLoop) reportOpenRangeLimit(blocked bool, at int64) {
	if blocked {
		err := errTooManyOpen{c.unit.name, c.w.cfg.MaxOpenRanges, at}
		c.status.setError(err)
		if !c.atOpenRangeLimit {
			c.w.observers.Notify(observe.ConsumerWaiting{Consumer: c.unit.name, Condition: observe.ConditionDoubts, Err: err})
		}
		c.w.observers.Begin(c.unit.about(observe.ConditionDoubts), err)
	} else {
		c.w.observers.End(c.unit.about(observe.ConditionDoubts))
	}
	c.atOpenRangeLimit = blocked
}

// settle records the result of an iteration. fatal ends the worker.
func (c *consumerLoop) settle(ctx context.Context, r *result) (fatal error) {
	switch r.outcome {
	case passedOver:
		r.outcome = c.passOver(r.work)
	case committed:
		c.committed(r.work, r.moved)
	case idle, again, commitDeferred:
	default:
		c.forget() // the database knows whether anything was committed
	}
	if c.check.Mismatch(ctx, r.err) {
		if fatal := c.check.ResolveBeforeShutdown(ctx); fatal != nil {
			return fatal
		}
		if errors.Is(r.err, txcheck.ErrMismatch) {
			*r = result{outcome: overtaken}
		}
	}
	if r.err == nil && r.left != nil {
		return &observe.ConsumerError{Consumer: c.unit.name, Err: r.left}
	}
	switch wrongServer := errors.Is(r.err, store.ErrIncarnation); {
	case r.outcome == overtaken && r.err != nil && !wrongServer:
		r.outcome, r.work = disturbed, nil // the reason of the guard's refusal is unknown
	case r.outcome == disturbed && r.work == nil && wrongServer:
		r.outcome = overtaken // from a statement of the loop: a handler's error never means this
	case r.err == nil:
		c.worked()
	}
	return nil
}

// passOver records that there was nothing to commit.
func (c *consumerLoop) passOver(w *work) outcome {
	before := c.tally.Bisection
	c.passed(nil, w.Positions.Through)
	if c.tally.Bisection != before || w.under != c.w.frontier.Value() {
		c.polled = nil
		return again
	}
	if c.progress.Retry {
		return again // a dead letter is to be tried
	}
	return idle
}

// committed records a committed batch.
func (c *consumerLoop) committed(w *work, moved progress.Moved) {
	a := w.advance
	c.progress.Position, c.progress.Version = a.To, moved.Version
	c.progress.Receipt = a.Region
	if a.Effects != nil {
		c.progress.Effects = *a.Effects
	}
	if a.To >= c.deferred.UpTo {
		c.deferred = batch.Deferred{}
	}
	c.unit.recordHandled(w)
	if c.passed(w.retried, w.Positions.Through); !c.tally.Bisection.Active() {
		c.poison = nil
	} else if c.poison != nil {
		c.poison.revision = moved.Revision
	}
	c.overtakes.inARow = 0
	c.unit.reload.revision.Store(moved.Revision)
	c.status.advanced(a.To, len(w.Events), c.tally.Failures)
	if c.unit.voids.count(a.Marks) {
		c.w.compactNow.Send()
	}
	c.announce(c.progress.Position)
	c.w.skipped(c.unit.name, a.Marks)
	c.w.deadLettered(c.unit.name, w.deadLetters)
	if known := c.deadLetters.settle(w); !known || a.MovesOpen() || w.shortened {
		c.forget() // the progress has changed in a way that the loop does not know
	}
	if w.Full {
		c.polled = nil
	}
}

// worked records that an iteration reached the database. It ends the conditions of the
// database and the key.
func (c *consumerLoop) worked() {
	over, againOver := c.tally.Worked(), c.again.Worked()
	if (over || againOver || c.overtakes.wrongServer) && !c.atOpenRangeLimit {
		c.status.recovered()
	}
	c.overtakes.wrongServer = false
	c.w.observers.End(c.unit.about(observe.ConditionDatabase))
	c.w.observers.End(c.unit.about(observe.ConditionKey))
}

// rest waits until the next iteration is due.
func (c *consumerLoop) rest(intake context.Context, r result, n signals) {
	switch {
	case r.outcome == overtaken:
		c.overtakes.yield(intake, n.recovered, c.w.frontier, c.status, r.err)
		if r.err != nil {
			return
		}
	case r.outcome == idle:
		if c.deferred.UpTo == 0 {
			n.callers = nil // no commit is deferred
		}
		if due, _ := c.nextCheck(); n.await(intake, due, c.unit.reload.c) {
			c.forget()
		}
	case (r.outcome == committed || r.outcome == commitDeferred) && !r.work.Full:
		backoff.SleepUntil(intake, c.gather(r.outcome, c.w.frontier.Value()), nil)
	case r.outcome == committed && c.w.cfg.BatchPause > 0:
		backoff.Sleep(intake, c.w.cfg.BatchPause)
	}
	backoff.SleepUntil(intake, c.tally.Due(), nil)
}

// passed records that everything up to position is done.
func (c *consumerLoop) passed(r *progress.Retry, position int64) {
	t := c.tallyOf(r)
	if t.Passed(position); t.Clean() {
		c.w.observers.End(c.unit.aboutBatch(observe.ConditionBatch, r))
	}
}

// rescaling returns the unit with what its splits and merges need.
func (u *unit) rescaling(w *shared) partitions.Unit {
	return partitions.Unit{Name: u.name, Consumer: u.consumerName, Slots: u.slots, Key: u.key, Barriers: &w.barriers, Checkpoints: &w.checkpoints, Log: w.bound}
}

// rescale splits or merges the unit towards the layout that the leader wants, between two
// batches. It reports whether the loop is to continue at once: units were replaced, or the
// loop has waited for other parts.
func (c *consumerLoop) rescale(intake context.Context) (again bool) {
	assignments, wanted := c.w.coord.Changed(), c.w.coord.Wanted(c.unit.name)
	var a partitions.Arrival
	switch {
	case c.progress != nil:
		a = partitions.Arrival{Position: c.progress.Position, Unready: c.unready(), Deferred: c.deferred.UpTo > 0}
	case wanted > 0:
		return false // the progress is loaded first
	}
	s := c.rescaling.Next(wanted, a, time.Now())
	if s.Bound {
		c.polled = nil // the last page was read within the old bound
	}
	switch {
	case s.Task != "":
		return c.replaceUnits(intake, s)
	case s.Wait != nil:
		s.Wait.Await(intake, assignments, c.unit.reload.c)
		c.forget() // another part may have merged them
		return true
	case s.Reload:
		c.forget()
		return true
	}
	return s.Bound
}

// replaceUnits runs one split or merge, and reports whether units were replaced.
func (c *consumerLoop) replaceUnits(intake context.Context, s partitions.Step) (done bool) {
	var r *progress.Rescaled
	token := c.progress.Token
	limit := c.w.limits.after(max(c.tally.Disturbed, c.rescaling.Failures())) // a unit may have many dead letters, whose keys must be computed
	err := c.w.inTransaction(intake, c.quickLimit(), limit, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = c.rescaling.Replace(ctx, tx, token, s)
		return err
	})
	c.forget() // the database knows whether anything was committed
	if done = err == nil && r != nil; done {
		c.w.observers.Notify(observe.Rescaled{Consumer: c.unit.consumerName, From: r.From, To: r.To, Position: r.Position})
		c.w.coord.Wake()
	}
	c.rescaling.Ended(s, done, time.Now())
	if err != nil {
		err = fmt.Errorf("worker: %s of consumer %q: %w", s.Task, c.unit.name, err)
	}
	c.w.taskFailed(intake, s.Task, c.unit.name, err)
	return done
}
