package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

// run is a job that this worker has claimed.
type run struct {
	jobrun.Run
	env     *env
	queue   *servedQueue
	handler *handler
	row     queue.Job
	header  Header
	dryRun  *dryRun // nil in a worker

	logged atomic.Bool // Log was called
	inTx   atomic.Bool // CompleteTx has returned nil: a commit completes the job

	mu      sync.Mutex
	result  json.RawMessage
	own     error // from Job.Settle
	settled bool  // Job.Settle was called
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

// reported returns what the handler has reported: its result, whether it called CompleteTx, and the
// outcome of Settle.
func (r *run) reported() (result json.RawMessage, byTx bool, own error, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result, r.byTx, r.own, r.settled
}

// clearReported clears what the handler has reported, before another call. inTx stays: the handler
// may have committed.
func (r *run) clearReported() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result, r.own, r.settled, r.byTx = nil, nil, false, false
}

func (r *run) log(ctx context.Context, entry json.RawMessage) error {
	if r.dryRun != nil {
		r.dryRun.log(entry)
		return nil
	}
	r.logged.Store(true)
	return r.env.queue.Log(ctx, r.env.db, r.row.ID, r.row.Attempt, entry)
}

// errCompletes refuses a second completion of the job.
var errCompletes = errors.New("the worker completes the job itself, in the transaction that it gave the handler: return nil")

// completeIn completes the job in a transaction of the handler's own.
func (r *run) completeIn(ctx context.Context, tx *sql.Tx) error {
	if r.handler.tx {
		return errCompletes
	}
	r.mu.Lock()
	r.byTx = true
	result := r.result
	r.mu.Unlock()
	if r.dryRun != nil {
		return r.dryRun.completeIn(ctx, tx)
	}
	err := r.env.completeIn(ctx, tx, []completion{{r, result}})
	if err == nil {
		r.inTx.Store(true)
	}
	return err
}

// completion is a run that has completed, with its result.
type completion struct {
	run    *run
	result json.RawMessage
}

// errRowLocked reports that another transaction holds the lock of a job's row for too long. The job
// could not be completed.
var errRowLocked = errors.New("another transaction has locked the job's row, such as one that cancels it and is open: commit it or roll it back; or a BEFORE trigger of yours leaves the row: it must return NEW, or OLD for a DELETE")

// completeIn completes runs in a transaction. It waits for locked rows for half of the time that a
// statement may take, and then returns errRowLocked. It returns ErrClaimLost if another worker has
// one of the jobs.
func (e *env) completeIn(ctx context.Context, tx Querier, all []completion) error {
	left, late := slices.Clone(all), time.Now().Add(e.limit/2)
	for tries := 1; ; tries++ {
		if err := e.completeOnce(ctx, tx, &left); err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(late) {
			return errRowLocked
		}
		if !backoff.Sleep(ctx, jobrun.LockedPause(tries)) {
			return context.Cause(ctx)
		}
	}
}

// completeOnce completes the runs whose rows are not locked. The others stay in left.
func (e *env) completeOnce(ctx context.Context, tx Querier, left *[]completion) error {
	var bare []queue.Run
	var ends []queue.End
	for _, c := range *left {
		if c.result == nil && !c.run.logged.Load() {
			bare = append(bare, c.run.row.Run)
		} else {
			ends = append(ends, queue.End{Run: c.run.row.Run, To: queue.Completed, Result: c.result})
		}
	}
	done := make(map[int64]bool, len(*left))
	if len(bare) > 0 {
		ids, err := e.queue.Complete(ctx, tx, bare)
		if err != nil {
			return err
		}
		for _, id := range ids {
			done[id] = true
		}
	}
	if len(ends) > 0 {
		settled, err := e.queue.Settle(ctx, tx, ends)
		if err != nil {
			return err
		}
		for _, one := range settled {
			done[one.ID] = true
		}
	}
	*left = slices.DeleteFunc(*left, func(c completion) bool { return done[c.run.row.ID] })
	return e.stillRun(ctx, tx, *left)
}

// stillRun returns ErrClaimLost if one of the jobs does not belong to this worker any more.
func (e *env) stillRun(ctx context.Context, tx Querier, all []completion) error {
	if len(all) == 0 {
		return nil
	}
	runs := make([]queue.Run, len(all))
	for i, c := range all {
		runs[i] = c.run.row.Run
	}
	judged, err := e.queue.Judge(ctx, tx, runs)
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
