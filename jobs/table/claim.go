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

// claims claims rows and reads them.
type claims struct {
	*calls
	readRow func(row Row, r *run) (job any, err error)
}

// claimOn claims up to limit jobs. found also counts jobs that were cancelled before they began,
// and jobs that the table refuses. Rows that make the claim fail are found, and left out of the
// next claims. The other rows are claimed all the same, and returned with an error.
func (s *claims) claimOn(ctx context.Context, on store.Querier, c Condition, limit int) (runs []*run, found int, err error) {
	out := pgdriver.Array(s.begin(observe.ConditionClaim))
	runs, found, err = s.pick(ctx, on, s.sql.claim, out, c, limit)
	if pgdriver.FaultOf(err) != pgdriver.FaultServer {
		runs, found, err = s.pickApart(ctx, on, out, c, limit, err)
	}
	if found >= limit || c.SQL != "" {
		taken := make([]int64, len(runs))
		for i, r := range runs {
			taken[i] = r.Claim.ID
		}
		s.partly(observe.ConditionClaim, taken)
	}
	return runs, found, err
}

// mostBeside is how many rows a worker with fewer free slots examines.
const mostBeside = 16

// pickApart repeats a claim that failed with err because of some of its rows. It refuses these
// rows. It examines some more rows than may be claimed. Whether an error belongs to a row shows
// beside another row.
func (s *claims) pickApart(ctx context.Context, on store.Querier, out string, c Condition, limit int, err error) (runs []*run, found int, _ error) {
	ids, err2 := pgdriver.QueryAll(ctx, on, pgdriver.Value[int64],
		s.sql.peek.with(pgdriver.ShiftParameters(c.SQL, claimParameters), max(limit, mostBeside)), append([]any{out, s.host}, c.Args...)...)
	if err2 != nil { // the condition or the order has failed
		return nil, 0, err
	}
	err = batch.Each(ids, func(ids []int64) error {
		if len(runs) >= limit {
			return nil
		}
		more, _, err := s.pick(ctx, on, s.sql.claimOf, pgdriver.Array(ids), c, limit-len(runs))
		runs = append(runs, more...)
		return err
	}, func(id int64, err error) error { return s.refuse(observe.ConditionClaim, id, err) })
	return runs, min(len(ids), limit), err
}

// pick claims up to limit of the rows that text selects, and takes a slot for each.
func (s *claims) pick(ctx context.Context, on store.Querier, text claimText, list string, c Condition, limit int) (runs []*run, found int, err error) {
	type row struct {
		run   *run
		state State
	}
	all, err := pgdriver.QueryAll(ctx, on, func(rows *sql.Rows) (row, error) {
		r := row{run: &run{env: s.env}}
		err := rows.Scan(&r.run.Claim.ID, &r.run.Claim.Claim, &r.state, &r.run.header.NumFailures, &r.run.header.NumResets, &r.run.server)
		r.run.header.ID = r.run.Claim.ID
		return r, err
	}, text.with(pgdriver.ShiftParameters(c.SQL, claimParameters), limit), append([]any{list, s.host}, c.Args...)...)
	if err != nil {
		return nil, 0, fmt.Errorf("jobs/table: claim rows of %s: %w", s.store.settings.table, err)
	}
	for _, r := range all {
		if r.state == "" {
			err = errtext.Join(err, s.refuse(observe.ConditionClaim, r.run.Claim.ID, errUnchanged))
			continue
		}
		if r.state != StateProcessing {
			s.observers.Notify(observe.JobDone{Job: r.run.header.job(), State: string(r.state), Err: ErrCanceled})
			continue
		}
		s.inFlight.Add(r.run)
		runs = append(runs, r.run)
	}
	s.take(len(runs))
	return runs, len(all), err
}

func (s *claims) reportClaimed(n int, took time.Duration) {
	if n > 0 {
		s.observers.Notify(observe.JobsClaimed{Jobs: n, Took: took})
	}
}

