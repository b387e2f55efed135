package table

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// start runs the handler in a goroutine of its own. It waits until PreHandle has returned or was
// given up.
func (w *Worker) start(r *run) {
	r.call(time.Now())
	prepared := make(chan struct{})
	go w.execute(r, sync.OnceFunc(func() { close(prepared) }))
	if w.handler.preHandle != nil {
		w.await(context.Background(), fmt.Sprintf("PreHandle of job %d", r.claim.ID), prepared)
	}
}

// execute runs the handler of a job, and settles the job. It holds the slot until the outcome is
// stored and PostHandle has returned. It calls prepared when PreHandle has returned or was given
// up.
func (w *Worker) execute(r *run, prepared func()) {
	defer w.give()
	ctx, cancel := context.WithCancelCause(w.handling)
	defer cancel(nil)
	if w.opts.MaximumRuntimePerJob > 0 {
		bounded, stop := context.WithTimeoutCause(ctx, w.opts.MaximumRuntimePerJob, ErrTimeout)
		defer stop()
		ctx = bounded
	}
	r.begin(cancel)
	returned := make(chan struct{})
	defer context.AfterFunc(ctx, func() { w.watch(ctx, r, returned, prepared) })()
	err := errGoexit
	defer func() { // runs also if runtime.Goexit ends the goroutine
		close(returned)
		if !r.over.CompareAndSwap(false, true) {
			w.inFlight.returned(r)
			w.reportReturned(r, err)
			w.after(r)
			return
		}
		w.finish(r, err, causeOf(ctx))
	}()
	if before := w.handler.preHandle; before != nil {
		w.observers.Call("PreHandle", func() { before(ctx, r.job) })
		prepared()
	}
	if r.over.Load() { // PreHandle was given up
		err = nil
		return
	}
	err = recovered("the handler", func() error { return w.handler.handle(ctx, r.job) })
}

// watch waits for a handler whose context has ended. If the handler has not returned after the
// grace period, watch gives it up and settles its job.
func (w *Worker) watch(ctx context.Context, r *run, returned <-chan struct{}, prepared func()) {
	timer := time.NewTimer(w.grace)
	defer timer.Stop()
	select {
	case <-returned:
		return
	case <-timer.C:
	}
	if !r.over.CompareAndSwap(false, true) {
		return
	}
	prepared()
	w.giveUp(r)
	cause := context.Cause(ctx)
	w.settle(r, fmt.Errorf("%w: %w", ErrHandlerOverdue, cause), cause, func() {})
	signal(w.wake)
}

// giveUp records a run whose handler does not return.
func (w *Worker) giveUp(r *run) {
	w.inFlight.gaveUp(r)
	w.observers.Notify(observe.JobOverdue{Job: r.header.job()})
}

// reportReturned notifies observers that a handler that was given up has returned, while the worker
// runs.
func (w *Worker) reportReturned(r *run, err error) {
	if w.alive.Err() != nil {
		return
	}
	returned := observe.JobReturned{Job: r.header.job(), Err: errtext.Of(err)}
	if since, _ := r.called(); !since.IsZero() {
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
	w.settler.expect()
	ended, byTx := r.settle()
	if cause == nil {
		cause = ended
	}
	if err != nil && errors.Is(cause, ErrTimeout) {
		err = &timedOut{w.opts.MaximumRuntimePerJob, err}
	}
	to, message, delay, requeued := decide(err, cause, byTx)
	if byTx && err == nil && to == StateErrored {
		err = errUncommitted
	}
	w.settler.add(&ending{run: r, err: err, took: time.Since(r.begun), stored: stored,
		end: end{claim: r.claim, To: to, Message: message, Delay: delay, Requeued: requeued}})
}

// settleUnstarted settles a run whose handler was not called. A Scan that was given up keeps its
// slot.
func (w *Worker) settleUnstarted(r *run, e end, why error) {
	w.settler.expect()
	r.settle()
	e.claim = r.claim
	stored := w.give
	if r.over.Load() {
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

// causeOf returns why the context of a run has ended, nil if it has not.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// running reports whether handlers run that were not given up.
func (w *Worker) running() bool {
	for _, r := range w.inFlight.all() {
		if runs, _ := r.runs(); runs {
			return true
		}
	}
	return false
}
