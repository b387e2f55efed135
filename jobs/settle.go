package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// kind says what else is known of an outcome.
type kind int

const (
	plain         kind = iota
	completed          // in the handler's transaction, which is committed
	doubtful           // likewise, but nobody knows whether it is committed
	completedByTx      // the handler says so by CompleteTx
	unstarted          // the handler was not called, or could not complete
	disconnected       // the handler's transaction was lost with its connection
)

// outcome is how a run has ended in this worker.
type outcome struct {
	run   *run
	err   error
	cause error // why the context of the run has ended, nil if it has not
	kind  kind

	answered bool // of disconnected: the database answered others, so the handler may have lost the connection
}

// each is the same outcome for each run.
func each(runs []*run, o outcome) []outcome {
	all := make([]outcome, len(runs))
	for i, r := range runs {
		all[i] = o
		all[i].run = r
	}
	return all
}

// ending is an outcome that the database does not know yet.
type ending struct {
	outcome
	end  queue.End
	took time.Duration
	told bool // it is stored, and everybody knows

	bytes   int       // its size, once the settler has it
	why     error     // it was set aside by the last statement; nil: it was not
	locked  int       // how often its row was, when it was to be stored
	refused int       // how often the database has refused to store it
	until   time.Time // then it is tried again
}

// size is about how many bytes a statement has to move to store the ending: those of the
// row, too, which goes from one table to another.
func (e *ending) size() int {
	const row = 200
	return row + len(e.run.row.Args) + len(e.run.row.Meta) + len(e.end.Result) + len(e.end.Error)
}

// unstartedDelay is the delay of a job whose handler could not be called, and
// of one that was lost with its connection.
const unstartedDelay = time.Second

// settle hands outcomes to the settler.
func (w *Worker) settle(all []outcome) {
	for _, o := range all {
		r := o.run
		if o.cause == nil {
			o.cause = r.whyEnded()
		}
		w.afterHandle(r, o.err)
		e := &ending{outcome: o, took: time.Since(r.started)}
		w.hand.enter(settling, r)
		if o.kind == completed {
			w.settled(e, queue.Completed)
			continue
		}
		e.decide()
		w.settler.add(e)
	}
}

// afterHandle calls the hook, once for each call of BeforeHandle: whatever ends a run that
// start has begun.
func (w *Worker) afterHandle(r *run, err error) {
	if after := w.cfg.hooks.AfterHandle; after != nil {
		w.observers.Call("AfterHandle", func() { after(w.handling, r.header, err) })
	}
}

// decide says what becomes of the job, if the run's claim is still what the table has:
// if the handler has completed it in a transaction of its own, that stands.
func (e *ending) decide() {
	switch e.kind {
	case unstarted:
		e.end = released(e.run, errtext.Storable(e.err))
	case doubtful:
		e.end = released(e.run, "nobody answered whether the transaction was committed; it was not")
	case disconnected:
		e.end = released(e.run, errtext.Storable(e.err))
		e.end.Outcome, e.end.Code, e.end.Resets = queue.Erred, CodeConnection, e.answered
	case completedByTx:
		e.err = cmp.Or(e.err, errUncommitted)
		fallthrough
	default:
		result, _, _, _ := e.run.left()
		e.end = e.run.handler.decide(e.run.row, result, e.err, e.cause)
	}
}

// released is the end of a run that runs again soon, and is no failure.
func released(r *run, why string) queue.End {
	return queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released, Error: why, Delay: microseconds(unstartedDelay)}
}

// settled takes note of what has become of a job.
func (w *Worker) settled(e *ending, state queue.State) {
	r := e.run
	w.hand.drop(r)
	r.loop.count(state, e.end.Counts)
	w.tellCompanions(state, r.row.Meta)
	w.observers.Notify(observe.JobDone{Job: observe.Job(r.header), State: string(state), Failed: e.end.Counts, Err: e.err, Took: e.took, Waited: r.started.Sub(r.row.RunAt)})
}

// settledBefore takes note of what an earlier statement has made of a job. If that was
// the COMMIT of the handler's transaction, what was decided since is not so.
func (w *Worker) settledBefore(e *ending, state queue.State) {
	if state == queue.Completed {
		e.err, e.end.Counts = nil, false
	}
	w.settled(e, state)
}

// lost takes note that a run's job is another's.
func (w *Worker) lost(r *run) {
	w.hand.drop(r)
	r.loop.countLost()
	w.observers.Notify(observe.JobLost{Job: observe.Job(r.header)})
}

// answersNow reports whether the database answers others.
func (w *Worker) answersNow() bool {
	ctx, cancel := context.WithTimeout(w.running, leaveTimeout)
	defer cancel()
	return pgdriver.Answers(ctx, w.db.DB) == nil
}

// ErrUnsettled: a stop has not waited for the database to answer, and it does not
// know what became of some jobs. They are taken for lost, and run again.
var ErrUnsettled = errors.New("jobs: what became of some jobs could not be stored, they run again")

func unsettled(n int, last error) error {
	if last == nil {
		return fmt.Errorf("%w: %d jobs", ErrUnsettled, n)
	}
	return fmt.Errorf("%w: %d jobs: %w", ErrUnsettled, n, errtext.Of(last))
}
