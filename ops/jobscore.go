package ops

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// jobsCore is what all operations of a Jobs share.
type jobsCore struct {
	core
	t     tables.Jobs
	sql   jobsStatements
	queue *queue.Queue
	flows *flow.Client
}

// jobsTx is the transaction of a change of jobs.
type jobsTx struct {
	tx    *sql.Tx
	t     tables.Jobs
	queue *queue.Queue
}

var (
	unfinishedStates = []jobs.State{jobs.StateAvailable, jobs.StateRunning}
	finishedStates   = []jobs.State{jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired, jobs.StateSkipped}
	// unsuccessfulStates are the states of jobs that Retry accepts.
	unsuccessfulStates = []jobs.State{jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired, jobs.StateSkipped}
)

// AllQueues stands for all queues together. PauseQueue, SetCap and SetRetention accept it.
const AllQueues = "*"

// onJob returns a change of a job. Its queue is not known yet.
func onJob(kind Kind, id int64, by By) *verb {
	return &verb{Operation{Job: id, Kind: kind, By: by}, fmt.Sprintf("job %d", id)}
}

// onQueue returns a change of a queue, or of all queues. An empty name stands for jobs of any queue.
func onQueue(kind Kind, name string, by By) *verb {
	on := "queue " + errtext.Value(name)
	switch name {
	case AllQueues:
		on = "all queues"
	case "":
		on = "jobs"
	}
	return &verb{Operation{Queue: name, Kind: kind, By: by}, on}
}

// changeJobs makes a change of jobs, as changeUnits does for units. do returns the detail
// of the record. It may complete v.
func (c *jobsCore) changeJobs(ctx context.Context, v *verb, invalid error, do func(c jobsTx) (detail any, err error)) error {
	return c.change(ctx, v, invalid, func(tx *sql.Tx) (int64, error) {
		if err := setLimits(ctx, tx); err != nil {
			return 0, err
		}
		detail, err := do(jobsTx{tx, c.t, c.queue})
		if err != nil {
			return 0, err
		}
		return c.record(ctx, tx, v.Operation, detail)
	})
}

// lockError names the holder of a row if the context ended the wait for the row.
func lockError(ctx context.Context, what, holder string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("gave up waiting for %s, which %s: allow more time: %w", what, holder, err)
	}
	return fmt.Errorf("lock %s: %w", what, err)
}

// JobFilter selects jobs. The zero JobFilter selects all jobs.
type JobFilter struct {
	States []jobs.State // empty: all
	Kind   string       // empty: all
	Queue  string       // empty: all

	// After and Before bound the IDs: a job's ID is above After and below Before. 0 is no
	// bound. For the next page, set Before to the last ID of this page.
	After, Before int64
}

func (f JobFilter) empty() bool {
	return len(f.States) == 0 && f.Kind == "" && f.Queue == "" && f.After == 0 && f.Before == 0
}

func (f JobFilter) has(s jobs.State) bool { return len(f.States) == 0 || slices.Contains(f.States, s) }

func (f JobFilter) check(states ...jobs.State) (err error) {
	var all []error
	for _, s := range f.States {
		if !slices.Contains(states, s) {
			all = append(all, fmt.Errorf("%w: the state %s is not one of %q", ErrInvalid, errtext.Value(s), states))
		}
	}
	if f.Kind != "" {
		all = append(all, checkText("the kind", f.Kind, maxQueueName))
	}
	if f.Queue == AllQueues {
		all = append(all, fmt.Errorf("%w: no job is in queue %q: leave the queue empty for all", ErrInvalid, AllQueues))
	} else if f.Queue != "" {
		all = append(all, checkQueue(f.Queue))
	}
	if f.After < 0 || f.Before < 0 {
		all = append(all, fmt.Errorf("%w: After is %d and Before %d, IDs begin at 1", ErrInvalid, f.After, f.Before))
	}
	return errtext.Join(all...)
}

// where returns the conditions of the filter for state, or for all states if state is empty. The
// state is part of the text, since the predicates of indexes contain it.
func (f JobFilter) where(p *pgdriver.Parameters, state jobs.State) string {
	where := `true`
	if state != "" {
		where = `state = '` + string(state) + `'`
	}
	return where + pgdriver.And(p, `kind = %s`, "text", f.Kind) + pgdriver.And(p, `queue = %s`, "text", f.Queue) +
		pgdriver.And(p, `id > %s`, "bigint", f.After) + pgdriver.And(p, `id < %s`, "bigint", f.Before)
}

// order returns the ORDER BY. For running jobs, it keeps the planner from a scan in the order
// of IDs through all waiting jobs.
func order(state jobs.State) string {
	if state == jobs.StateRunning {
		return `id + 0 DESC`
	}
	return `id DESC`
}

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

