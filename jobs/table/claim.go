package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// claimOn claims up to limit jobs. found also counts jobs that were cancelled before they began,
// and jobs that the table refuses. Rows that make the claim fail are found, and left out of the
// next claims. The other rows are claimed all the same, and returned with an error.
func (w *Worker) claimOn(ctx context.Context, on store.Querier, c Condition, limit int) (runs []*run, found int, err error) {
	out := pgdriver.Array(w.begin(observe.ConditionClaim))
	runs, found, err = w.pick(ctx, on, w.sql.claim, out, c, limit)
	if pgdriver.FaultOf(err) != pgdriver.FaultServer {
		runs, found, err = w.pickApart(ctx, on, out, c, limit, err)
	}
	if found >= limit || c.SQL != "" {
		taken := make([]int64, len(runs))
		for i, r := range runs {
			taken[i] = r.Claim.ID
		}
		w.partly(observe.ConditionClaim, taken)
	}
	return runs, found, err
}

// mostBeside is how many rows a worker with fewer free slots examines.
const mostBeside = 16

// pickApart repeats a claim that failed with err because of some of its rows. It refuses these
// rows. It examines some more rows than may be claimed. Whether an error belongs to a row shows
// beside another row.
func (w *Worker) pickApart(ctx context.Context, on store.Querier, out string, c Condition, limit int, err error) (runs []*run, found int, _ error) {
	ids, err2 := pgdriver.QueryAll(ctx, on, pgdriver.Value[int64],
		w.sql.peek.with(pgdriver.ShiftParameters(c.SQL, claimParameters), max(limit, mostBeside)), append([]any{out, w.host}, c.Args...)...)
	if err2 != nil { // the condition or the order has failed
		return nil, 0, err
	}
	err = batch.Each(ids, func(ids []int64) error {
		if len(runs) >= limit {
			return nil
		}
		more, _, err := w.pick(ctx, on, w.sql.claimOf, pgdriver.Array(ids), c, limit-len(runs))
		runs = append(runs, more...)
		return err
	}, func(id int64, err error) error { return w.refuse(observe.ConditionClaim, id, err) })
	return runs, min(len(ids), limit), err
}

// pick claims up to limit of the rows that text selects, and takes a slot for each.
func (w *Worker) pick(ctx context.Context, on store.Querier, text claimText, list string, c Condition, limit int) (runs []*run, found int, err error) {
	type row struct {
		run   *run
		state State
	}
	all, err := pgdriver.QueryAll(ctx, on, func(rows *sql.Rows) (row, error) {
		r := row{run: &run{w: w}}
		err := rows.Scan(&r.run.Claim.ID, &r.run.Claim.Claim, &r.state, &r.run.header.NumFailures, &r.run.header.NumResets, &r.run.server)
		r.run.header.ID = r.run.Claim.ID
		return r, err
	}, text.with(pgdriver.ShiftParameters(c.SQL, claimParameters), limit), append([]any{list, w.host}, c.Args...)...)
	if err != nil {
		return nil, 0, fmt.Errorf("jobs/table: claim rows of %s: %w", w.store.settings.table, err)
	}
	for _, r := range all {
		if r.state == "" {
			err = errtext.Join(err, w.refuse(observe.ConditionClaim, r.run.Claim.ID, errUnchanged))
			continue
		}
		if r.state != StateProcessing {
			w.observers.Notify(observe.JobDone{Job: r.run.header.job(), State: string(r.state), Err: ErrCanceled})
			continue
		}
		w.inFlight.Add(r.run)
		runs = append(runs, r.run)
	}
	w.take(len(runs))
	return runs, len(all), err
}

func (w *Worker) reportClaimed(n int, took time.Duration) {
	if n > 0 {
		w.observers.Notify(observe.JobsClaimed{Jobs: n, Took: took})
	}
}

// open reads the rows of runs from the view, after the claim is committed, so no data is stale. It
// returns the runs that can start, and settles the others. If the read fails for a reason outside
// of the rows, open queues the rows again and returns the error.
func (w *Worker) open(ctx context.Context, on store.Querier, runs []*run) (ready []*run, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	var all []error
	failed := map[*run]bool{}
	err = batch.Each(runs, func(runs []*run) error {
		more, err := w.openAll(ctx, on, runs)
		if pgdriver.FaultOf(err) != pgdriver.FaultServer {
			return err
		}
		ready, all = append(ready, more...), append(all, err)
		return nil
	}, func(r *run, err error) error {
		failed[r] = true
		w.fail(r, fmt.Errorf("the row cannot be read: %w", errtext.Of(err)))
		return nil
	})
	if err != nil { // no row can be read
		all = append(all, w.release(slices.DeleteFunc(slices.Clone(runs), func(r *run) bool { return failed[r] }), err))
	}
	return ready, errtext.Join(all...)
}

