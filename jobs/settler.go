package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/turn"
)

// settler stores what became of jobs: whatever has gathered while the last statement
// ran, in the next. If the database does not answer, it keeps it and tries again; so it
// does with a job whose row another transaction has locked, and stores the others.
type settler struct {
	w         *Worker
	turn      turn.Turn
	tellsDone bool
	wake      chan struct{}
	changed   chan struct{} // something was stored

	storedAt time.Time     // the end of the last statement
	took     time.Duration // by it

	mu      sync.Mutex
	waiting []*ending
	locked  []*ending // their rows are, they are tried again
	flying  int       // in the statement that runs
	err     error
}

func newSettler(w *Worker) *settler {
	return &settler{w: w, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		tellsDone: w.voice.Hears(func(o *Observer) bool { return o.JobDone != nil })}
}

const (
	// mostStored bounds how many jobs a statement settles.
	mostStored = 2000
	// enough outcomes are stored at once, without waiting for more.
	enough = 200
	// mostUnsettled is how many outcomes may wait: then nothing more is claimed.
	mostUnsettled = 10_000
	// lockedOften is how often the row of a job was locked when somebody is told, about
	// two seconds after the first time.
	lockedOften = 10
	// finishLimit is how long a stop waits for outcomes to be stored.
	finishLimit = 15 * time.Second
)

func (s *settler) add(e *ending) {
	s.mu.Lock()
	s.waiting = append(s.waiting, e)
	s.mu.Unlock()
	signal(s.wake)
}

// landed takes note that a statement has stored a batch, but for jobs whose rows are
// locked.
func (s *settler) landed(batch []*ending) {
	s.mu.Lock()
	waited := s.unsettled() >= mostUnsettled
	s.flying -= len(batch)
	for _, e := range batch {
		if !e.told {
			e.locked++
			e.until = time.Now().Add(lockedPause(e.locked))
			s.locked = append(s.locked, e)
		}
	}
	s.mu.Unlock()
	signal(s.changed)
	if waited {
		s.w.wakeAll()
	}
}

// unsettled is how much is not stored.
func (s *settler) unsettled() int { return len(s.waiting) + len(s.locked) + s.flying }

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
	n, _ := s.status()
	return n >= mostUnsettled
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
	switch {
	case err == nil:
		s.landed(batch)
		s.stored(batch)
	case ctx.Err() != nil:
		s.putBack(batch)
	default:
		s.putBack(batch)
		s.fails(err)
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

// take returns what has gathered, and what was locked and is due again. next tells when
// there will be more of the latter, if there is nothing now.
func (s *settler) take(now time.Time) (batch []*ending, next <-chan time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.waiting), mostStored)
	batch = s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	var first time.Time
	s.locked = slices.DeleteFunc(s.locked, func(e *ending) bool {
		due := !now.Before(e.until) && len(batch) < mostStored
		if due {
			batch = append(batch, e)
		} else if first.IsZero() || e.until.Before(first) {
			first = e.until
		}
		return due
	})
	s.flying += len(batch)
	if len(batch) == 0 && !first.IsZero() {
		next = time.After(first.Sub(now))
	}
	return batch, next
}

// putBack keeps what could not be stored. Some of it may have been, without an
// answer; what is known to be stored is told, and is not kept.
func (s *settler) putBack(batch []*ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying -= len(batch)
	s.waiting = append(slices.DeleteFunc(batch, func(e *ending) bool { return e.told }), s.waiting...)
}

// stored takes note that a statement has succeeded. A row that stays locked is a trouble.
func (s *settler) stored(batch []*ending) {
	for _, e := range batch {
		if !e.told && e.locked >= lockedOften {
			s.fails(fmt.Errorf("jobs: what became of job %d cannot be stored: %w", e.run.row.ID, errRowLocked))
			return
		}
	}
	s.mu.Lock()
	stuck := slices.ContainsFunc(s.locked, func(e *ending) bool { return e.locked >= lockedOften })
	if !stuck {
		s.err = nil
	}
	s.mu.Unlock()
	if !stuck {
		s.w.recovered("settle", "")
	}
}

func (s *settler) fails(err error) {
	err = errtext.Of(err)
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.w.troubled("settle", "", func() {
		tell(s.w.voice, "SettleFailed", func(o *Observer) func(Trouble) { return o.SettleFailed }, Trouble{Err: err})
	})
}

func (s *settler) storeBounded(ctx context.Context, batch []*ending) error {
	ctx, cancel := context.WithTimeout(ctx, s.w.limit)
	defer cancel()
	return s.w.on(ctx, func(conn *sql.Conn) error { return s.store(ctx, conn, batch) })
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

func (s *settler) complete(ctx context.Context, on Querier, batch []*ending) error {
	if len(batch) == 0 {
		return nil
	}
	ids, err := s.w.queue.Complete(ctx, on, runsOf(batch))
	if err != nil {
		return err
	}
	states := make(map[int64]queue.State, len(ids))
	for _, id := range ids {
		states[id] = queue.Completed
	}
	return s.conclude(ctx, on, batch, states)
}

// storeOthers settles what takes more than to be completed. A batch with a value
// that PostgreSQL refuses is halved until it is found.
func (s *settler) storeOthers(ctx context.Context, on Querier, batch []*ending) error {
	if len(batch) == 0 {
		return nil
	}
	ends := make([]queue.End, len(batch))
	for i, e := range batch {
		ends[i] = e.end
	}
	settled, err := s.w.queue.Settle(ctx, on, ends)
	if pgdriver.IsInvalidValue(err) {
		if len(batch) > 1 {
			half := len(batch) / 2
			if err := s.storeOthers(ctx, on, batch[:half]); err != nil {
				return err
			}
			return s.storeOthers(ctx, on, batch[half:])
		}
		e := batch[0]
		e.err = coded(CodeResult, true, err, "PostgreSQL refuses the result or the error of the job: %v", errtext.Of(err))
		e.end = e.run.handler.decide(e.run.row, nil, e.err, nil)
		settled, err = s.w.queue.Settle(ctx, on, []queue.End{e.end})
	}
	if err != nil {
		return err
	}
	states := make(map[int64]queue.State, len(settled))
	for _, one := range settled {
		states[one.ID] = one.State
	}
	return s.conclude(ctx, on, batch, states)
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
