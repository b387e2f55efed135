package frontier

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// A statement has a bound: no answer may ever come to a connection that has died
// in silence. The bound is short at first, as every consumer waits meanwhile.
const (
	firstLimit = 5 * time.Second
	lastLimit  = 30 * time.Second
	// limitKept is how long a bound that has passed counts.
	limitKept = 10 * time.Minute
)

// limit is the bound of a statement. It doubles each time that it passes: slow
// is not dead.
type limit struct {
	current time.Duration // 0: firstLimit
	passed  time.Time     // latest
}

func (l *limit) get() time.Duration { return max(l.current, firstLimit) }

// pass takes note that the bound has passed.
func (l *limit) pass(now time.Time) {
	if now.Sub(l.passed) > limitKept {
		l.current = firstLimit
	}
	l.current, l.passed = min(2*l.get(), lastLimit), now
}

// bounded bounds a statement until the returned function is called.
func (f *Frontier) bounded(ctx context.Context) (context.Context, func()) {
	bound, cancel := context.WithTimeout(ctx, f.limit.get())
	return bound, func() {
		if bound.Err() != nil && ctx.Err() == nil {
			f.limit.pass(time.Now())
		}
		cancel()
	}
}

// Session is one life of the frontier on one connection: the machine and the
// statements that it asks for, each in a transaction of its own. After any
// error it knows nothing for certain: close it and open another.
type Session struct {
	f       *Frontier
	conn    *sql.Conn
	origin  origin
	sql     statements
	machine *machine
	shown   *Value // published last by this session
	looked  bool   // at the log, with success
	opened  time.Time
	failed  bool // a statement did
	reads   bounded.Reader
	now     func() time.Time
}

// Open takes a connection and finds out where the log's positions come from.
// Run calls it; so do tests that step by themselves.
func (f *Frontier) Open(ctx context.Context) (*Session, error) {
	ctx, end := f.bounded(ctx)
	defer end()
	conn, err := f.cfg.DB.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("frontier: take a connection: %w", err)
	}
	o, err := f.cfg.resolve(ctx, conn)
	if err != nil {
		pgdriver.Discard(conn)
		return nil, err
	}
	return &Session{
		f:      f,
		conn:   conn,
		origin: o,
		sql:    o.statements(f.cfg.Token, f.cfg.Settled, f.cfg.Changes),
		now:    time.Now,
		opened: time.Now(),
		machine: newMachine(rules{
			policy:     f.cfg.Policy,
			staleAfter: f.cfg.StaleAfter,
			harborLag:  f.cfg.HarborLag,
			interval:   f.cfg.Interval,
			raiseEvery: time.Second,
			named:      o.named,
		}, jitter),
	}, nil
}

// jitter keeps the frontiers of several workers apart.
func jitter(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}

// Close gives the connection back. After an error it ends it: it may lead to a
// server that nobody should ask again.
func (s *Session) Close() {
	if s.failed {
		pgdriver.Discard(s.conn)
		return
	}
	_ = s.conn.Close()
}