// openAll is open without splitting. If a row makes the view fail, openAll changes nothing and
// returns the error.
func (w *Worker) openAll(ctx context.Context, on store.Querier, runs []*run) (ready []*run, err error) {
	shown, err := w.read(ctx, on, runs)
	switch {
	case pgdriver.FaultOf(err) != pgdriver.FaultServer:
		return nil, err
	case err != nil:
		return nil, w.release(runs, err)
	}
	var hide []int64
	for _, r := range runs {
		switch of := shown[r.Claim.ID]; {
		case of.times == 0:
			hide = append(hide, r.Claim.ID)
			err := fmt.Errorf("%s does not show the row", w.store.settings.view)
			w.settleUnstarted(r, end{To: hidden, Message: text(err)}, err)
		case of.times > 1:
			w.fail(r, errTwice)
		case of.err != nil:
			w.fail(r, of.err)
		default:
			r.job = of.job
			ready = append(ready, r)
		}
	}
	if len(hide) > 0 {
		w.observers.Notify(observe.RowsHidden{IDs: hide})
	}
	return ready, nil
}

// release queues runs again that could not be read, and returns why.
func (w *Worker) release(runs []*run, err error) error {
	err = errtext.Of(fmt.Errorf("jobs/table: read the claimed rows of %s: %w", w.store.settings.view, err))
	for _, r := range runs {
		if !r.GaveUp() { // else Scan was given up
			w.settleUnstarted(r, end{To: StateQueued}, err)
		}
	}
	return err
}

// fail settles a run whose row cannot be handled, as if its handler had returned err.
func (w *Worker) fail(r *run, err error) {
	to, message, delay, requeued := decide(err, nil, false)
	w.settleUnstarted(r, end{To: to, Message: message, Delay: delay, Requeued: requeued}, err)
}

// shownRow is a row as the view shows it.
type shownRow struct {
	times int
	job   any
	err   error // error of Scan
}

// read reads the rows of runs from the view.
func (w *Worker) read(ctx context.Context, on store.Querier, runs []*run) (shown map[int64]shownRow, err error) {
	byID := make(map[int64]*run, len(runs))
	claims := make([]claim, len(runs))
	for i, r := range runs {
		byID[r.Claim.ID], claims[i] = r, r.Claim
	}
	ids, _ := queue.Arrays(claims)
	rows, err := on.QueryContext(ctx, w.sql.read, ids)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has reported every error
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	shown = make(map[int64]shownRow, len(runs))
	for rows.Next() {
		v := view{rows: rows, dest: make([]any, len(names))}
		id, err := v.id()
		if err != nil {
			return nil, err
		}
		s := shownRow{times: shown[id].times + 1}
		if r := byID[id]; r != nil && s.times == 1 {
			if s.job, s.err = w.scan(v, r); errors.Is(s.err, errScanOverdue) {
				return nil, s.err // Scan may still read the row
			} else if s.err != nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		shown[id] = s
	}
	return shown, rows.Err()
}

// scan calls the user's Scan. If Scan does not return, scan gives up the run, as for a handler, and
// returns errScanOverdue.
func (w *Worker) scan(v view, r *run) (job any, err error) {
	var record any
	done := make(chan struct{})
	c := &jobrun.Call{Grace: w.grace, Goexit: errGoexit}
	c.Finish = func(of error) {
		job, err = record, of
		close(done)
	}
	c.GiveUp = func(error) {
		w.giveUp(r)
		err = fmt.Errorf("job %d: %w for %v", r.Claim.ID, errScanOverdue, w.grace)
		w.fail(r, err)
		close(done)
	}
	c.Late = func(of error) {
		w.returned(r, of)
		w.give()
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go c.Do(ended, func() error {
		return recovered("Scan", func() (err error) {
			record, err = w.handler.read(v, r)
			return err
		})
	})
	<-done
	return job, err
}

// errScanOverdue reports a Scan that does not return.
var errScanOverdue = errors.New("Scan has not returned")

// view is a row as Scan sees it, without the ID column in front.
type view struct {
	rows *sql.Rows
	dest []any
}

// errColumns reports a Scan with too few or too many values.
var errColumns = errors.New("Scan must take a value for each of the ColumnExpressions")

func (v view) Scan(dest ...any) error {
	if len(dest) != len(v.dest)-1 {
		return fmt.Errorf("%w: it takes %d, there are %d", errColumns, len(dest), len(v.dest)-1)
	}
	v.dest[0] = ignored{}
	copy(v.dest[1:], dest)
	return v.rows.Scan(v.dest...)
}

// id reads only the ID. The ID is known even if reading the other columns fails.
func (v view) id() (id int64, err error) {
	for i := range v.dest {
		v.dest[i] = ignored{}
	}
	v.dest[0] = &id
	return id, v.rows.Scan(v.dest...)
}

// ignored discards a value.
type ignored struct{}

// Scan discards the value.
func (ignored) Scan(any) error { return nil }
