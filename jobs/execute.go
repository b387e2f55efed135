package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// calls calls the handlers of a worker, and decides how each run has ended.
type calls struct {
	*reports
	settler    *settler
	handling   context.Context // of all handlers
	running    context.Context // of all other goroutines
	middleware []Middleware
	after      func(ctx context.Context, job Header, err error) // AfterHandle; nil: none
	grace      time.Duration                                    // how long a handler may run after its context has ended
	txs        chan struct{}                                    // bounds the transactions of handlers; nil: no bound
}

// execute calls a handler with the jobs of one call, and settles them. It holds a slot for each job
// until the handler has returned.
func (s *calls) execute(runs []*run) {
	defer runs[0].queue.release(len(runs))
	s.attemptAll(runs)
}

// attemptAll is attempt, but settles every job even if the goroutine ends early.
func (s *calls) attemptAll(runs []*run) {
	returned := false
	defer func() {
		if !returned {
			s.settleStranded(runs)
		}
	}()
	s.attempt(runs, 0)
	returned = true
}

// settleStranded settles the runs that attempt left unsettled. The user's code has ended the
// goroutine at a point where the worker expects none of it.
func (s *calls) settleStranded(runs []*run) {
	for _, r := range runs {
		if r.Phase() != jobrun.Running {
			continue
		}
		err := coded(CodePanic, false, errGoexit, "%v", errGoexit)
		s.afterHandle(r, err)
		s.settler.settling(r)
		s.settler.add(&ending{outcome: outcome{run: r, err: err}, end: queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Erred,
			Counts: true, Most: r.handler.maxAttempts, Code: CodePanic, Error: errtext.Storable(err), Delay: microseconds(defaultRetry(r.row.Failures+1, err))}})
	}
}

// call is one call of a handler.
type call struct {
	calls *calls
	h     *handler
	runs  []*run
	jobs  []any // arguments of the handler
	try   int   // number of retries after PostgreSQL aborted the transaction for a conflict

	ctx    context.Context
	cancel context.CancelCauseFunc
	tx     *transaction // nil: the handler takes no transaction
}

// attempt calls the handler, and settles the jobs.
func (s *calls) attempt(runs []*run, try int) {
	c := &call{calls: s, h: runs[0].handler, try: try}
	c.decode(runs)
	if len(c.runs) == 0 {
		return
	}
	if c.h.tx {
		var err error
		if c.tx, err = s.takeTx(s.handling); err != nil {
			s.settle(each(c.runs, outcome{err: err, kind: unstarted}))
			return
		}
		defer c.tx.close()
	}
	c.ctx, c.cancel = jobrun.Bounded(s.handling, c.h.timeout, ErrTimeout)
	defer c.cancel(nil)
	if len(c.runs) == 1 { // the context of a batch does not end with one of its jobs
		c.runs[0].Begin(c.cancel)
	}
	if err := c.begin(); err != nil {
		s.settle(each(c.runs, outcome{err: err, kind: unstarted}))
		return
	}
	if len(c.runs) == 0 { // all jobs are late
		return
	}
	handling := jobrun.Call{Grace: s.grace, Goexit: coded(CodePanic, false, errGoexit, "%v", errGoexit), Finish: c.finish, GiveUp: c.giveUp, Late: c.late}
	handling.Do(c.ctx, c.invoke)
}

// begin begins the transaction, if the handler takes one. The jobs may have waited for the
// transaction. So begin releases the jobs whose GoodUntil has passed.
func (c *call) begin() error {
	if c.tx == nil {
		return nil
	}
	defer time.AfterFunc(c.calls.limit, func() { c.cancel(errSilent) }).Stop()
	if err := c.tx.begin(c.ctx); err != nil {
		return err
	}
	var bounded []int64
	for _, r := range c.runs {
		if r.row.Bounded {
			bounded = append(bounded, r.row.ID)
		}
	}
	if len(bounded) == 0 || c.try > 0 {
		return nil
	}
	late, err := c.calls.queue.Late(c.ctx, c.tx.tx, bounded)
	if err != nil {
		return err
	}
	runs, jobs := c.runs, c.jobs
	c.runs, c.jobs = nil, nil
	for i, r := range runs {
		if slices.Contains(late, r.row.ID) {
			c.calls.settle([]outcome{{run: r, err: errLate, kind: unstarted}})
		} else {
			c.runs, c.jobs = append(c.runs, r), append(c.jobs, jobs[i])
		}
	}
	return nil
}

