package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// settler stores the outcomes of jobs.
type settler struct {
	*jobrun.Settler[*ending]
	*reports
	turn watchdog.Iteration

	mu  sync.Mutex
	err error // why outcomes cannot be stored
}

// newSettler makes a settler. It calls room when it can take more outcomes.
func newSettler(r *reports, room func()) *settler {
	s := &settler{Settler: jobrun.NewSettler[*ending](), reports: r}
	s.Store, s.Report, s.Room = s.storeBounded, s.report, room
	s.LockedRow, s.Gather, s.Turn = errRowLocked, jobrun.Gather, &s.turn
	return s
}

// settling begins to settle a run, whose ending the settler gets next. A stop waits for the ending.
func (s *settler) settling(r *run) {
	s.Expect()
	r.Settle()
}

func (s *settler) add(e *ending) { s.Add(e, e.size()) }

// status returns how many outcomes wait, and why they cannot be stored.
func (s *settler) status() (waits int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Unsettled(), s.err
}

// run stores outcomes until ctx ends.
func (s *settler) run(ctx context.Context) { s.Run(ctx, s.limit) }

// report notifies observers of the result of a statement.
func (s *settler) report(batch []*ending, err error) {
	s.reportAside(batch)
	if err != nil {
		s.fails(err)
	} else {
		s.stored()
	}
}

// reportAside notifies observers of outcomes that were set aside: at the first refusal, and for one
// row that stays locked.
func (s *settler) reportAside(batch []*ending) {
	locked := false
	for _, e := range batch {
		switch {
		case e.Concluded || e.Why == nil:
		case e.Why != errRowLocked:
			if e.Refused == 1 {
				s.fails(e.failure())
			}
		case e.Locked >= jobrun.LockedOften && !locked:
			locked = true
			s.fails(e.failure())
		}
	}
}

// stored records that a statement has succeeded, and why outcomes are still set aside.
func (s *settler) stored() {
	first, stuck := s.Stuck()
	var err error
	if stuck > 0 {
		err = errtext.Of(first.failure())
	}
	if stuck > 1 {
		err = fmt.Errorf("%w (and %d more jobs)", err, stuck-1)
	}
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	if stuck == 0 {
		s.observers.End(about(observe.ConditionSettle, ""))
	}
}

// failure returns why the outcome of the job is not stored.
func (e *ending) failure() error {
	return fmt.Errorf("jobs: what became of job %d cannot be stored: %w", e.run.row.ID, e.Why)
}

func (s *settler) fails(err error) {
	err = errtext.Of(err)
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.observers.Begin(about(observe.ConditionSettle, ""), err)
	s.observers.Notify(observe.StatementFailed{Condition: observe.ConditionSettle, Err: err})
}

func (s *settler) storeBounded(ctx context.Context, batch []*ending) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	return s.on(ctx, func(conn *sql.Conn) error { return s.store(ctx, s.planned(conn, conn), batch) })
}

// store settles jobs. It may be repeated with the same jobs. If a job is not concluded, its row was
// locked, so the job was not settled. Statements return IDs of jobs, not of runs. So if two runs of
// a job are to be settled, the later run waits for the next statement.
func (s *settler) store(ctx context.Context, on Querier, batch []*ending) error {
	var bare, others, later []*ending
	seen := make(map[int64]bool, len(batch))
	for _, e := range batch {
		if seen[e.run.row.ID] {
			later = append(later, e)
			continue
		}
		seen[e.run.row.ID] = true
		if e.end.To == queue.Completed && e.end.Result == nil && !e.run.logged.Load() {
			bare = append(bare, e)
		} else {
			others = append(others, e)
		}
	}
	if err := s.complete(ctx, on, bare); err != nil {
		return err
	}
	if err := s.each(ctx, on, others, func(part []*ending) error { return s.settle(ctx, on, part) }); err != nil || len(later) == 0 {
		return err
	}
	return s.store(ctx, on, later)
}

