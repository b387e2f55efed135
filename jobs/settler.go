package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// settler stores the outcomes of jobs. The outcomes that gather while a statement runs are stored
// by the next statement. While the database does not answer, the settler keeps the outcomes and
// retries. A job whose row is locked or refused is set aside and retried, and the others are
// stored.
type settler struct {
	w       *Worker
	turn    watchdog.Iteration
	woken   chan struct{}
	changed chan struct{} // signalled after each statement

	storedAt time.Time     // the end of the last statement
	took     time.Duration // duration of the last statement
	pace     batch.Pace

	mu      sync.Mutex
	waiting []*ending
	aside   []*ending // locked or refused, to be retried
	storing int       // outcomes in the current statement
	bytes   int       // of all outcomes that are not stored
	err     error
}

func newSettler(w *Worker) *settler {
	return &settler{w: w, woken: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

const (
	// mostStored bounds how many jobs a statement settles.
	mostStored = 2000
	// mostBytes bounds the bytes of the jobs that a statement settles. The first job of a statement
	// may exceed the bound.
	mostBytes = 4 << 20
	// fullBatch is how many outcomes are stored at once, without a pause to gather more.
	fullBatch = 200
	// mostUnsettled is how many outcomes may wait. Above this number the worker claims no jobs.
	mostUnsettled = 10_000
	// mostUnsettledBytes is how many bytes of outcomes may wait. Above this size the worker claims
	// no jobs.
	mostUnsettledBytes = 64 << 20
	// lockedOften is how often a job's row must be found locked before an observer is notified.
	// That is about two seconds after the first time.
	lockedOften = 10
	// finishLimit is how long a stop waits for outcomes to be stored.
	finishLimit = 15 * time.Second
)

func (s *settler) add(e *ending) {
	e.bytes = e.size()
	s.mu.Lock()
	s.waiting = append(s.waiting, e)
	s.bytes += e.bytes
	s.mu.Unlock()
	jobrun.Wake(s.woken)
}

// finishBatch sorts a batch after its statements. Concluded outcomes are done. Refused outcomes,
// and outcomes of locked rows, are set aside. After an error, the rest waits behind newer outcomes,
// so that the next statement has other jobs.
func (s *settler) finishBatch(tried []*ending, err error) {
	now := time.Now()
	s.mu.Lock()
	waited := s.isFull()
	s.storing -= len(tried)
	for _, e := range tried {
		switch {
		case e.concluded:
			s.bytes -= e.bytes
			continue
		case e.why != nil:
			e.refused++
			e.until = now.Add(batch.Pause(e.refused))
		case err != nil:
			s.waiting = append(s.waiting, e)
			continue
		default:
			e.why = errRowLocked
			e.locked++
			e.until = now.Add(lockedPause(e.locked))
		}
		s.aside = append(s.aside, e)
	}
	s.mu.Unlock()
	jobrun.Wake(s.changed)
	if waited {
		s.w.wakeLoops()
	}
}

// unsettled returns how many outcomes are not stored.
func (s *settler) unsettled() int { return len(s.waiting) + len(s.aside) + s.storing }

// isFull reports whether too many outcomes wait.
func (s *settler) isFull() bool {
	return s.unsettled() >= mostUnsettled || s.bytes >= mostUnsettledBytes
}

// lockedPause returns the pause before a job is settled again whose row was locked this often.
func lockedPause(often int) time.Duration {
	return min(time.Second, time.Millisecond<<min(often, lockedOften))
}

// status returns how many outcomes wait, and why they cannot be stored.
func (s *settler) status() (waits int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsettled(), s.err
}

// full reports whether too many outcomes wait.
func (s *settler) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isFull()
}

// run stores outcomes until ctx ends.
func (s *settler) run(ctx context.Context) {
	for failures := 0; ; {
		if !s.gather(ctx) {
			return
		}
		batch, next := s.take(time.Now())
		if len(batch) == 0 {
			select {
			case <-s.woken:
				continue
			case <-next:
				continue
			case <-ctx.Done():
				return
			}
		}
		if s.storeInTurn(ctx, batch) == nil {
			failures = 0
			continue
		}
		failures++
		if !backoff.Sleep(ctx, backoff.Session(failures)) {
			return
		}
	}
}

// storeInTurn stores a batch and reports the result to observers.
func (s *settler) storeInTurn(ctx context.Context, batch []*ending) error {
	s.turn.Begin()
	defer s.turn.End()
	begin := time.Now()
	err := s.storeBounded(ctx, batch)
	s.storedAt = time.Now()
	s.took = s.storedAt.Sub(begin)
	s.pace.Took(len(batch), s.took, s.w.limit, err)
	s.finishBatch(batch, err)
	if ctx.Err() != nil {
		return err
	}
	s.reportAside(batch)
	if err != nil {
		s.fails(err)
	} else {
		s.stored()
	}
	return err
}

// gather pauses if the last statement was a moment ago and few outcomes have gathered since.
// Without the pause, a statement for every few jobs would keep the server busy. gather reports
// false when ctx ends.
func (s *settler) gather(ctx context.Context) bool {
	for {
		rest := time.Until(s.storedAt.Add(min(s.took, gather)))
		if n, _ := s.status(); n == 0 || n >= fullBatch || rest <= 0 {
			return true
		}
		if !backoff.Sleep(ctx, min(rest, time.Millisecond)) {
			return false
		}
	}
}

// take returns the outcomes to store now, as many as a statement may settle. It takes waiting
// outcomes first, then outcomes set aside whose retry is due. If there are none now, next fires
// when the next retry is due.
func (s *settler) take(now time.Time) (batch []*ending, next <-chan time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most, bytes := s.pace.Most(mostStored), 0
	fits := func(e *ending) bool {
		if bytes += e.bytes; len(batch) > 0 && (bytes > mostBytes || len(batch) == most) {
			return false
		}
		e.why = nil
		batch = append(batch, e)
		return true
	}
	n := 0
	for n < len(s.waiting) && fits(s.waiting[n]) {
		n++
	}
	s.waiting = s.waiting[n:]
	var first time.Time
	s.aside = slices.DeleteFunc(s.aside, func(e *ending) bool {
		if !now.Before(e.until) && fits(e) {
			return true
		}
		if first.IsZero() || e.until.Before(first) {
			first = e.until
		}
		return false
	})
	s.storing += len(batch)
	if len(batch) == 0 && !first.IsZero() {
		next = time.After(first.Sub(now))
	}
	return batch, next
}

// reportAside notifies observers of outcomes that were set aside: at the first refusal, and for one
// row that stays locked.
func (s *settler) reportAside(batch []*ending) {
	locked := false
	for _, e := range batch {
		switch {
		case e.concluded || e.why == nil:
		case e.why != errRowLocked:
			if e.refused == 1 {
				s.fails(e.failure())
			}
		case e.locked >= lockedOften && !locked:
			locked = true
			s.fails(e.failure())
		}
	}
}

// stored records that a statement has succeeded, and why outcomes are still set aside.
func (s *settler) stored() {
	s.mu.Lock()
	s.err = nil
	stuck := 0
	for _, e := range s.aside {
		if e.refused > 0 || e.locked >= lockedOften {
			stuck++
			s.err = cmp.Or(s.err, errtext.Of(e.failure()))
		}
	}
	if stuck > 1 {
		s.err = fmt.Errorf("%w (and %d more jobs)", s.err, stuck-1)
	}
	s.mu.Unlock()
	if stuck == 0 {
		s.w.observers.End(about(observe.ConditionSettle, ""))
	}
}

// failure returns why the outcome of the job is not stored.
func (e *ending) failure() error {
	return fmt.Errorf("jobs: what became of job %d cannot be stored: %w", e.run.row.ID, e.why)
}

func (s *settler) fails(err error) {
	err = errtext.Of(err)
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.w.observers.Begin(about(observe.ConditionSettle, ""), err)
	s.w.observers.Notify(observe.SettleFailed{Err: err})
}

func (s *settler) storeBounded(ctx context.Context, batch []*ending) error {
	ctx, cancel := context.WithTimeout(ctx, s.w.limit)
	defer cancel()
	return s.w.on(ctx, func(conn *sql.Conn) error { return s.store(ctx, s.w.planned(conn, conn), batch) })
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
		if e.end.To == queue.Completed && e.end.Result == nil {
			bare = append(bare, e)
		} else {
			others = append(others, e)
		}
	}
	if err := s.complete(ctx, on, bare); err != nil {
		return err
	}
	if err := s.storeOthers(ctx, on, others); err != nil || len(later) == 0 {
		return err
	}
	return s.store(ctx, on, later)
}

