package table

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// settler stores the outcomes of jobs.
type settler struct {
	*jobrun.Settler[*ending]
	*env
}

// ending is an outcome that is not stored yet.
type ending struct {
	jobrun.Ending
	run    *run
	err    error
	took   time.Duration
	end    end
	stored func() // called when the settler is done with the ending
}

// size returns about how many bytes of a statement the ending takes.
func (e *ending) size() int {
	const rest = 200
	if e.end.Message == nil {
		return rest
	}
	return rest + len(*e.end.Message)
}

// failed returns the end of a job whose outcome the table refuses, and its error.
func (e *ending) failed(err error) (end, error) {
	err = fmt.Errorf("PostgreSQL refuses to store that the job is %s: %w", e.end.To, errtext.Of(err))
	return end{claim: e.run.Claim, To: StateFailed, Message: text(err)}, err
}

func newSettler(e *env) *settler {
	s := &settler{jobrun.NewSettler[*ending](), e}
	s.LockedRow, s.Turn = errHeld, &e.turns.settles
	s.Store = func(ctx context.Context, all []*ending) error {
		return s.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			s.begin(observe.ConditionSettle) // a settle leaves out no rows
			on := s.env.store.db.Plans.On(conn, conn)
			return batch.Each(all, func(part []*ending) error { return s.try(ctx, conn, on, part) },
				func(e *ending, err error) error { return s.refused(ctx, on, e, err) })
		})
	}
	s.Report = func(_ []*ending, err error) { s.outcome(observe.ConditionSettle, err) }
	return s
}

func (s *settler) add(e *ending) {
	s.Add(e, e.size())
	jobrun.Wake(s.wake) // its handler has ended
}

// run stores outcomes until ctx ends.
func (s *settler) run(ctx context.Context) { s.Run(ctx, s.limit) }

// settleOn stores outcomes. It returns the current state of each job, "" for a locked row. Jobs
// that are missing in the result are lost.
func (e *env) settleOn(ctx context.Context, on store.Querier, ends []end) (map[claim]State, error) {
	list, err := json.Marshal(ends)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: store what became of jobs: %w", err)
	}
	type row struct {
		claim
		state State
	}
	rows, err := pgdriver.QueryAll(ctx, on, pgdriver.Columns(func(r *row) []any { return []any{&r.ID, &r.Claim, &r.state} }), e.sql.settle, string(list), e.host)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: store what became of jobs: %w", err)
	}
	settled := make(map[claim]State, len(rows))
	for _, r := range rows {
		settled[r.claim] = r.state
	}
	return settled, nil
}

// store settles jobs. It may be repeated with the same jobs.
func (s *settler) store(ctx context.Context, on store.Querier, batch []*ending) error {
	ends := make([]end, len(batch))
	for i, e := range batch {
		ends[i] = e.end
	}
	settled, err := s.settleOn(ctx, on, ends)
	if err != nil {
		return err
	}
	for _, e := range batch {
		state, is := settled[e.run.Claim]
		switch {
		case !is:
			s.lost(e)
		case state == unchanged:
			if err := s.refused(ctx, on, e, errUnchanged); err != nil {
				return err
			}
		case state != "": // else the row is locked
			s.settled(e, state)
		}
	}
	return nil
}

// try is store. It tells a refusal of one job that is about the row from one of the whole statement.
func (s *settler) try(ctx context.Context, conn *sql.Conn, on store.Querier, part []*ending) error {
	err := s.store(ctx, on, part)
	if len(part) > 1 || !mayLast(err) || !s.failable(ctx, conn, part[0], err) {
		return err
	}
	if err = s.store(ctx, on, part); mayLast(err) {
		return batch.OfRow(err)
	}
	return err
}

// mayLast reports whether an error may be about the whole statement, and not about the moment.
func mayLast(err error) bool {
	return pgdriver.FaultOf(err) == pgdriver.FaultStatement && !pgdriver.IsTimeLimit(err)
}

// failable reports whether the table takes a job as failed, which it does not store. If so, the
// statement works, and err, the refusal of another outcome, is about the row.
func (s *settler) failable(ctx context.Context, conn *sql.Conn, e *ending, err error) bool {
	tx, beginErr := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if beginErr != nil {
		return false
	}
	defer func() { _ = tx.Rollback() }() // closes the connection if it fails
	failed, _ := e.failed(err)
	settled, err := s.settleOn(ctx, s.env.store.db.Plans.On(conn, tx), []end{failed})
	state := settled[e.run.Claim]
	return err == nil && state != "" && state != unchanged
}

// refused settles a job as failed if the table refuses its outcome. If the table refuses this too,
// the row stalls.
func (s *settler) refused(ctx context.Context, on store.Querier, e *ending, err error) error {
	if m := e.end.Message; m != nil && pgdriver.IsInvalidValue(err) && errtext.ASCII(*m) != *m {
		ascii := errtext.ASCII(*m) // the database's encoding may not hold the original text
		e.end.Message = &ascii
		if err = s.store(ctx, on, []*ending{e}); err == nil || pgdriver.FaultOf(err) == pgdriver.FaultServer {
			return err
		}
	}
	e.end, e.err = e.failed(err)
	settled, err := s.settleOn(ctx, on, []end{e.end})
	state, is := settled[e.run.Claim]
	if state == unchanged {
		err = errUnchanged
	}
	switch {
	case pgdriver.FaultOf(err) != pgdriver.FaultServer || state == unchanged:
		_ = s.refuse(observe.ConditionSettle, e.run.Claim.ID, fmt.Errorf("%w; and as failed: %w", e.err, err)) // a full list of refused rows does not block settling
		s.lost(e)
	case err != nil:
		return err
	case !is:
		s.lost(e)
	case state != "":
		s.settled(e, state)
	}
	return nil
}

// settled records that the outcome of a job is stored.
func (s *settler) settled(e *ending, state State) {
	s.leave(e)
	if state == StateCompleted {
		e.err = nil // CompleteTx was committed, whatever the handler returned
	} else if e.err == nil {
		e.err = errEndedElsewhere
	}
	s.change(func(st *Status) {
		switch state {
		case StateCompleted:
			st.Completed++
		case StateErrored, StateFailed:
			st.Failed++
		}
	})
	s.observers.Notify(observe.JobDone{Job: e.run.header.job(), State: string(state), Failed: state == StateErrored || state == StateFailed, Err: e.err, Took: e.took})
	e.stored()
}

// lost records that another worker has the job of a run.
func (s *settler) lost(e *ending) {
	s.leave(e)
	s.change(func(st *Status) { st.Lost++ })
	s.observers.Notify(observe.JobLost{Job: e.run.header.job()})
	e.stored()
}

func (s *settler) leave(e *ending) {
	e.Concluded = true
	s.inFlight.Drop(e.run)
}

// finish waits until every outcome is stored, or returns ErrUnsettled.
func (s *settler) finish(ctx context.Context) error {
	left := s.Finish(ctx)
	if left == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d jobs: %w", ErrUnsettled, left, errtext.Of(cmp.Or(s.failing(observe.ConditionSettle), errHeld)))
}
