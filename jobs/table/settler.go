package table

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// settler stores the outcomes of jobs. The outcomes that gather while a statement runs are stored
// by the next statement. While the database does not answer, the settler keeps the outcomes and
// retries.
type settler struct {
	w       *Worker
	pace    batch.Pace
	wake    chan struct{}
	changed chan struct{} // signalled after each statement

	mu      sync.Mutex
	coming  int // their handlers have ended, and add gets them next
	waiting []*ending
	storing int // outcomes in the current statement
	err     error
}

// ending is an outcome that is not stored yet.
type ending struct {
	run    *run
	err    error
	took   time.Duration
	end    end
	stored func() // called when the settler is done with the ending
	gone   bool   // the settler is done with it
}

// size returns about how many bytes of a statement the ending takes.
func (e *ending) size() int {
	const rest = 200
	if e.end.Message == nil {
		return rest
	}
	return rest + len(*e.end.Message)
}

const (
	// mostStored bounds how many jobs a statement settles.
	mostStored = 2000
	// mostBytes bounds the bytes of outcomes in a statement.
	mostBytes = 4 << 20
	// heldPause is the pause before jobs with locked rows are settled again.
	heldPause = 200 * time.Millisecond
	// finishLimit is how long a stop waits for outcomes to be stored.
	finishLimit = 15 * time.Second
)

func newSettler(w *Worker) *settler {
	return &settler{w: w, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// expect records an outcome that add gets next. From now on a stop waits for this outcome.
func (s *settler) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming++
}

func (s *settler) add(e *ending) {
	s.mu.Lock()
	s.coming--
	s.waiting = append(s.waiting, e)
	s.mu.Unlock()
	jobrun.Wake(s.wake)
	jobrun.Wake(s.w.wake) // its handler has ended
}

// waits returns how many outcomes are not stored.
func (s *settler) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coming + len(s.waiting) + s.storing
}

// run stores outcomes until ctx ends.
func (s *settler) run(ctx context.Context) {
	for failures := 0; ; {
		begin := time.Now()
		all := s.take()
		if len(all) == 0 {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		s.w.turns.settles.Begin()
		err := s.w.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			s.w.begin(observe.ConditionSettle) // a settle leaves out no rows
			return batch.Each(all, func(part []*ending) error { return s.store(ctx, s.w.store.db.Plans.On(conn, conn), part) },
				func(e *ending, err error) error { return s.refused(ctx, s.w.store.db.Plans.On(conn, conn), e, err) })
		})
		s.pace.Took(len(all), time.Since(begin), s.w.limit, err)
		held := s.putBack(all, err)
		if ctx.Err() != nil {
			return
		}
		s.w.outcome(observe.ConditionSettle, err)
		s.w.turns.settles.End()
		pause := time.Duration(0)
		switch {
		case err != nil:
			failures++
			pause = backoff.Session(failures)
		case held == len(all):
			failures, pause = 0, heldPause
		default:
			failures = 0
		}
		if pause > 0 && !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// take returns the outcomes to store now, as many as a statement may settle.
func (s *settler) take() []*ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, bytes := 0, 0
	for most := min(len(s.waiting), s.pace.Most(mostStored)); n < most; n++ {
		if bytes += s.waiting[n].size(); n > 0 && bytes > mostBytes {
			break
		}
	}
	all := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	s.storing = n
	return all
}

// putBack keeps the outcomes that could not be stored, behind newer outcomes. It returns how many
// are kept.
func (s *settler) putBack(all []*ending, err error) (kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := slices.DeleteFunc(all, func(e *ending) bool { return e.gone })
	s.storing, s.err = 0, err
	s.waiting = append(s.waiting, rest...)
	jobrun.Wake(s.changed)
	return len(rest)
}

// settleOn stores outcomes. It returns the current state of each job, "" for a locked row. Jobs
// that are missing in the result are lost.
func (w *Worker) settleOn(ctx context.Context, on store.Querier, ends []end) (map[claim]State, error) {
	list, err := json.Marshal(ends)
	if err != nil {
		return nil, fmt.Errorf("jobs/table: store what became of jobs: %w", err)
	}
	type row struct {
		claim
		state State
	}
	rows, err := pgdriver.QueryAll(ctx, on, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.ID, &r.Claim, &r.state)
		return r, err
	}, w.sql.settle, string(list), w.host)
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
	settled, err := s.w.settleOn(ctx, on, ends)
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
	e.err = fmt.Errorf("PostgreSQL refuses to store that the job is %s: %w", e.end.To, errtext.Of(err))
	e.end = end{claim: e.run.Claim, To: StateFailed, Message: text(e.err)}
	settled, err := s.w.settleOn(ctx, on, []end{e.end})
	state, is := settled[e.run.Claim]
	if state == unchanged {
		err = errUnchanged
	}
	switch {
	case pgdriver.FaultOf(err) != pgdriver.FaultServer || state == unchanged:
		_ = s.w.refuse(observe.ConditionSettle, e.run.Claim.ID, fmt.Errorf("%w; and as failed: %w", e.err, err)) // a full list of refused rows does not block settling
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
	s.w.change(func(st *Status) {
		switch state {
		case StateCompleted:
			st.Completed++
		case StateErrored, StateFailed:
			st.Failed++
		}
	})
	s.w.observers.Notify(observe.JobDone{Job: e.run.header.job(), State: string(state), Failed: state == StateErrored || state == StateFailed, Err: e.err, Took: e.took})
	e.stored()
}

// lost records that another worker has the job of a run.
func (s *settler) lost(e *ending) {
	s.leave(e)
	s.w.change(func(st *Status) { st.Lost++ })
	s.w.observers.Notify(observe.JobLost{Job: e.run.header.job()})
	e.stored()
}

func (s *settler) leave(e *ending) {
	e.gone = true
	s.w.inFlight.Drop(e.run)
}

// finish waits until every outcome is stored. It gives up after finishLimit or when ctx ends.
func (s *settler) finish(ctx context.Context) error {
	late := time.NewTimer(finishLimit)
	defer late.Stop()
	for s.waits() > 0 {
		select {
		case <-s.changed:
			continue
		case <-late.C:
		case <-s.w.pool.Closed():
		case <-ctx.Done():
		}
		s.mu.Lock()
		n, err := s.coming+len(s.waiting)+s.storing, s.err
		s.mu.Unlock()
		if err == nil {
			err = errHeld
		}
		return fmt.Errorf("%w: %d jobs: %w", ErrUnsettled, n, errtext.Of(err))
	}
	return nil
}