// open reads the rows of runs from the view, after the claim is committed, so no data is stale. It
// returns the runs that can start, and settles the others. If the read fails for a reason outside
// of the rows, open queues the rows again and returns the error.
func (s *claims) open(ctx context.Context, on store.Querier, runs []*run) (ready []*run, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	var all []error
	failed := map[*run]bool{}
	err = batch.Each(runs, func(runs []*run) error {
		more, err := s.openAll(ctx, on, runs)
		if pgdriver.FaultOf(err) != pgdriver.FaultServer {
			return err
		}
		ready, all = append(ready, more...), append(all, err)
		return nil
	}, func(r *run, err error) error {
		failed[r] = true
		s.fail(r, fmt.Errorf("the row cannot be read: %w", errtext.Of(err)))
		return nil
	})
	if err != nil { // no row can be read
		all = append(all, s.release(slices.DeleteFunc(slices.Clone(runs), func(r *run) bool { return failed[r] }), err))
	}
	return ready, errtext.Join(all...)
}

// openAll is open without splitting. If a row makes the view fail, openAll changes nothing and
// returns the error.
func (s *claims) openAll(ctx context.Context, on store.Querier, runs []*run) (ready []*run, err error) {
	shown, err := s.fetch(ctx, on, runs)
	switch {
	case pgdriver.FaultOf(err) != pgdriver.FaultServer:
		return nil, err
	case err != nil:
		return nil, s.release(runs, err)
	}
	var hide []int64
	for _, r := range runs {
		switch of := shown[r.Claim.ID]; {
		case of.times == 0:
			hide = append(hide, r.Claim.ID)
			err := fmt.Errorf("%s does not show the row", s.store.settings.view)
			s.settleUnstarted(r, end{To: hidden, Message: text(err)}, err)
		case of.times > 1:
			s.fail(r, errTwice)
		case of.err != nil:
			s.fail(r, of.err)
		default:
			r.job = of.job
			ready = append(ready, r)
		}
	}
	if len(hide) > 0 {
		s.observers.Notify(observe.RowsHidden{IDs: hide})
	}
	return ready, nil
}

// release queues runs again that could not be read, and returns why.
func (s *claims) release(runs []*run, err error) error {
	err = errtext.Of(fmt.Errorf("jobs/table: read the claimed rows of %s: %w", s.store.settings.view, err))
	for _, r := range runs {
		if !r.GaveUp() { // else Scan was given up
			s.settleUnstarted(r, end{To: StateQueued}, err)
		}
	}
	return err
}

// fail settles a run whose row cannot be handled, as if its handler had returned err.
func (s *claims) fail(r *run, err error) {
	to, message, delay, requeued := decide(err, nil, false)
	s.settleUnstarted(r, end{To: to, Message: message, Delay: delay, Requeued: requeued}, err)
}

// shownRow is a row as the view shows it.
type shownRow struct {
	times int
	job   any
	err   error // error of Scan
}

// fetch reads the rows of runs from the view.
func (s *claims) fetch(ctx context.Context, on store.Querier, runs []*run) (shown map[int64]shownRow, err error) {
	byID := make(map[int64]*run, len(runs))
	claims := make([]claim, len(runs))
	for i, r := range runs {
		byID[r.Claim.ID], claims[i] = r, r.Claim
	}
	ids, _ := queue.Arrays(claims)
	rows, err := on.QueryContext(ctx, s.sql.read, ids)
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
		row := shownRow{times: shown[id].times + 1}
		if r := byID[id]; r != nil && row.times == 1 {
			if row.job, row.err = s.scan(v, r); errors.Is(row.err, errScanOverdue) {
				return nil, row.err // Scan may still read the row
			} else if row.err != nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		shown[id] = row
	}
	return shown, rows.Err()
}

// scan calls the user's Scan. If Scan does not return, scan gives up the run, as for a handler, and
// returns errScanOverdue.
func (s *claims) scan(v view, r *run) (job any, err error) {
	var record any
	done := make(chan struct{})
	c := &jobrun.Call{Grace: s.grace, Goexit: errGoexit}
	c.Finish = func(of error) {
		job, err = record, of
		close(done)
	}
	c.GiveUp = func(error) {
		s.giveUp(r)
		err = fmt.Errorf("job %d: %w for %v", r.Claim.ID, errScanOverdue, s.grace)
		s.fail(r, err)
		close(done)
	}
	c.Late = func(of error) {
		s.returned(r, of)
		s.give()
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go c.Do(ended, func() error {
		return recovered("Scan", func() (err error) {
			record, err = s.readRow(v, r)
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