// errLate is why a job is released whose GoodUntil has passed. The job then expires.
var errLate = errors.New("its GoodUntil was over before it had a transaction")

// decode decodes the arguments. A job whose arguments do not decode fails.
func (c *call) decode(runs []*run) {
	for _, r := range runs {
		r.clearReported()
		var job any
		err := runtime.Recovered(func() (err error) {
			job, err = c.h.decode(r)
			return err
		})
		if err != nil {
			err = coded(CodeArgs, true, err, "the arguments are no %s: %v", r.row.Kind, err)
			c.calls.settle([]outcome{{run: r, err: err}})
			continue
		}
		c.runs, c.jobs = append(c.runs, r), append(c.jobs, job)
	}
}

// invoke calls the handler.
func (c *call) invoke() error {
	return runtime.Recovered(func() error {
		return c.calls.wrapped(c.ctx, c.runs, func(ctx context.Context) error {
			ctx, tx := c.tx.handler(ctx)
			return c.h.call(ctx, tx, c.jobs)
		})
	})
}

// giveUp settles the jobs of a handler that ignores the end of its context.
func (c *call) giveUp(cause error) {
	for _, r := range c.runs {
		c.calls.inFlight.GiveUp(r)
		c.calls.observers.Notify(observe.JobOverdue{Job: observe.Job(r.header)})
	}
	err := fmt.Errorf("%w: %w", ErrHandlerOverdue, cause)
	if errors.Is(cause, ErrTimeout) {
		err = c.timeout(err)
	}
	c.calls.settle(each(c.runs, outcome{err: err, cause: cause}))
	c.runs[0].queue.wake()
}

// timeout returns the failure of a handler that exceeded its Timeout.
func (c *call) timeout(err error) error {
	return coded(CodeTimeout, false, errors.Join(ErrTimeout, err), "the handler took longer than %v (Timeout): %v", c.h.timeout, errtext.Of(err))
}

// late rolls back the transaction of a handler that was given up and has returned err.
func (c *call) late(err error) {
	c.tx.rollback()
	for _, r := range c.runs {
		c.calls.inFlight.Returned(r)
		if c.calls.running.Err() == nil {
			c.calls.observers.Notify(observe.JobReturned{Job: observe.Job(r.header), Err: errtext.Of(err), Took: time.Since(r.Since())})
		}
	}
}

// finish settles the jobs after the handler has returned err.
func (c *call) finish(err error) {
	if c.tx != nil {
		c.finishTx(err)
		return
	}
	if c.splits(err) {
		c.split(nil)
		return
	}
	c.settleAll(err)
}

// settleAll settles each job with the outcome of Job.Settle, or else with err. If the handler takes
// a transaction, the transaction was not committed, so none of its jobs has completed.
func (c *call) settleAll(err error) {
	cause := jobrun.CauseOf(c.ctx)
	if err != nil && errors.Is(cause, ErrTimeout) && !isVerdict(err) {
		err = c.timeout(err)
	}
	all := each(c.runs, outcome{err: err, cause: cause})
	for i, r := range c.runs {
		_, byTx, own, settled := r.reported()
		if settled && (own != nil || c.tx == nil) {
			all[i].err = own
		}
		if byTx {
			all[i].kind = completedByTx
		}
	}
	c.calls.settle(all)
}

// splits reports whether the batch is to be split to find the job that causes err. A verdict is the
// outcome of all jobs. After a time-out a split would take too long: see handler.batchAfter.
func (c *call) splits(err error) bool {
	return err != nil && len(c.runs) > 1 && jobrun.CauseOf(c.ctx) == nil && !isVerdict(err)
}

