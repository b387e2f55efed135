package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// lockedJob is an unfinished job whose row the transaction has locked.
type lockedJob struct {
	State   jobs.State `json:"state"` // before the operation
	Kind    string     `json:"kind"`
	Attempt int        `json:"attempt"` // 0: it has not run yet
	queue   string
	due     bool
	runAt   string
	asked   sql.NullTime // when its run was asked to end
}

// lockJob waits for the row of an unfinished job. found is false if the job has finished or
// does not exist.
func (o *Jobs) lockJob(ctx context.Context, tx *sql.Tx, id int64) (j lockedJob, found bool, err error) {
	err = tx.QueryRowContext(ctx, `
SELECT state, kind, queue, attempt, run_at <= clock_timestamp(), to_json(run_at)#>>'{}', `+pgdriver.Time(`cancel_at`)+` FROM `+o.t.Jobs.SQL()+` WHERE id = $1::bigint FOR UPDATE`, id).
		Scan(&j.State, &j.Kind, &j.queue, &j.Attempt, &j.due, &j.runAt, &j.asked)
	switch {
	case noRows(err):
		return j, false, nil
	case err != nil:
		return j, false, lockError(ctx, "its row in "+o.t.Jobs.String(), "a transaction that ends the job keeps until its COMMIT", err)
	}
	return j, true, nil
}

// finishedJob is a finished job as recorded in the table of operations.
type finishedJob struct {
	State      jobs.State `json:"state"`
	Kind       string     `json:"kind"`
	Attempt    int        `json:"attempt"`
	FinishedAt time.Time  `json:"finished_at"`
	Code       string     `json:"code,omitempty"`
	Error      string     `json:"error,omitempty"`
	queue      string
}

// finished reads a job of the history. Call finished after lockJob. A job is in one of the two
// tables, and never becomes unfinished again under the same ID.
func (o *Jobs) finished(ctx context.Context, tx *sql.Tx, id int64) (j finishedJob, err error) {
	err = tx.QueryRowContext(ctx, `
SELECT state, kind, queue, attempt, `+pgdriver.Time(`finished_at`)+`, coalesce(code, ''), coalesce(error, '') FROM `+o.t.History.SQL()+` WHERE id = $1::bigint`, id).
		Scan(&j.State, &j.Kind, &j.queue, &j.Attempt, &j.FinishedAt, &j.Code, &j.Error)
	j.FinishedAt = j.FinishedAt.UTC()
	switch {
	case noRows(err):
		return j, errNoJob
	case err != nil:
		return j, fmt.Errorf("read it from the history: %w", err)
	}
	return j, nil
}

// Cancel cancels a job. A job that does not run is jobs.StateCancelled at once. If the job runs,
// Cancel asks the run to end: its context is cancelled. The job is then jobs.StateCancelled, unless
// its handler returns nil. Cancel returns the job's state after the call. It refuses a finished
// job, and a job whose run was asked before, with a [StateError].
func (o *Jobs) Cancel(ctx context.Context, id int64, by By) (now jobs.State, err error) {
	v := onJob(KindCancel, id, by)
	err = o.changeJobs(ctx, v, checkJob(id), func(tx *sql.Tx) (any, error) {
		j, found, err := o.lockJob(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		if !found {
			f, err := o.finished(ctx, tx, id)
			if err != nil {
				return nil, err
			}
			return nil, &StateError{f.State, fmt.Sprintf("it finished at %s, and only an unfinished job can be cancelled", f.FinishedAt.Format(time.RFC3339))}
		}
		if j.asked.Valid {
			return nil, &StateError{j.State, fmt.Sprintf("it was asked to end at %s: wait until its handler returns, which a stop of its worker hastens", j.asked.Time.UTC().Format(time.RFC3339))}
		}
		v.Queue = j.queue
		now, err = o.cancel(ctx, tx, j.State, []int64{id})
		return j, err
	})
	if err != nil {
		return "", err
	}
	return now, nil
}

// cancel cancels jobs in state in, which the transaction has locked.
func (o *Jobs) cancel(ctx context.Context, tx *sql.Tx, in jobs.State, ids []int64) (now jobs.State, err error) {
	if in == jobs.StateRunning {
		return jobs.StateRunning, o.queue.AskAll(ctx, tx, ids)
	}
	return jobs.StateCancelled, o.queue.CancelAll(ctx, tx, ids)
}

// CancelledJobs is the result of CancelAll.
type CancelledJobs struct {
	Cancelled []int64 // they did not run
	Asked     []int64 // their runs were asked to end
}

// CancelAll cancels up to limit unfinished jobs, as Cancel cancels one. Running jobs come
// first, then the newest. limit is 1 to 10,000. Jobs whose rows are locked are skipped, and so
// are runs that were asked to end before. To cancel all jobs of the filter, call CancelAll
// until it returns none. The filter must not be empty.
//
// All cancellations are one operation. The operation's detail has the filter and the IDs.
func (o *Jobs) CancelAll(ctx context.Context, f JobFilter, limit int, by By) (all CancelledJobs, err error) {
	invalid := errtext.Join(f.check(unfinishedStates...), checkLimit(limit))
	if invalid == nil && f.empty() {
		invalid = fmt.Errorf("%w: the filter is empty, which is every job: name states, a kind, a queue or IDs", ErrInvalid)
	}
	err = o.changeJobs(ctx, onQueue(KindCancel, f.Queue, by), invalid, func(tx *sql.Tx) (any, error) {
		all = CancelledJobs{[]int64{}, []int64{}} // in JSON, no null
		for _, state := range []jobs.State{jobs.StateRunning, jobs.StateAvailable} {
			left := limit - len(all.Asked) - len(all.Cancelled)
			if left == 0 || !f.has(state) {
				continue
			}
			ids, err := o.lockJobs(ctx, tx, f, state, left)
			if err == nil && len(ids) > 0 {
				_, err = o.cancel(ctx, tx, state, ids)
			}
			if err != nil {
				return nil, err
			}
			if state == jobs.StateRunning {
				all.Asked = append(all.Asked, ids...)
			} else {
				all.Cancelled = append(all.Cancelled, ids...)
			}
		}
		return cancelAllDetail{f.States, f.Kind, f.After, f.Before, all.Cancelled, all.Asked}, nil
	})
	if err != nil {
		return CancelledJobs{}, err
	}
	return all, nil
}

type cancelAllDetail struct {
	States    []jobs.State `json:"states,omitempty"`
	Kind      string       `json:"kind,omitempty"`
	After     int64        `json:"after,omitempty"`
	Before    int64        `json:"before,omitempty"`
	Cancelled []int64      `json:"cancelled"`
	Asked     []int64      `json:"asked_to_end"`
}

// lockJobs locks jobs in a state, the newest first. It skips locked rows.
func (o *Jobs) lockJobs(ctx context.Context, tx *sql.Tx, f JobFilter, state jobs.State, limit int) ([]int64, error) {
	var p pgdriver.Parameters
	where := f.where(&p, state)
	if state == jobs.StateRunning {
		where += ` AND cancel_at IS NULL`
	}
	query := `SELECT id FROM ` + o.t.Jobs.SQL() + ` AS j WHERE ` + where + ` ORDER BY ` + order(state) + ` LIMIT ` + p.Add("bigint", limit) + ` FOR UPDATE SKIP LOCKED`
	ids, err := pgdriver.QueryAll(ctx, tx, pgdriver.Value[int64], query, p.Values...)
	if err != nil {
		return nil, fmt.Errorf("lock the %s jobs: %w", state, err)
	}
	return ids, nil
}
