package frontier

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// session is the frontier on one connection. It runs the statements that the machine requests,
// each in a transaction of its own. After an error, close the session and open another.
type session struct {
	f       *Frontier
	conn    *sql.Conn
	on      pgdriver.Conn // conn with prepared statements
	origin  origin
	sql     statements
	machine *machine
	shown   *Value // the latest Value that this session published
	hasRead bool   // the log has been read successfully
	opened  time.Time
	failed  bool // a statement failed
	reads   bounded.Reader
	now     func() time.Time
}

// open takes a connection and finds the source of the log's positions.
func (f *Frontier) open(ctx context.Context) (*session, error) {
	ctx, end := f.bounded(ctx)
	defer end()
	conn, err := pgdriver.Pool{DB: f.cfg.DB}.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("frontier: take a connection: %w", err)
	}
	o, err := f.cfg.resolve(ctx, conn)
	if err != nil {
		pgdriver.Discard(conn)
		return nil, err
	}
	return &session{
		f:      f,
		conn:   conn,
		on:     f.plans.Conn(conn),
		origin: o,
		sql:    o.statements(f.cfg.Token, f.cfg.Settled, f.cfg.Changes),
		now:    time.Now,
		opened: time.Now(),
		machine: newMachine(rules{
			strict:     f.cfg.Strict,
			staleAfter: f.cfg.StaleAfter,
			harborLag:  f.cfg.HarborLag,
			interval:   f.cfg.Interval,
			raiseEvery: time.Second,
			named:      o.named,
		}, jitter),
	}, nil
}

// jitter spreads d by a quarter in both directions, so that the frontiers of several workers
// do not scan together.
func jitter(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}

// close returns the connection to the pool. After an error close discards the connection,
// which may lead to a server that must not be used again.
func (s *session) close() {
	if s.failed {
		pgdriver.Discard(s.conn)
		return
	}
	_ = s.conn.Close()
}

// wait waits until the next statement is due or Wake is called. It returns false if ctx ended.
func (s *session) wait(ctx context.Context) bool {
	d := s.machine.next(s.now()).at.Sub(s.now())
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.f.wake:
		s.woken()
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// woken passes a wakeup to the machine.
func (s *session) woken() {
	s.applyFollow()
	s.machine.wake(s.now())
}

// step runs the next statement, even if the statement is not due, and publishes the result.
func (s *session) step(ctx context.Context) error {
	ctx, end := s.f.bounded(ctx)
	defer end()
	s.applyFollow()
	a := s.machine.next(s.now())
	if err := s.run(ctx, a); err != nil {
		s.failed = true
		return err
	}
	s.report(a)
	return nil
}

// applyFollow passes the consumers' Follow to the machine.
func (s *session) applyFollow() {
	if s.f.follow.Swap(false) {
		s.machine.follow()
	}
}

// run runs one statement and passes its answer to the machine.
func (s *session) run(ctx context.Context, a action) error {
	m := s.machine
	switch a.do {
	case readStart:
		r, err := s.readStart(ctx)
		if err == nil {
			m.onStart(s.now(), r)
		}
		return err
	case insertToken:
		err := s.exec(ctx, "insert the token", s.sql.insert, s.origin.database, uuid.NewString())
		m.onDone()
		return err
	case placeSettled:
		err := s.exec(ctx, "place the settled row", s.sql.place, s.origin.key(), a.last)
		m.onDone()
		return err
	case readTail:
		r, err := s.readTail(ctx, a.after, a.limit)
		if err == nil {
			s.hasRead = true
			m.onTail(s.now(), r)
		}
		return err
	case readHead:
		r, err := s.readHead(ctx)
		if err == nil {
			m.onHead(s.now(), r)
		}
		return err
	case readRows:
		return s.runRows(ctx, a)
	case scanLocks:
		r, err := s.scanLocks(ctx)
		if err == nil {
			m.onScan(s.now(), r)
		}
		return err
	case raiseSettled:
		err := s.exec(ctx, "raise the settled row", s.sql.raise, s.origin.key(), a.settled, m.token, s.origin.database)
		m.onRaised(s.now(), a.settled)
		return err
	}
	return fmt.Errorf("frontier: unknown statement %d", a.do)
}

// runRows runs readRows. An error of the rows is no error of the session: the consumers meet it
// when they read the rows themselves.
func (s *session) runRows(ctx context.Context, a action) error {
	events, more, err := s.readRows(ctx, a.after, a.limit)
	switch {
	case err == nil:
		s.machine.onRows(s.now(), rowsRead{events, more})
	case errors.Is(err, store.ErrIncarnation):
		s.machine.forget()
	case ctx.Err() != nil || pgdriver.IsConnectionLoss(err):
		return err
	default:
		s.machine.onUnreadable(s.now())
	}
	return nil
}

// report publishes the changes that a statement made.
func (s *session) report(a action) {
	if m := s.machine; m.started() && (a.do == readTail || a.do == readHead) && m.todo.do != readHead {
		s.f.head.Store(m.head)
	}
	if v := s.machine.value; v != nil && v != s.shown {
		s.shown = v
		s.f.publish(v)
	}
	if a.do == scanLocks || len(*s.f.blocked.Load()) > 0 || len(s.f.reported) > 0 {
		blocked := s.machine.blocked()
		s.f.blocked.Store(&blocked)
		s.reportFreed(blocked)
	}
	for _, h := range s.machine.takeNewlyStale() {
		s.reportStale(h)
	}
}

// reportStale reports a holder that became stale.
func (s *session) reportStale(h Holder) {
	if s.f.reported[h.VirtualTransaction] = h; s.f.cfg.OnStale != nil {
		s.f.cfg.OnStale(h)
	}
}

// reportFreed reports the stale holders that no longer block. A new session knows the blocking
// holders only after its first fence.
func (s *session) reportFreed(blocked []Holder) {
	if !s.hasRead || s.machine.first && s.machine.wantsScan() {
		return
	}
	for id, h := range s.f.reported {
		if slices.ContainsFunc(blocked, func(b Holder) bool { return b.VirtualTransaction == id }) {
			continue
		}
		if delete(s.f.reported, id); s.f.cfg.OnFree != nil {
			s.f.cfg.OnFree(h)
		}
	}
}

func (s *session) exec(ctx context.Context, what, query string, args ...any) error {
	if _, err := s.on.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("frontier: %s: %w", what, err)
	}
	return nil
}