// lock waits for the row of an unfinished job. found is false if the job has finished or
// does not exist.
func (c jobsTx) lock(ctx context.Context, id int64) (j lockedJob, found bool, err error) {
	err = c.tx.QueryRowContext(ctx, `
SELECT state, kind, queue, attempt, run_at <= clock_timestamp(), to_json(run_at)#>>'{}', `+pgdriver.Time(`cancel_at`)+` FROM `+c.t.Jobs.SQL()+` WHERE id = $1::bigint FOR UPDATE`, id).
		Scan(&j.State, &j.Kind, &j.queue, &j.Attempt, &j.due, &j.runAt, &j.asked)
	switch {
	case noRows(err):
		return j, false, nil
	case err != nil:
		return j, false, lockError(ctx, "its row in "+c.t.Jobs.String(), "a transaction that ends the job keeps until its COMMIT", err)
	}
	return j, true, nil
}

// lockAll locks jobs in a state, the newest first. It skips locked rows.
func (c jobsTx) lockAll(ctx context.Context, f JobFilter, state jobs.State, limit int) ([]int64, error) {
	var p pgdriver.Parameters
	where := f.where(&p, state)
	if state == jobs.StateRunning {
		where += ` AND cancel_at IS NULL`
	}
	query := `SELECT id FROM ` + c.t.Jobs.SQL() + ` AS j WHERE ` + where + ` ORDER BY ` + order(state) + ` LIMIT ` + p.Add("bigint", limit) + ` FOR UPDATE SKIP LOCKED`
	ids, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Value[int64], query, p.Values...)
	if err != nil {
		return nil, fmt.Errorf("lock the %s jobs: %w", state, err)
	}
	return ids, nil
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

// finished reads a job of the history. Call finished after lock. A job is in one of the two
// tables, and never becomes unfinished again under the same ID.
func (c jobsTx) finished(ctx context.Context, id int64) (j finishedJob, err error) {
	err = c.tx.QueryRowContext(ctx, `
SELECT state, kind, queue, attempt, `+pgdriver.Time(`finished_at`)+`, coalesce(code, ''), coalesce(error, '') FROM `+c.t.History.SQL()+` WHERE id = $1::bigint`, id).
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

// finishedAll returns the newest jobs of the history that match the filter and not refused.
func (c jobsTx) finishedAll(ctx context.Context, f JobFilter, refused string, limit int) ([]int64, error) {
	var p pgdriver.Parameters
	most := p.Add("bigint", limit)
	var parts []string
	for _, state := range slices.Compact(slices.Sorted(slices.Values(f.States))) {
		parts = append(parts, `(SELECT j.id FROM `+c.t.History.SQL()+` AS j WHERE `+f.where(&p, state)+`
	AND NOT (`+refused+`) ORDER BY j.id DESC LIMIT `+most+`)`)
	}
	ids, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Value[int64],
		`SELECT id FROM (`+strings.Join(parts, ` UNION ALL `)+`) AS j ORDER BY id DESC LIMIT `+most, p.Values...)
	if err != nil {
		return nil, fmt.Errorf("select the jobs: %w", err)
	}
	return ids, nil
}

// cancel cancels jobs in state in, which the transaction has locked.
func (c jobsTx) cancel(ctx context.Context, in jobs.State, ids []int64) (now jobs.State, err error) {
	if in == jobs.StateRunning {
		return jobs.StateRunning, c.queue.AskAll(ctx, c.tx, ids)
	}
	return jobs.StateCancelled, c.queue.CancelAll(ctx, c.tx, ids)
}

// discard deletes a finished job.
func (c jobsTx) discard(ctx context.Context, id int64) (d jobDiscardDetail, err error) {
	if d.finishedJob, err = c.finished(ctx, id); err != nil {
		return d, err
	}
	awaited, err := c.awaitedByFlow(ctx, id)
	if err != nil {
		return d, err
	}
	if awaited {
		return d, &StateError{d.State, "it is a step of a flow, whose run has not recorded its end yet: try again in some seconds, and see that a worker with flow.Advance runs"}
	}
	for _, s := range []struct {
		what, query string
		rows        *int64
	}{
		{"delete its attempts", `DELETE FROM ` + c.t.Attempts.SQL() + ` WHERE job_id = $1::bigint`, &d.Attempts},
		{"delete its logs", `DELETE FROM ` + c.t.Logs.SQL() + ` WHERE job_id = $1::bigint`, &d.Logs},
		{"delete it", `DELETE FROM ` + c.t.History.SQL() + ` WHERE id = $1::bigint`, &d.rows},
	} {
		if *s.rows, err = exec(ctx, c.tx, s.what, s.query, id); err != nil {
			return d, err
		}
	}
	if d.rows == 0 {
		return d, errNoJob // another transaction has discarded it
	}
	return d, nil
}

// awaitedByFlow reports whether the job is a step of a flow whose end the run has not recorded yet.
func (c jobsTx) awaitedByFlow(ctx context.Context, id int64) (awaited bool, err error) {
	err = c.tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+c.t.FlowSteps.SQL()+` WHERE job_id = $1::bigint AND state = 'enqueued')`, id).Scan(&awaited)
	if err != nil {
		return false, fmt.Errorf("read whether a run of a flow waits for it: %w", err)
	}
	return awaited, nil
}

type jobDiscardDetail struct {
	finishedJob
	Attempts int64 `json:"attempts_deleted"`
	Logs     int64 `json:"logs_deleted"`
	rows     int64
}
