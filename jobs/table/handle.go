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

// start runs the handler in a goroutine of its own. It waits until PreHandle has returned or was
// given up.
func (w *Worker) start(r *run) {
	r.Call(time.Now())
	prepared := make(chan struct{})
	go w.execute(r, sync.OnceFunc(func() { close(prepared) }))
	if w.handler.preHandle != nil {
		w.await(context.Background(), fmt.Sprintf("PreHandle of job %d", r.Claim.ID), prepared)
	}
}

// execute runs the handler of a job, and settles the job. It holds the slot until the outcome is
// stored and PostHandle has returned. It calls prepared when PreHandle has returned or was given
// up.
func (w *Worker) execute(r *run, prepared func()) {
	defer w.give()
	ctx, cancel := jobrun.Bounded(w.handling, w.opts.MaximumRuntimePerJob, ErrTimeout)
	defer cancel(nil)
	r.Begin(cancel)
	c := &jobrun.Call{Grace: w.grace, Goexit: errGoexit}
	c.Finish = func(err error) { w.finish(r, err, jobrun.CauseOf(ctx)) }
	c.GiveUp = func(cause error) {
		prepared()
		w.giveUp(r)
		w.settle(r, fmt.Errorf("%w: %w", ErrHandlerOverdue, cause), cause, func() {})
		jobrun.Wake(w.wake)
	}
	c.Late = func(err error) {
		w.returned(r, err)
		w.after(r)
	}
	c.Do(ctx, func() error {
		if before := w.handler.preHandle; before != nil {
			w.observers.Call("PreHandle", func() { before(ctx, r.job) })
			prepared()
		}
		if c.Over() { // PreHandle was given up
			return nil
		}
		return recovered("the handler", func() error { return w.handler.handle(ctx, r.job) })
	})
}

// giveUp records a run whose handler does not return.
func (w *Worker) giveUp(r *run) {
	w.inFlight.GiveUp(r)
	w.observers.Notify(observe.JobOverdue{Job: r.header.job()})
}

// returned records that a handler that was given up has returned. It notifies observers while the
// worker runs.
func (w *Worker) returned(r *run, err error) {
	w.inFlight.Returned(r)
	if w.alive.Err() != nil {
		return
	}
	returned := observe.JobReturned{Job: r.header.job(), Err: errtext.Of(err)}
	if since := r.Since(); !since.IsZero() {
		returned.Took = time.Since(since)
	}
	w.observers.Notify(returned)
}

// finish settles a job after its handler has returned err, and waits until the outcome is stored.
func (w *Worker) finish(r *run, err, cause error) {
	stored := make(chan struct{})
	w.settle(r, err, cause, func() { close(stored) })
	select {
	case <-stored:
	case <-w.alive.Done():
		return
	}
	w.after(r)
}

// after calls the hook PostHandle, once for each call of PreHandle.
func (w *Worker) after(r *run) {
	if hook := w.handler.postHandle; hook != nil {
		w.observers.Call("PostHandle", func() { hook(w.handling, r.job) })
	}
}

// settle gives a run to the settler. stored is called when the settler is done with the run.
func (w *Worker) settle(r *run, err, cause error, stored func()) {
	w.settler.Expect()
	cause, byTx := cmp.Or(cause, r.Settle()), r.byTx.Load()
	if err != nil && errors.Is(cause, ErrTimeout) {
		err = &timedOut{w.opts.MaximumRuntimePerJob, err}
	}
	to, message, delay, requeued := decide(err, cause, byTx)
	if byTx && err == nil && to == StateErrored {
		err = errUncommitted
	}
	w.settler.add(&ending{run: r, err: err, took: time.Since(r.Since()), stored: stored,
		end: end{claim: r.Claim, To: to, Message: message, Delay: delay, Requeued: requeued}})
}

// settleUnstarted settles a run whose handler was not called. A Scan that was given up keeps its
// slot.
func (w *Worker) settleUnstarted(r *run, e end, why error) {
	w.settler.Expect()
	r.Settle()
	e.claim = r.Claim
	stored := w.give
	if r.GaveUp() {
		stored = func() {}
	}
	w.settler.add(&ending{run: r, err: why, stored: stored, end: e})
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

// running reports whether handlers run that were not given up.
func (w *Worker) running() bool {
	for _, r := range w.inFlight.All() {
		if r.Phase() != jobrun.Settling {
			return true
		}
	}
	return false
}