// Wait waits until the next statement is due, or Wake was called. It reports
// false if ctx ended.
func (s *Session) Wait(ctx context.Context) bool {
	d := s.machine.next(s.now()).at.Sub(s.now())
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.f.wake:
		s.heed()
		s.machine.wake(s.now())
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// Step runs exactly the next statement, due or not, and publishes what it
// shows.
func (s *Session) Step(ctx context.Context) error {
	ctx, end := s.f.bounded(ctx)
	defer end()
	s.heed()
	a := s.machine.next(s.now())
	if err := s.run(ctx, a); err != nil {
		s.failed = true
		return err
	}
	s.report(ctx, a)
	return nil
}

// heed passes on what consumers have asked for.
func (s *Session) heed() {
	if s.f.follow.Swap(false) {
		s.machine.follow()
	}
}

// run runs one statement and gives its answer to the machine.
func (s *Session) run(ctx context.Context, a action) error {
	m := s.machine
	switch a.do {
	case readStart:
		r, err := s.readStart(ctx)
		if err == nil {
			m.onStart(s.now(), r)
		}
		return err
	case plantToken:
		err := s.exec(ctx, "put a token into its table", s.sql.plant, s.origin.database, uuid.NewString())
		m.onDone()
		return err
	case placeSettled:
		err := s.exec(ctx, "place the settled row", s.sql.place, s.origin.key(), a.last)
		m.onDone()
		return err
	case readTail:
		r, err := s.readTail(ctx, a.after, a.limit)
		if err == nil {
			s.looked = true
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
		events, more, err := s.readRows(ctx, a.after, a.limit)
		if errors.Is(err, store.ErrIncarnation) {
			m.forget()
			return nil
		}
		if err == nil {
			m.onRows(s.now(), rowsRead{events, more})
		}
		return err
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

// report publishes what a statement has changed.
func (s *Session) report(ctx context.Context, a action) {
	if m := s.machine; m.started() && (a.do == readTail || a.do == readHead) && m.todo.do != readHead {
		s.f.head.Store(m.head)
	}
	if v := s.machine.value; v != nil && v != s.shown {
		s.shown = v
		s.f.publish(v)
	}
	if a.do == scanLocks || len(*s.f.blocked.Load()) > 0 || len(s.f.told) > 0 {
		blocked := s.machine.blocked()
		s.f.blocked.Store(&blocked)
		s.free(blocked)
	}
	for _, h := range s.machine.takeTurned() {
		s.tell(ctx, h)
	}
}

// tell reports a transaction that became stale.
func (s *Session) tell(ctx context.Context, h Holder) {
	msg := "a transaction stays open, going on past it: its events would come late"
	if s.f.cfg.Policy == Wait {
		msg = "a transaction stays open and holds back all events behind its positions"
	}
	s.f.cfg.Logger.Info(ctx, msg, "virtualtransaction", h.VirtualTransaction, "pid", h.PID, "gid", h.GID,
		"application_name", h.ApplicationName, "state", h.State, "age", h.Age, "remedy", h.Remedy())
	if s.f.told[h.VirtualTransaction] = h; s.f.cfg.OnStale != nil {
		s.f.cfg.OnStale(h)
	}
}

// free reports the stale transactions that are not among the blocking ones any
// more. A new session does not know yet which these are.
func (s *Session) free(blocked []Holder) {
	if !s.looked || s.machine.first && s.machine.wantsScan() {
		return
	}
	for id, h := range s.f.told {
		if slices.ContainsFunc(blocked, func(b Holder) bool { return b.VirtualTransaction == id }) {
			continue
		}
		if delete(s.f.told, id); s.f.cfg.OnFree != nil {
			s.f.cfg.OnFree(h)
		}
	}
}

func (s *Session) exec(ctx context.Context, what, query string, args ...any) error {
	if _, err := s.conn.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("frontier: %s: %w", what, err)
	}
	return nil
}

// seen is what every statement on a log whose sequence is known returns.
type seen struct {
	token                 string
	changes               int64
	table, sequence, file int64
	last                  int64
}

// read runs a query that returns one row: seen and then more.
func (s *Session) read(ctx context.Context, what, query string, args []any, more ...any) (seen, error) {
	var v seen
	args = append([]any{s.origin.database, s.origin.table}, args...)
	err := s.conn.QueryRowContext(ctx, query, args...).Scan(append([]any{&v.token, &v.changes, &v.table, &v.sequence, &v.file, &v.last}, more...)...)
	if err != nil {
		return v, fmt.Errorf("frontier: %s: %w", what, err)
	}
	s.f.noticeChanges(v.changes)
	if v.table != s.origin.tableOID || v.sequence != s.origin.sequenceOID || v.file != s.origin.file {
		return v, setupError(ErrLogReplaced, "nothing to do, the frontier starts anew", "table %s or sequence %s is not what it was", s.origin.table, s.origin.sequence)
	}
	return v, nil
}

// checkAbove refuses visible positions that the sequence has not issued yet:
// it will issue them, or those below them, later.
func (s *Session) checkAbove(position, last int64) error {
	if position <= last {
		return nil
	}
	return setupError(ErrSequenceBehind, fmt.Sprintf("SELECT setval('%s', (SELECT max(%s) FROM %s))", s.origin.sequence, s.origin.column, s.origin.table),
		"position %d is visible, but sequence %s has come to %d only", position, s.origin.sequence, last)
}

func (s *Session) readStart(ctx context.Context) (startRead, error) {
	if !s.origin.named {
		token, err := s.readToken(ctx)
		return startRead{token: token, found: true}, err
	}
	var settled int64
	v, err := s.read(ctx, "read the token and the settled row", s.sql.start, []any{s.origin.key()}, &settled)
	return startRead{token: v.token, settled: settled, found: settled >= 0, last: v.last}, err
}

// readToken is a statement of its own for a log that is read through its
// store: two equal tokens around a read tell in which life it was.
func (s *Session) readToken(ctx context.Context) (token string, err error) {
	var changes int64
	if err = s.conn.QueryRowContext(ctx, s.sql.token, s.origin.database).Scan(&token, &changes); err != nil {
		return "", fmt.Errorf("frontier: read the token: %w", err)
	}
	s.f.noticeChanges(changes)
	return token, nil
}

func (s *Session) readTail(ctx context.Context, after int64, limit int) (tailRead, error) {
	if !s.origin.named {
		return s.readUnnamedTail(ctx, after)
	}
	var list string
	v, err := s.read(ctx, "read the tail of the log", s.sql.tail, []any{after, limit}, &list)
	if err != nil {
		return tailRead{}, err
	}
	runs, n, err := parseRuns(list)
	if err != nil {
		return tailRead{}, err
	}
	if n > 0 {
		err = s.checkAbove(runs[len(runs)-1].Last, v.last)
	}
	return tailRead{token: v.token, last: v.last, runs: runs, full: n >= limit}, err
}

func (s *Session) readUnnamedTail(ctx context.Context, after int64) (tailRead, error) {
	// The token comes with the statement behind it.
	events, more, err := s.readEvents(ctx, s.f.cfg.Log, after, tailLimit)
	if err != nil {
		return tailRead{}, err
	}
	r := tailRead{full: more}
	for i := range events {
		r.runs = appendPosition(r.runs, events[i].GlobalPosition)
	}
	r.token, err = s.readToken(ctx)
	return r, err
}

// readRows reads events that are published without another look at them, so
// they must stem from the incarnation of the machine.
func (s *Session) readRows(ctx context.Context, after int64, limit int) (events []store.PersistedEvent, more bool, err error) {
	log := s.f.cfg.Log
	if bound, ok := log.(store.BoundLog); ok {
		log = bound.At(s.machine.token)
	}
	return s.readEvents(ctx, log, after, limit)
}

func (s *Session) readEvents(ctx context.Context, log store.Log, after int64, limit int) (events []store.PersistedEvent, more bool, err error) {
	events, more, err = s.reads.Events(ctx, log, s.conn, after, limit)
	if err != nil {
		return nil, false, fmt.Errorf("frontier: read the events at the end of the log: %w", err)
	}
	return events, more, nil
}

func (s *Session) readHead(ctx context.Context) (headRead, error) {
	if !s.origin.named {
		head, err := s.f.cfg.Log.GetLatestGlobalPosition(ctx, s.conn)
		if err != nil {
			return headRead{}, fmt.Errorf("frontier: read the head of the log: %w", err)
		}
		token, err := s.readToken(ctx)
		return headRead{token: token, head: head}, err
	}
	var head int64
	v, err := s.read(ctx, "read the head of the log", s.sql.head, nil, &head)
	if err == nil {
		err = s.checkAbove(head, v.last)
	}
	return headRead{token: v.token, last: v.last, head: head}, err
}

func (s *Session) scanLocks(ctx context.Context) (scanRead, error) {
	var r scanRead
	var holders string
	var err error
	if s.origin.named {
		r.token, holders, err = s.scanNamed(ctx)
	} else {
		r.token, holders, err = s.scanUnnamed(ctx)
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(holders), &r.holders); err != nil {
		return r, fmt.Errorf("frontier: scan the locks: %w", err)
	}
	return r, nil
}

func (s *Session) scanNamed(ctx context.Context) (token, holders string, err error) {
	var hidden bool
	var set settings
	v, err := s.read(ctx, "scan the locks", s.sql.scan, []any{s.origin.sequenceOID}, &hidden, &set.cache, &set.increment, &set.cycle, &holders)
	if err != nil {
		return "", "", err
	}
	if hidden {
		return "", "", rowSecurityError(s.origin.table)
	}
	return v.token, holders, set.check(s.origin.sequence)
}

func (s *Session) scanUnnamed(ctx context.Context) (token, holders string, err error) {
	if err := s.conn.QueryRowContext(ctx, s.sql.scan, s.origin.database).Scan(&holders); err != nil {
		return "", "", fmt.Errorf("frontier: scan the locks: %w", err)
	}
	token, err = s.readToken(ctx)
	return token, holders, err
}

// parseRuns reads ascending positions separated by commas.
func parseRuns(list string) (runs []store.Range, n int, err error) {
	for rest := list; rest != ""; n++ {
		var field string
		field, rest, _ = strings.Cut(rest, ",")
		position, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("frontier: read the tail of the log: %w", err)
		}
		runs = appendPosition(runs, position)
	}
	return runs, n, nil
}
