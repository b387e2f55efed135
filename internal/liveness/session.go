package liveness

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Session is what a worker knows and holds between two failures. It keeps one
// connection for its statements: none waits for the pool, and with Lock the lock
// lasts as long. After any error, close it and open another: the connection may
// be dead, or lead to a standby.
type Session struct {
	Config
	registry *Registry

	Conn    *sql.Conn
	Backend int // the pid of the server's session, when it was opened
	Home    Home
	Opened  time.Time
	Beaten  time.Time // start of the last heartbeat; zero: not in this session
	Endless bool      // with Lock: the server lets sessions be idle for ever

	// overdue: the last heartbeat is older than the token, so that this
	// worker's death would not be noticed by its lock, or lies in the future, so
	// that its death would not be noticed at all. The next look sends one.
	overdue bool
	located time.Time          // start of the heartbeat whose server was compared last
	strange bool               // it was elsewhere then
	said    map[uuid.UUID]Said // of all workers
}

// Close ends the connection rather than giving it back to the pool: so its
// locks are free for certain, and nobody gets one that failed.
func (s *Session) Close() { pgdriver.Discard(s.Conn) }

func (s *Session) resolve(ctx context.Context) error {
	err := s.Conn.QueryRowContext(ctx, s.registry.sql.resolve, s.Nodes.SQL()).Scan(&s.Home.Schema, &s.Home.Table, &s.Backend)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("table %s does not exist: apply the migrations", s.Nodes)
	}
	if err != nil {
		return fmt.Errorf("look up table %s: %w", s.Nodes, err)
	}
	return nil
}

// Exec executes a statement that is to be answered within TimeLimit.
func (s *Session) Exec(ctx context.Context, what, query string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.TimeLimit())
	defer cancel()
	result, err := s.Conn.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return result.RowsAffected()
}

// Self is what a statement shows of the worker that executes it.
type Self struct {
	Beat       bool // it sent a heartbeat
	Registered bool // the worker's row is there
	Drain      bool // an operator has asked the worker to drain

	backend     int
	incarnation string // of the server that took the heartbeat; empty: nobody has put a token there
	proven      bool   // the heartbeat before this statement is of the same incarnation, and not ahead of the clock
}

// Into returns where to scan the columns of [Config.SelfSQL].
func (v *Self) Into() []any {
	return []any{&v.backend, &v.incarnation, &v.Registered, &v.proven, &v.Drain}
}

// Look executes a statement that has [Config.SelfSQL] in it. It sends a
// heartbeat along if one is due. see executes it once, or again without the
// status, if the server does not like that.
func (s *Session) Look(ctx context.Context, see func(ctx context.Context, beat bool, status string) (Self, error)) (v Self, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.TimeLimit())
	defer cancel()
	start := time.Now()
	beat := s.overdue || start.Sub(s.Beaten) >= s.HeartbeatInterval
	send := func(status string) error {
		v, err = see(ctx, beat, status)
		return err
	}
	if beat {
		err = s.report(send)
	} else {
		err = send("")
	}
	if err == nil {
		err = s.same(v.backend)
	}
	if err != nil {
		return v, err
	}
	v.Beat = beat
	if beat && v.Registered {
		s.Beaten = start
	}
	s.overdue = !beat && !v.proven
	return v, s.locate(v)
}

// errElsewhere ends a session. The primary that it leads to was abandoned, or the
// pool leads to several servers.
var errElsewhere = errors.New("this session leads to another server than the worker works on, and is given up: do several servers answer the connection string?")

// locate compares the server that took a heartbeat with that of the worker's
// work. Heartbeats on an abandoned primary succeed, and nobody sees them. After
// a crash one of the two may not have noticed yet, so it takes two comparisons,
// a heartbeat apart.
func (s *Session) locate(v Self) error {
	if !v.Beat || s.Elsewhere == nil || s.Beaten.Sub(s.located) < s.HeartbeatInterval {
		return nil
	}
	s.located = s.Beaten
	before := s.strange
	if s.strange = s.Elsewhere(v.incarnation); before && s.strange {
		return errElsewhere
	}
	return nil
}

// Known lists, as JSON, the workers whose names and details [Session.Complete] has.
func (s *Session) Known() (string, error) {
	known, err := json.Marshal(slices.AppendSeq([]uuid.UUID{}, maps.Keys(s.said)))
	return string(known), err
}

// Complete adds to the workers' rows whose locks are held, and what they say that
// is known.
func (s *Session) Complete(nodes []Node, held []int64) {
	locks := make(map[int64]bool, len(held))
	for _, key := range held {
		locks[key] = true
	}
	said := make(map[uuid.UUID]Said, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		n.Held = locks[s.Home.WorkerKey(n.ID)]
		if known, ok := s.said[n.ID]; ok {
			n.Said = known
		}
		said[n.ID] = n.Said
	}
	s.said = said
}

// Forget forgets what workers say.
func (s *Session) Forget() { s.said = nil }
