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

// Session is the state of a worker between two failures. It keeps one connection for its
// statements, so no statement waits for the pool. With Lock, the lock lasts as long as the
// connection. After an error, close the session and open another: the connection may be dead
// or lead to a standby.
type Session struct {
	Config
	registry *Registry

	Conn    *sql.Conn
	Backend int // pid of the server's process when the session was opened
	Home    Home
	Opened  time.Time
	Beaten  time.Time // start of the latest heartbeat; zero: none in this session
	Endless bool      // with Lock: the server has no idle_session_timeout

	// overdue makes the next poll send a heartbeat. It is set if the last heartbeat is older
	// than the token: the lock would not prove this worker's death. It is also set if the last
	// heartbeat lies in the future, so that nothing would prove it.
	overdue    bool
	located    time.Time             // start of the heartbeat whose server was compared last
	failedOver bool                  // that comparison found another server
	profiles   map[uuid.UUID]Profile // of all workers
}

// Close discards the connection instead of returning it to the pool. So the locks are
// certainly free, and no other user gets a failed connection.
func (s *Session) Close() { pgdriver.Discard(s.Conn) }

func (s *Session) resolve(ctx context.Context) error {
	err := s.Conn.QueryRowContext(ctx, s.registry.sql.resolve, s.Nodes.SQL()).Scan(&s.Home.Schema, &s.Home.Table, &s.Backend)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("table %s does not exist: apply the migrations", s.Nodes)
	}
	if err != nil {
		return fmt.Errorf("find table %s: %w", s.Nodes, err)
	}
	return nil
}

// Exec executes a statement with TimeLimit.
func (s *Session) Exec(ctx context.Context, what, query string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.TimeLimit())
	defer cancel()
	result, err := s.Conn.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return result.RowsAffected()
}

// Self is the part of an answer that concerns the worker that executes the statement.
type Self struct {
	Beat       bool // the statement sent a heartbeat
	Registered bool // the worker's row exists
	Drain      bool // an operator has asked the worker to drain

	backend     int
	incarnation string // of the server that took the heartbeat; empty: the server has no token yet
	proven      bool   // the previous heartbeat is of the same incarnation, and does not lie in the future
}

// Into returns the destinations of the columns of [Config.SelfSQL].
func (v *Self) Into() []any {
	return []any{&v.backend, &v.incarnation, &v.Registered, &v.proven, &v.Drain}
}

// Poll executes a statement that contains [Config.SelfSQL], and sends a heartbeat if one is
// due. query executes the statement. If the server rejects the status, Poll calls query again
// without a status.
func (s *Session) Poll(ctx context.Context, query func(ctx context.Context, beat bool, status string) (Self, error)) (v Self, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.TimeLimit())
	defer cancel()
	start := time.Now()
	beat := s.overdue || start.Sub(s.Beaten) >= s.HeartbeatInterval
	send := func(status string) error {
		v, err = query(ctx, beat, status)
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

// errFailover ends a session. Either the session leads to an abandoned primary, or the pool
// leads to several servers.
var errFailover = errors.New("this session leads to another server than the worker works on, and is closed: do several servers answer the connection string?")

// locate compares the server that took a heartbeat with the server of the worker's work.
// Heartbeats on an abandoned primary succeed, and no other worker reads them. After a crash,
// one of the two connections may not have detected the crash yet. So locate needs two
// comparisons, a heartbeat apart.
func (s *Session) locate(v Self) error {
	if !v.Beat || s.FailedOver == nil || s.Beaten.Sub(s.located) < s.HeartbeatInterval {
		return nil
	}
	s.located = s.Beaten
	before := s.failedOver
	if s.failedOver = s.FailedOver(v.incarnation); before && s.failedOver {
		return errFailover
	}
	return nil
}

// Known returns, as a JSON list, the workers whose names and details [Session.Complete] knows.
func (s *Session) Known() (string, error) {
	known, err := json.Marshal(slices.AppendSeq([]uuid.UUID{}, maps.Keys(s.profiles)))
	return string(known), err
}

// Complete sets the held locks in the workers' rows, and the names and details that the
// statement left out.
func (s *Session) Complete(nodes []Node, held []int64) {
	locks := make(map[int64]bool, len(held))
	for _, key := range held {
		locks[key] = true
	}
	profiles := make(map[uuid.UUID]Profile, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		n.Held = locks[s.Home.WorkerKey(n.ID)]
		if known, ok := s.profiles[n.ID]; ok {
			n.Profile = known
		}
		profiles[n.ID] = n.Profile
	}
	s.profiles = profiles
}

// Forget drops the names and details of workers.
func (s *Session) Forget() { s.profiles = nil }