func (s *settler) complete(ctx context.Context, on Querier, all []*ending) error {
	return s.each(ctx, on, all, func(part []*ending) error {
		ids, err := s.w.queue.Complete(ctx, on, runsOf(part))
		if err != nil {
			return err
		}
		states := make(map[int64]queue.State, len(ids))
		for _, id := range ids {
			states[id] = queue.Completed
		}
		return s.conclude(ctx, on, part, states)
	})
}

// storeOthers settles the jobs that are not completed, and those that have a result.
func (s *settler) storeOthers(ctx context.Context, on Querier, all []*ending) error {
	return s.each(ctx, on, all, func(part []*ending) error { return s.settle(ctx, on, part) })
}

func (s *settler) settle(ctx context.Context, on Querier, part []*ending) error {
	ends := make([]queue.End, len(part))
	for i, e := range part {
		ends[i] = e.end
	}
	settled, err := s.w.queue.Settle(ctx, on, ends)
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
		e.why = s.w.refusal(e.run.row.ID, err)
		return nil
	})
}

// conclude records which outcomes are stored. A job may be missing in states for three reasons. An
// earlier statement has stored its outcome, and the answer was lost. Another worker has the job. Or
// the row of the job is locked.
func (s *settler) conclude(ctx context.Context, on Querier, batch []*ending, states map[int64]queue.State) error {
	var missing []*ending
	for _, e := range batch {
		if _, ok := states[e.run.row.ID]; !ok {
			missing = append(missing, e)
		}
	}
	before := map[int64]queue.State{}
	if len(missing) > 0 {
		settled, err := s.w.queue.Judge(ctx, on, runsOf(missing))
		if err != nil {
			return err
		}
		for _, one := range settled {
			before[one.ID] = one.State
		}
	}
	for _, e := range batch {
		id := e.run.row.ID
		e.concluded = before[id] != queue.Running
		switch state, ok := states[id]; {
		case ok:
			s.w.settled(e, state)
		case !e.concluded:
		case before[id] != "":
			s.w.settledBefore(e, before[id])
		default:
			s.w.lost(e.run)
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

// finish waits until every outcome is stored. It gives up after finishLimit or when ctx ends.
func (s *settler) finish(ctx context.Context) error {
	late := time.After(finishLimit)
	for {
		n, err := s.status()
		if n == 0 {
			return nil
		}
		select {
		case <-s.changed:
		case <-late:
			return unsettled(n, err)
		case <-ctx.Done():
			return unsettled(n, err)
		}
	}
}
