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
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// settler stores what became of jobs: whatever has gathered while the last statement
// ran, in the next. If the database does not answer, it keeps it and tries again.
type settler struct {
	w       *Worker
	pace    batch.Pace
	wake    chan struct{}
	changed chan struct{} // something was stored

	mu      sync.Mutex
	coming  int // no handler of them runs any more, and add gets them next
	waiting []*ending
	flying  int // in the statement that runs
	err     error
}

// ending is how a run has ended, as long as the database does not know it.
type ending struct {
	run    *run
	err    error
	took   time.Duration
	end    end
	stored func() // called when the settler is done with it
	gone   bool   // it is
}

// size is about how many bytes a statement has for the ending.
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
	// mostBytes bounds the bytes that it has for them.
	mostBytes = 4 << 20
	// heldPause is the pause before jobs are settled again whose rows somebody holds.
	heldPause = 200 * time.Millisecond
	// finishLimit is how long a stop waits for ends to be stored.
	finishLimit = 15 * time.Second
)

func newSettler(w *Worker) *settler {
	return &settler{w: w, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// expect takes note of an end that add gets next: a stop waits for it from now on.
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
	signal(s.wake)
	signal(s.w.wake) // no handler of it runs any more
}

// waits is how many ends the database does not know.
func (s *settler) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coming + len(s.waiting) + s.flying
}

// run stores until ctx ends.
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
			s.w.begin(observe.ConditionSettle) // leaves nothing out
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

// take returns what has gathered: as much as a statement may settle.
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
	s.flying = n
	return all
}

// putBack keeps what could not be stored, behind what has gathered since. It returns
// how much that is.
func (s *settler) putBack(all []*ending, err error) (kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := slices.DeleteFunc(all, func(e *ending) bool { return e.gone })
	s.flying, s.err = 0, err
	s.waiting = append(s.waiting, rest...)
	signal(s.changed)
	return len(rest)
}

// settleOn stores ends. It returns the state that each job has now, "" for a row that
// somebody holds. Those that are missing are lost.
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

// store settles jobs. It may be repeated with the same ones.
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
		state, is := settled[e.run.claim]
		switch {
		case !is:
			s.lost(e)
		case state == unchanged:
			if err := s.refused(ctx, on, e, errUnchanged); err != nil {
				return err
			}
		case state != "": // else somebody holds the row
			s.settled(e, state)
		}
	}
	return nil
}

// refused settles a job as failed whose row the table does not take as it should be. If
// the table refuses that, too, the row is left to stall.
func (s *settler) refused(ctx context.Context, on store.Querier, e *ending, err error) error {
	if m := e.end.Message; m != nil && pgdriver.IsInvalidValue(err) && errtext.ASCII(*m) != *m {
		ascii := errtext.ASCII(*m) // the database's encoding may not hold the other one
		e.end.Message = &ascii
		if err = s.store(ctx, on, []*ending{e}); err == nil || pgdriver.FaultOf(err) == pgdriver.FaultServer {
			return err
		}
	}
	e.err = fmt.Errorf("PostgreSQL refuses to store that the job is %s: %w", e.end.To, errtext.Of(err))
	e.end = end{claim: e.run.claim, To: StateFailed, Message: text(e.err)}
	settled, err := s.w.settleOn(ctx, on, []end{e.end})
	state, is := settled[e.run.claim]
	if state == unchanged {
		err = errUnchanged
	}
	switch {
	case pgdriver.FaultOf(err) != pgdriver.FaultServer || state == unchanged:
		_ = s.w.refuse(observe.ConditionSettle, e.run.claim.ID, fmt.Errorf("%w; and as failed: %w", e.err, err)) // one too many holds nothing up
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

// settled takes note of what has become of a job.
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

// lost takes note that a run's job is another's.
func (s *settler) lost(e *ending) {
	s.leave(e)
	s.w.change(func(st *Status) { st.Lost++ })
	s.w.observers.Notify(observe.JobLost{Job: e.run.header.job()})
	e.stored()
}

func (s *settler) leave(e *ending) {
	e.gone = true
	s.w.hand.drop(e.run)
}

// finish waits until everything is stored. It gives up when the database has not
// answered for a while.
func (s *settler) finish(ctx context.Context) error {
	late := time.NewTimer(finishLimit)
	defer late.Stop()
	for s.waits() > 0 {
		select {
		case <-s.changed:
			continue
		case <-late.C:
		case <-s.w.closed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		n, err := s.coming+len(s.waiting)+s.flying, s.err
		s.mu.Unlock()
		if err == nil {
			err = errHeld
		}
		return fmt.Errorf("%w: %d jobs: %w", ErrUnsettled, n, errtext.Of(err))
	}
	return nil
}
