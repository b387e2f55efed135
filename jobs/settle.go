package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
)

// kind says what else is known of an outcome.
type kind int

const (
	plain         kind = iota
	completed          // in the handler's transaction, which is committed
	doubtful           // likewise, but nobody knows whether it is committed
	completedByTx      // the handler says so by CompleteTx
	apart              // the handler still runs, and may hold the job's row
	unstarted          // the handler was not called
	disconnected       // the handler's transaction was lost with its connection
)

// outcome is how a run has ended in this worker.
type outcome struct {
	run   *run
	err   error
	cause error // why the context of the run has ended, nil if it has not
	kind  kind
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
		if after := w.cfg.hooks.AfterHandle; after != nil && o.kind != unstarted {
			w.voice.Aside("AfterHandle", func() { after(w.handling, r.header, o.err) })
		}
		e := &ending{outcome: o, took: time.Since(r.started)}
		result, _, _, _ := r.left()
		w.hand.enter(settling, r)
		switch o.kind {
		case completed:
			w.settled(e, queue.Completed)
		case plain:
			e.end = r.handler.decide(r.row, result, o.err, o.cause)
			w.settler.add(e)
		case unstarted:
			e.end = queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released, Error: errtext.Storable(o.err), Delay: microseconds(unstartedDelay)}
			w.settler.add(e)
		default:
			w.settler.addApart(e)
		}
	}
}

// settled takes note of what has become of a job.
func (w *Worker) settled(e *ending, state queue.State) {
	r := e.run
	w.hand.drop(r)
	r.loop.count(state, e.end.Counts)
	w.tellCompanions(state, r.row.Meta)
	if w.settler.tellsDone {
		tell(w.voice, "JobDone", func(o *Observer) func(Done) { return o.JobDone },
			Done{Header: r.header, State: State(state), Failed: e.end.Counts, Err: e.err, Took: e.took, Waited: r.started.Sub(r.row.RunAt)})
	}
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
	tell(w.voice, "JobLost", func(o *Observer) func(Header) { return o.JobLost }, r.header)
}

// decideApart says what becomes of a job of which more must be asked first.
func (w *Worker) decideApart(ctx context.Context, e *ending) queue.End {
	r := e.run
	result, _, _, _ := r.left()
	end := queue.End{Run: r.row.Run, To: queue.Available, Outcome: queue.Released, Delay: microseconds(unstartedDelay)}
	switch e.kind {
	case completedByTx:
		if e.err == nil {
			e.err = errUncommitted
		}
	case doubtful:
		end.Error = "nobody answered whether the transaction was committed; it was not"
		return end
	case disconnected:
		end.Outcome, end.Code, end.Error = queue.Erred, CodeConnection, errtext.Storable(e.err)
		// If others get an answer, it may have been the handler that lost it.
		end.Resets = w.answersNow(ctx)
		return end
	}
	return r.handler.decide(r.row, result, e.err, e.cause)
}

func (w *Worker) answersNow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	return pgdriver.Answers(ctx, w.db) == nil
}

// storeApart settles one job on its own: somebody may hold its row for long, or it
// may have been completed already.
func (w *Worker) storeApart(ctx context.Context, e *ending) {
	decided := false
	for failures := 0; ; {
		bounded, cancel := context.WithTimeout(ctx, w.limit)
		err := w.on(bounded, func(conn *sql.Conn) error {
			if !decided && (e.kind == doubtful || e.kind == completedByTx) {
				if before, err := w.queue.Judge(bounded, conn, []queue.Run{e.run.row.Run}); err != nil {
					return err
				} else if len(before) > 0 {
					w.settledBefore(e, before[0].State)
					return nil
				}
			}
			if !decided {
				e.end, decided = w.decideApart(ctx, e), true
			}
			return w.settler.store(bounded, conn, []*ending{e})
		})
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		failures++
		w.settler.fails(err)
		backoff.Sleep(ctx, backoff.Session(failures))
	}
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