// split settles the jobs that have an outcome of their own, and runs the others again in two
// halves. keep reports which outcomes stand; if keep is nil, all stand.
func (c *call) split(keep func(own error) bool) {
	var rest []*run
	for _, r := range c.runs {
		_, _, own, settled := r.reported()
		if settled && (keep == nil || keep(own)) {
			c.calls.settle([]outcome{{run: r, err: own}})
		} else {
			rest = append(rest, r)
		}
	}
	for half := len(rest) / 2; len(rest) > 0; half = len(rest) {
		if half > 0 {
			part := rest[:half]
			runtime.Aside(func() { c.calls.attemptAll(part) })
		}
		rest = rest[half:]
	}
}

// conflicts bounds how often a transaction is retried that PostgreSQL aborted for a deadlock or
// serialization failure.
const conflicts = 3

// finishTx ends the transaction of the handler. If the handler has returned nil, finishTx completes
// the jobs and commits. Otherwise it rolls back.
func (c *call) finishTx(err error) {
	silence := time.AfterFunc(c.calls.limit, func() { c.cancel(errSilent) })
	defer silence.Stop()
	if _, _, own, settled := c.runs[0].reported(); settled && err == nil && !c.h.many {
		err = own
	}
	var done []completion
	for _, r := range c.runs {
		if result, _, own, settled := r.reported(); !settled || own == nil {
			done = append(done, completion{r, result})
		}
	}
	end, err := c.tx.end(c.ctx, err, func(ctx context.Context) error {
		return c.calls.completeIn(ctx, c.calls.planned(c.tx.conn, c.tx.tx), done)
	})
	switch {
	case end == txCommitted, end == txDoubtful:
		kind := completed
		if end == txDoubtful {
			kind = doubtful
		}
		all := each(c.runs, outcome{kind: kind})
		for i, r := range c.runs {
			if _, _, own, settled := r.reported(); settled && own != nil {
				all[i] = outcome{run: r, err: own}
			}
		}
		c.calls.settle(all)
	case pgdriver.IsConflict(err) && c.try < conflicts && jobrun.CauseOf(c.ctx) == nil:
		c.tx.close()
		c.calls.attempt(c.runs, c.try+1)
	case end == txLost && jobrun.CauseOf(c.ctx) == nil, errors.Is(jobrun.CauseOf(c.ctx), errSilent):
		c.calls.settle(each(c.runs, outcome{err: err, kind: disconnected, answered: c.calls.answersNow()}))
	case errors.Is(err, ErrTxEnded): // what the batch has written may have been committed
		c.settleAll(err)
	case errors.Is(err, errRowLocked): // the handler has returned nil: its outcome is no failure
		c.calls.settle(each(c.runs, outcome{err: err, kind: unstarted}))
	case c.splits(err):
		c.tx.close()
		c.split(func(own error) bool { return own != nil })
	case errors.Is(err, ErrClaimLost): // the handler's transaction does not find the job, and may have removed it
		c.settleAll(fmt.Errorf("%w: %w", errGone, err))
	default:
		c.settleAll(err)
	}
}

func isVerdict(err error) bool {
	var v *verdict
	return errors.As(err, &v)
}

// wrapped calls f through the middleware. If the middleware returns nil, the error of f stands.
func (s *calls) wrapped(ctx context.Context, runs []*run, f func(context.Context) error) error {
	if len(s.middleware) == 0 {
		return f(ctx)
	}
	headers := make([]Header, len(runs))
	for i, r := range runs {
		headers[i] = r.header
	}
	var once runtime.Next
	var failed error
	next := func(ctx context.Context) error {
		return once.Call(ctx, func() error {
			failed = f(ctx)
			return failed
		})
	}
	for i := len(s.middleware) - 1; i >= 0; i-- {
		m, inner := s.middleware[i], next
		next = func(ctx context.Context) error { return m(ctx, headers, inner) }
	}
	err := next(ctx)
	missing := once.End()
	return cmp.Or(err, missing, failed)
}
