package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

// kind qualifies an outcome.
type kind int

const (
	plain         kind = iota
	completed          // in the transaction of the handler, which is committed
	doubtful           // in the transaction of the handler, whose commit got no answer
	completedByTx      // the handler has called CompleteTx
	unstarted          // the handler was not called, or its job could not be completed
	disconnected       // the connection of the handler's transaction was lost
)

// outcome is the outcome of a run in this worker.
type outcome struct {
	run   *run
	err   error
	cause error // why the context of the run has ended, nil if it has not
	kind  kind

	answered bool // of disconnected: the database answered others, so the handler may have lost the connection
}

// each returns one outcome for each run.
func each(runs []*run, o outcome) []outcome {
	all := make([]outcome, len(runs))
	for i, r := range runs {
		all[i] = o
		all[i].run = r
	}
	return all
}

// ending is an outcome that is not stored yet.
type ending struct {
	jobrun.Ending
	outcome
	end  queue.End
	took time.Duration

	mayBeDone bool // a statement or a commit of the worker has completed the job, or got no answer
}

// size returns about how many bytes a statement moves to store the ending. The row counts too,
// since it moves from one table to another.
func (e *ending) size() int {
	const row = 200
	return row + len(e.run.row.Args) + len(e.run.row.Meta) + len(e.end.Result) + len(e.end.Error)
}

// unstartedDelay is the delay of a job whose handler could not be called, and of a job whose
// connection was lost.
const unstartedDelay = time.Second

// settle gives outcomes to the settler.
func (s *calls) settle(all []outcome) {
	for _, o := range all {
		r := o.run
		o.cause = cmp.Or(o.cause, r.Ended()) // what ends the run during the hook is not the cause
		s.afterHandle(r, o.err)
		e := &ending{outcome: o, took: time.Since(r.Since()), mayBeDone: o.kind == doubtful}
		if o.kind == completed {
			r.Settle()
			s.settled(e, queue.Completed)
			continue
		}
		s.settler.settling(r)
		e.decide()
		s.settler.add(e)
	}
}

// afterHandle calls the hook AfterHandle. Every path that ends a run calls it once, for each call
// of BeforeHandle.
func (s *calls) afterHandle(r *run, err error) {
	if s.after != nil {
		s.observers.Call("AfterHandle", func() { s.after(s.handling, r.header, err) })
	}
}

// decide sets how to settle the job. It applies only while the claim is still in the table. If the
// handler has completed the job in a transaction of its own, that completion stands.
func (e *ending) decide() {
	switch e.kind {
	case unstarted:
		e.end = released(e.run, errtext.Storable(e.err))
	case doubtful:
		e.end = released(e.run, "the commit got no answer; the transaction was not committed")
	case disconnected:
		e.end = released(e.run, errtext.Storable(e.err))
		e.end.Outcome, e.end.Code, e.end.Resets = queue.Erred, CodeConnection, e.answered
	case completedByTx:
		e.err = cmp.Or(e.err, errUncommitted)
		fallthrough
	default:
		result, _, _, _ := e.run.reported()
		e.end = e.run.handler.decide(e.run.row, result, e.err, e.cause)
	}
}

// released returns the end of a run that runs again soon and counts no failure.
func released(r *run, why string) queue.End {
	return queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released, Error: why, Delay: microseconds(unstartedDelay)}
}

// reports ends runs in this worker: nothing is left to store.
type reports struct {
	*env
	inFlight   jobrun.InFlight[*run]
	extensions []jobflow.Extension
}

// settled records that the outcome of a job is stored.
func (p *reports) settled(e *ending, state queue.State) {
	r := e.run
	p.inFlight.Drop(r)
	r.queue.count(state, e.end.Counts)
	p.notifyExtensions(state, r.row.Meta)
	p.observers.Notify(observe.JobDone{Job: observe.Job(r.header), State: string(state), Failed: e.end.Counts, Err: e.err, Took: e.took, Waited: r.Since().Sub(r.row.RunAt)})
}

// settledBefore records an outcome that an earlier statement has stored. If the COMMIT of the
// handler's transaction has completed the job, the later decision is void.
func (p *reports) settledBefore(e *ending, state queue.State) {
	if state == queue.Completed {
		e.err, e.end.Counts = nil, false
	}
	p.settled(e, state)
}

// lost records that another worker has the job of a run.
func (p *reports) lost(r *run) {
	p.inFlight.Drop(r)
	r.queue.change(func(s *QueueStatus) { s.Lost++ })
	p.observers.Notify(observe.JobLost{Job: observe.Job(r.header)})
}

// notifyExtensions notifies the extensions that a job has finished.
func (p *reports) notifyExtensions(state queue.State, meta json.RawMessage) {
	if len(meta) == 0 || !State(state).Finished() {
		return
	}
	for _, c := range p.extensions {
		c.Ended(meta)
	}
}

// answersNow reports whether the database answers on another connection.
func (s *calls) answersNow() bool {
	ctx, cancel := context.WithTimeout(s.running, leaveTimeout)
	defer cancel()
	return pgdriver.Answers(ctx, s.db.DB) == nil
}

// ErrUnsettled reports that the database did not answer when the worker stopped. The outcomes of
// some jobs could not be stored. These jobs count as lost, and run again.
var ErrUnsettled = errors.New("jobs: what became of some jobs could not be stored, they run again")

func unsettled(n int, last error) error {
	if last == nil {
		return fmt.Errorf("%w: %d jobs", ErrUnsettled, n)
	}
	return fmt.Errorf("%w: %d jobs: %w", ErrUnsettled, n, errtext.Of(last))
}
