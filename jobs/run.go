package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/queue"
)

// run is a job that this worker has claimed.
type run struct {
	w       *Worker
	loop    *loop
	handler *handler
	row     queue.Job
	header  Header
	phase   phase  // guarded by hand
	trial   *trial // nil in a worker

	cancel  context.CancelCauseFunc // of its context; nil before it runs, and in a batch; guarded by hand
	ended   error                   // why its context was to end; guarded by hand
	started time.Time               // when it got its slot; guarded by hand until it is settled
	back    bool                    // its handler was given up, and has returned; guarded by hand

	mu      sync.Mutex
	result  json.RawMessage
	own     error // from Settle
	settled bool  // by Settle
	byTx    bool  // CompleteTx was called
}

func (r *run) setResult(text json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result = text
}

func (r *run) setOwn(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own, r.settled = err, true
}

// left is what the handler has left: its result, whether it called CompleteTx, and
// the outcome of Settle.
func (r *run) left() (result json.RawMessage, byTx bool, own error, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result, r.byTx, r.own, r.settled
}

// forget forgets what a handler has left, before another call.
func (r *run) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result, r.own, r.settled, r.byTx = nil, nil, false, false
}

func (r *run) log(ctx context.Context, entry json.RawMessage) error {
	if r.trial != nil {
		r.trial.log(entry)
		return nil
	}
	return r.w.queue.Log(ctx, r.w.db, r.row.ID, r.row.Attempt, entry)
}

// errCompletes refuses a second completion.
var errCompletes = errors.New("the worker completes the job itself, in the transaction that it gave the handler: return nil")

// completeIn completes the job in a transaction of the handler's.
func (r *run) completeIn(ctx context.Context, tx *sql.Tx) error {
	if r.handler.tx {
		return errCompletes
	}
	r.mu.Lock()
	r.byTx = true
	result := r.result
	r.mu.Unlock()
	if r.trial != nil {
		return r.trial.completeIn(ctx, tx)
	}
	return r.w.completeIn(ctx, tx, []completion{{r, result}})
}

// end ends the context of the run, or makes it end as soon as it has one.
func (r *run) end(why error) {
	r.w.hand.mu.Lock()
	defer r.w.hand.mu.Unlock()
	if r.ended == nil {
		r.ended = why
	}
	if r.cancel != nil {
		r.cancel(why)
	}
}

// begin gives the run the context of a call. That of a batch does not end with one
// of its jobs.
func (r *run) begin(cancel context.CancelCauseFunc, alone bool) {
	r.w.hand.mu.Lock()
	defer r.w.hand.mu.Unlock()
	if !alone {
		return
	}
	if r.cancel = cancel; r.ended != nil {
		cancel(r.ended)
	}
}

// whyEnded is why the context of the run was to end, nil if it was not.
func (r *run) whyEnded() error {
	r.w.hand.mu.Lock()
	defer r.w.hand.mu.Unlock()
	return r.ended
}

// completion is a run that has completed, with its result.
type completion struct {
	run    *run
	result json.RawMessage
}

// errRowLocked: another transaction has locked the row of a job for so long that it could
// not be completed.
var errRowLocked = errors.New("another transaction has locked the job's row, such as one that cancels it and is open: commit it or roll it back")

// completeIn completes runs in a transaction. It waits for those whose row is locked, half
// as long as a statement may take; then it returns errRowLocked. It returns ErrClaimLost if
// one of them is not this worker's any more.
func (w *Worker) completeIn(ctx context.Context, tx Querier, all []completion) error {
	left, late := slices.Clone(all), time.Now().Add(w.limit/2)
	for tries := 1; ; tries++ {
		if err := w.completeOnce(ctx, tx, &left); err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(late) {
			return errRowLocked
		}
		if !backoff.Sleep(ctx, lockedPause(tries)) {
			return context.Cause(ctx)
		}
	}
}

// completeOnce completes what nobody has locked, and leaves the rest.
func (w *Worker) completeOnce(ctx context.Context, tx Querier, left *[]completion) error {
	var bare []queue.Run
	var ends []queue.End
	for _, c := range *left {
		if c.result == nil {
			bare = append(bare, c.run.row.Run)
		} else {
			ends = append(ends, queue.End{Run: c.run.row.Run, To: queue.Completed, Result: c.result})
		}
	}
	done := make(map[int64]bool, len(*left))
	if len(bare) > 0 {
		ids, err := w.queue.Complete(ctx, tx, bare)
		if err != nil {
			return err
		}
		for _, id := range ids {
			done[id] = true
		}
	}
	if len(ends) > 0 {
		settled, err := w.queue.Settle(ctx, tx, ends)
		if err != nil {
			return err
		}
		for _, one := range settled {
			done[one.ID] = true
		}
	}
	*left = slices.DeleteFunc(*left, func(c completion) bool { return done[c.run.row.ID] })
	return w.stillRun(ctx, tx, *left)
}

// stillRun returns ErrClaimLost if a job is not this worker's any more.
func (w *Worker) stillRun(ctx context.Context, tx Querier, all []completion) error {
	if len(all) == 0 {
		return nil
	}
	runs := make([]queue.Run, len(all))
	for i, c := range all {
		runs[i] = c.run.row.Run
	}
	judged, err := w.queue.Judge(ctx, tx, runs)
	if err != nil {
		return err
	}
	running := 0
	for _, one := range judged {
		if one.State == queue.Running {
			running++
		}
	}
	if running < len(all) {
		return ErrClaimLost
	}
	return nil
}