func (s *settler) complete(ctx context.Context, on Querier, all []*ending) error {
	return s.each(ctx, on, all, func(part []*ending) error {
		ids, err := s.queue.Complete(ctx, on, runsOf(part))
		states := make(map[int64]queue.State, len(ids))
		for _, id := range ids {
			states[id] = queue.Completed
		}
		sent := err == nil || pgdriver.IsUnanswered(err)
		if err == nil {
			err = s.conclude(ctx, on, part, states)
		}
		for _, e := range part { // which wait for another statement, if err is not nil
			e.mayBeDone = e.mayBeDone || sent && err != nil
		}
		return err
	})
}

// settle settles the jobs that are not completed, and those that have a result or a log.
func (s *settler) settle(ctx context.Context, on Querier, part []*ending) error {
	ends := make([]queue.End, len(part))
	for i, e := range part {
		ends[i] = e.end
	}
	settled, err := s.queue.Settle(ctx, on, ends)
	if err != nil {
		return err
	}
	states := make(map[int64]queue.State, len(settled))
	for _, one := range settled {
		states[one.ID] = one.State
	}
	return s.conclude(ctx, on, part, states)
}

// each calls f with all endings. A job that the database refuses is set aside, and the others
// proceed. A job whose result PostgreSQL refuses fails. An error text that the database's encoding
// cannot hold is stored in ASCII.
func (s *settler) each(ctx context.Context, on Querier, all []*ending, f func(part []*ending) error) error {
	if len(all) == 0 {
		return nil
	}
	return batch.Each(all, f, func(e *ending, err error) error {
		if code, text := errtext.ASCII(e.end.Code), errtext.ASCII(e.end.Error); pgdriver.IsInvalidValue(err) && (code != e.end.Code || text != e.end.Error) {
			e.end.Code, e.end.Error = code, text
			if err = s.settle(ctx, on, []*ending{e}); err == nil || pgdriver.FaultOf(err) == pgdriver.FaultServer {
				return err
			}
		}
		if pgdriver.IsInvalidValue(err) && e.end.Result != nil {
			e.err = coded(CodeResult, true, err, "PostgreSQL refuses the result of the job: %v", errtext.Of(err))
			e.end = e.run.handler.decide(e.run.row, nil, e.err, nil)
			e.end.Error = errtext.ASCII(e.end.Error)
			if err = s.settle(ctx, on, []*ending{e}); err == nil || pgdriver.FaultOf(err) == pgdriver.FaultServer {
				return err
			}
		}
		e.Why = s.refusal(e.run.row.ID, err)
		return nil
	})
}

// conclude records which outcomes are stored. A job may be missing in states for three reasons. An
// earlier statement has stored its outcome, and the answer was lost. Another worker has the job. Or
// the row of the job is locked. If no table has a job that may be done, the job counts as completed:
// a queue of retention 0 keeps nothing of it. After an outage this may also report a run as completed
// that was lost, if another worker has completed the job since.
func (s *settler) conclude(ctx context.Context, on Querier, batch []*ending, states map[int64]queue.State) error {
	var missing []*ending
	for _, e := range batch {
		if _, ok := states[e.run.row.ID]; !ok {
			missing = append(missing, e)
		}
	}
	before := map[int64]queue.State{}
	if len(missing) > 0 {
		settled, err := s.queue.Judge(ctx, on, runsOf(missing))
		if err != nil {
			return err
		}
		for _, one := range settled {
			before[one.ID] = one.State
		}
	}
	for _, e := range batch {
		id := e.run.row.ID
		e.Concluded = before[id] != queue.Running
		switch state, ok := states[id]; {
		case ok:
			s.settled(e, state)
		case !e.Concluded:
		case before[id] == queue.Gone && (e.mayBeDone || e.run.inTx.Load()):
			s.settledBefore(e, queue.Completed)
		case before[id] != "" && before[id] != queue.Gone:
			s.settledBefore(e, before[id])
		default:
			s.lost(e.run)
		}
	}
	return nil
}

func runsOf(batch []*ending) []queue.Run {
	runs := make([]queue.Run, len(batch))
	for i, e := range batch {
		runs[i] = e.run.row.Run
	}
	return runs
}

// finish waits until every outcome is stored, or returns ErrUnsettled.
func (s *settler) finish(ctx context.Context) error {
	left := s.Finish(ctx)
	if left == 0 {
		return nil
	}
	_, err := s.status()
	return unsettled(left, err)
}
