package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/observe"
)

// calls calls handlers, and settles their jobs.
type calls struct {
	*env
	handler  handler
	settler  *settler
	handling context.Context // of all handlers; a stop ends it after ShutdownTimeout
	alive    context.Context // of all other goroutines; ends before Start returns
}

// start runs the handler in a goroutine of its own. It waits until PreHandle has returned or was
// given up.
func (c *calls) start(r *run) {
	r.Call(time.Now())
	prepared := make(chan struct{})
	go c.execute(r, sync.OnceFunc(func() { close(prepared) }))
	if c.handler.preHandle != nil {
		c.await(context.Background(), fmt.Sprintf("PreHandle of job %d", r.Claim.ID), prepared)
	}
}

// execute runs the handler of a job, and settles the job. It holds the slot until the outcome is
// stored and PostHandle has returned. It calls prepared when PreHandle has returned or was given
// up.
func (c *calls) execute(r *run, prepared func()) {
	defer c.give()
	ctx, cancel := jobrun.Bounded(c.handling, c.opts.MaximumRuntimePerJob, ErrTimeout)
	defer cancel(nil)
	r.Begin(cancel)
	call := &jobrun.Call{Grace: c.grace, Goexit: errGoexit}
	call.Finish = func(err error) { c.finish(r, err, jobrun.CauseOf(ctx)) }
	call.GiveUp = func(cause error) {
		prepared()
		c.giveUp(r)
		c.settle(r, fmt.Errorf("%w: %w", ErrHandlerOverdue, cause), cause, func() {})
		jobrun.Wake(c.wake)
	}
	call.Late = func(err error) {
		c.returned(r, err)
		c.after(r)
	}
	call.Do(ctx, func() error {
		if before := c.handler.preHandle; before != nil {
			c.observers.Call("PreHandle", func() { before(ctx, r.job) })
			prepared()
		}
		if call.Over() { // PreHandle was given up
			return nil
		}
		return recovered("the handler", func() error { return c.handler.handle(ctx, r.job) })
	})
}

// giveUp records a run whose handler does not return.
func (c *calls) giveUp(r *run) {
	c.inFlight.GiveUp(r)
	c.observers.Notify(observe.JobOverdue{Job: r.header.job()})
}

// returned records that a handler that was given up has returned. It notifies observers while the
// worker runs.
func (c *calls) returned(r *run, err error) {
	c.inFlight.Returned(r)
	if c.alive.Err() != nil {
		return
	}
	returned := observe.JobReturned{Job: r.header.job(), Err: errtext.Of(err)}
	if since := r.Since(); !since.IsZero() {
		returned.Took = time.Since(since)
	}
	c.observers.Notify(returned)
}

// finish settles a job after its handler has returned err, and waits until the outcome is stored.
func (c *calls) finish(r *run, err, cause error) {
	stored := make(chan struct{})
	c.settle(r, err, cause, func() { close(stored) })
	select {
	case <-stored:
	case <-c.alive.Done():
		return
	}
	c.after(r)
}

// after calls the hook PostHandle, once for each call of PreHandle.
func (c *calls) after(r *run) {
	if hook := c.handler.postHandle; hook != nil {
		c.observers.Call("PostHandle", func() { hook(c.handling, r.job) })
	}
}

// settle gives a run to the settler. stored is called when the settler is done with the run.
func (c *calls) settle(r *run, err, cause error, stored func()) {
	c.settler.Expect()
	cause, byTx := cmp.Or(cause, r.Settle()), r.byTx.Load()
	if err != nil && errors.Is(cause, ErrTimeout) {
		err = &timedOut{c.opts.MaximumRuntimePerJob, err}
	}
	to, message, delay, requeued := decide(err, cause, byTx)
	if byTx && err == nil && to == StateErrored {
		err = errUncommitted
	}
	c.settler.add(&ending{run: r, err: err, took: time.Since(r.Since()), stored: stored,
		end: end{claim: r.Claim, To: to, Message: message, Delay: delay, Requeued: requeued}})
}

// settleUnstarted settles a run whose handler was not called. A Scan that was given up keeps its
// slot.
func (c *calls) settleUnstarted(r *run, e end, why error) {
	c.settler.Expect()
	r.Settle()
	e.claim = r.Claim
	stored := c.give
	if r.GaveUp() {
		stored = func() {}
	}
	c.settler.add(&ending{run: r, err: why, stored: stored, end: e})
}

// timedOut is the failure of a handler that exceeded its time.
type timedOut struct {
	limit time.Duration
	err   error
}

func (e *timedOut) Error() string {
	return errtext.Line(fmt.Sprintf("the handler took longer than %v (MaximumRuntimePerJob): %v", e.limit, errtext.Of(e.err)))
}

// Unwrap returns ErrTimeout and the error that the handler has returned.
func (e *timedOut) Unwrap() []error { return []error{ErrTimeout, e.err} }

// await waits for a hook that blocks claims, and reports a hook that takes long. It reports false
// if the hook runs on for long after the end of its context.
func (c *calls) await(ctx context.Context, hook string, returned <-chan struct{}) bool {
	late := time.NewTimer(c.grace)
	defer late.Stop()
	for over, end := false, ctx.Done(); ; {
		select {
		case <-returned:
			return true
		case <-end:
			over, end = true, nil
			late.Reset(c.grace)
		case <-late.C:
			if over {
				return false
			}
			c.outcome(observe.ConditionClaim, fmt.Errorf("jobs/table: no jobs are claimed: %s has not returned for %v", hook, c.grace))
		}
	}
}
