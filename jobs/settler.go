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
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// settler stores what became of jobs: whatever has gathered while the last statement
// ran, in the next. If the database does not answer, it keeps it and tries again. A job
// whose row another transaction has locked, or that the database refuses, is set aside and
// tried again, and the others are stored.
type settler struct {
	w       *Worker
	turn    watchdog.Iteration
	wake    chan struct{}
	changed chan struct{} // something was stored

	storedAt time.Time     // the end of the last statement
	took     time.Duration // by it
	pace     batch.Pace

	mu      sync.Mutex
	waiting []*ending
	aside   []*ending // locked or refused, they are tried again
	flying  int       // in the statement that runs
	bytes   int       // of all these
	err     error
}

func newSettler(w *Worker) *settler {
	return &settler{w: w, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

const (
	// mostStored bounds how many jobs a statement settles.
	mostStored = 2000
	// mostBytes bounds the bytes of the jobs that a statement settles, but for the first.
	mostBytes = 4 << 20
	// enough outcomes are stored at once, without waiting for more.
	enough = 200
	// mostUnsettled is how many outcomes may wait: then nothing more is claimed.
	mostUnsettled = 10_000
	// mostUnsettledBytes is how many bytes they may have, likewise.
	mostUnsettledBytes = 64 << 20
	// lockedOften is how often the row of a job was locked when somebody is told, about
	// two seconds after the first time.
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
	signal(s.wake)
}

// landed sorts a batch that was tried: what is told is done. What was refused, and what
// the statements have passed over since its row is locked, is set aside. The rest waits
// behind what has gathered since, so that others meet the statement first.
func (s *settler) landed(tried []*ending, err error) {
	now := time.Now()
	s.mu.Lock()
	waited := s.isFull()
	s.flying -= len(tried)
	for _, e := range tried {
		switch {
		case e.told:
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
	signal(s.changed)
	if waited {
		s.w.wakeAll()
	}
}

// unsettled is how much is not stored.
func (s *settler) unsettled() int { return len(s.waiting) + len(s.aside) + s.flying }

// isFull reports whether too much waits.
func (s *settler) isFull() bool {
	return s.unsettled() >= mostUnsettled || s.bytes >= mostUnsettledBytes
}

// lockedPause is the pause before a job is settled again whose row was locked so often.
func lockedPause(often int) time.Duration {
	return min(time.Second, time.Millisecond<<min(often, lockedOften))
}

// status returns how much waits, and why nothing can be stored.
func (s *settler) status() (waits int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsettled(), s.err
}

// full reports whether too much waits.
func (s *settler) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isFull()
}

// run stores until ctx ends.
func (s *settler) run(ctx context.Context) {
	for failures := 0; ; {
		if !s.gather(ctx) {
			return
		}
		batch, next := s.take(time.Now())
		if len(batch) == 0 {
			select {
			case <-s.wake:
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

// storeInTurn stores a batch, and tells what has come of it.
func (s *settler) storeInTurn(ctx context.Context, batch []*ending) error {
	s.turn.Begin()
	defer s.turn.End()
	begin := time.Now()
	err := s.storeBounded(ctx, batch)
	s.storedAt = time.Now()
	s.took = s.storedAt.Sub(begin)
	s.pace.Took(len(batch), s.took, s.w.limit, err)
	s.landed(batch, err)
	if ctx.Err() != nil {
		return err
	}
	s.tellAside(batch)
	if err != nil {
		s.fails(err)
	} else {
		s.stored()
	}
	return err
}

// gather waits a moment if the last statement was a moment ago, and little has
// gathered since: a statement for each few jobs would keep the server busy. It
// returns false when ctx ends.
func (s *settler) gather(ctx context.Context) bool {
	for {
		rest := time.Until(s.storedAt.Add(min(s.took, gather)))
		if n, _ := s.status(); n == 0 || n >= enough || rest <= 0 {
			return true
		}
		if !backoff.Sleep(ctx, min(rest, time.Millisecond)) {
			return false
		}
	}
}

// take returns what has gathered, and what was set aside and is due again: as much as a
// statement may settle. next tells when there will be more of the latter, if there is
// nothing now.
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
	s.flying += len(batch)
	if len(batch) == 0 && !first.IsZero() {
		next = time.After(first.Sub(now))
	}
	return batch, next
}

// tellAside tells of what a statement has set aside: of what it has refused the first time,
// and of a row that stays locked.
func (s *settler) tellAside(batch []*ending) {
	locked := false
	for _, e := range batch {
		switch {
		case e.told || e.why == nil:
		case e.why != errRowLocked:
			if e.refused == 1 {
				s.fails(e.trouble())
			}
		case e.locked >= lockedOften && !locked:
			locked = true
			s.fails(e.trouble())
		}
	}
}

// stored records that a statement has succeeded, and what it has set aside.
func (s *settler) stored() {
	s.mu.Lock()
	s.err = nil
	stuck := 0
	for _, e := range s.aside {
		if e.refused > 0 || e.locked >= lockedOften {
			stuck++
			s.err = cmp.Or(s.err, errtext.Of(e.trouble()))
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

// trouble is why what became of the job is not stored.
func (e *ending) trouble() error {
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

// store settles jobs. It may be repeated with the same ones: those that were not told are
// not settled, since their rows are locked. Statements answer with ids: of two runs of a
// job, the later one waits for the next statement.
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

// storeOthers settles what takes more than to be completed.
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

// each calls f with all. A job that the database refuses is set aside, and the others go on.
// One whose result PostgreSQL refuses fails. An error that the database's encoding does not
// hold is stored in ASCII.
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

// conclude takes note of what was stored. Jobs that a statement did not find were
// stored before, by one whose answer was lost, or are another's, or their rows are locked.
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
		e.told = before[id] != queue.Running
		switch state, ok := states[id]; {
		case ok:
			s.w.settled(e, state)
		case !e.told:
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

// finish waits until everything is stored. It gives up when the database has not
// answered for a while.
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

// signal wakes who waits at c, now or the next time.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
