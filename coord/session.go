package coord

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/liveness"
)

// session is the state of a Coordinator between two failures. All its statements run on one
// connection. With Advisory, the leader's lock lasts as long as the connection.
type session struct {
	*liveness.Session
	cfg Config
	sql statements

	asked time.Time // when a silent leader's session was last searched for

	leads bool
	lease lease // with Lease: the latest read

	// State of a leader.
	watch    liveness.Watch
	read     map[uuid.UUID]member // the live members of the latest poll
	balanced []member             // the live members of the latest rebalance
	checked  time.Time            // when the latest rebalance ran; zero: the next poll reads the assignments
	idle     idleSince
}

// session creates a session without state on a connection of package liveness.
func (c *Coordinator) session(s *liveness.Session, err error) (*session, error) {
	if err != nil {
		return nil, wrap(err)
	}
	return &session{Session: s, cfg: c.cfg, sql: c.sql}, nil
}

// args returns the arguments of the shared parameters, followed by more.
func (s *session) args(more ...any) []any {
	return append([]any{s.cfg.ID.String(), s.Home.Key("leader"), s.Home.Schema + "." + s.Home.Table, s.cfg.HeartbeatTimeout.Microseconds()}, more...)
}

// view is the result of a poll.
type view struct {
	liveness.Self
	mine  map[string]int // assigned to this worker, with the wanted partitions; 0: the units stay
	leads bool

	// For the leader.
	is    assignments
	nodes []liveness.Node
}

// poll polls the database, and sends a heartbeat if one is due. A worker that does not lead
// tries to take the leadership.
func (s *session) poll(ctx context.Context) (v view, err error) {
	self, err := s.Poll(ctx, func(ctx context.Context, beat bool, status string) (liveness.Self, error) {
		v = view{}
		if s.cfg.Lease {
			err = s.queryLease(ctx, &v, beat, status)
		} else {
			err = s.queryView(ctx, &v, beat, status, &v.leads)
		}
		return v.Self, err
	})
	v.Self = self
	return v, err
}

// queryView executes the statement of a poll. It scans the leadership into leader.
func (s *session) queryView(ctx context.Context, v *view, beat bool, status string, leader any) error {
	var held []int64
	query, args := s.sql.follow, s.args(status, beat)
	into := append(v.Into(), asJSON(&v.mine), leader)
	if s.leads {
		known, err := s.Known()
		if err != nil {
			return err
		}
		query, args = s.sql.lead, append(args, time.Since(s.checked) >= s.cfg.RebalanceInterval, known)
		into = append(into, asJSON(&v.is), asJSON(&v.nodes), asJSON(&held))
	}
	if err := s.Conn.QueryRowContext(ctx, query, args...).Scan(into...); err != nil {
		return fmt.Errorf("read the assignments: %w", err)
	}
	s.Complete(v.nodes, held)
	return nil
}

func (s *session) queryLease(ctx context.Context, v *view, beat bool, status string) error {
	start := time.Now()
	s.lease = lease{}
	if err := s.queryView(ctx, v, beat, status, asJSON(&s.lease)); err != nil {
		return err
	}
	s.lease.read = start
	if s.lease.due(s.cfg.ID, s.cfg.HeartbeatTimeout, s.cfg.HeartbeatInterval) {
		if err := s.claim(ctx); err != nil {
			return err
		}
	}
	v.leads = s.lease.heldBy(s.cfg.ID)
	return nil
}

// claim takes or renews the lease, unless another worker was faster.
func (s *session) claim(ctx context.Context) error {
	start := time.Now()
	s.lease = lease{}
	err := s.Conn.QueryRowContext(ctx, s.sql.claim, s.args()...).Scan(asJSON(&s.lease))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("claim the lease: %w", err)
	}
	s.lease.read = start
	return nil
}

// assign writes the plan if this worker leads at that moment. It returns whether this worker
// leads, and the number of written rows.
func (s *session) assign(ctx context.Context, n next) (leads bool, written int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.TimeLimit())
	defer cancel()
	changes, err1 := json.Marshal(append([]change{}, n.changes...))
	gone, err2 := json.Marshal(append([]string{}, n.gone...))
	if err := errtext.Join(err1, err2); err != nil {
		return false, 0, err
	}
	if err := s.Conn.QueryRowContext(ctx, s.sql.assign, s.args(string(changes), string(gone))...).Scan(&leads, &written); err != nil {
		return false, 0, fmt.Errorf("write %d assignments: %w", len(n.changes)+len(n.gone), err)
	}
	return leads, written, nil
}

// leave deletes this worker's rows and records that the worker stopped.
func (s *session) leave(ctx context.Context, failed bool) error {
	if s.cfg.Lease {
		if _, err := s.Exec(ctx, "release the lease", s.sql.release, s.args()...); err != nil {
			return err
		}
	}
	_, err := s.Exec(ctx, "release the consumers", s.sql.leave, s.args(failed)...)
	return err
}

// stepDown drops the state of a leader.
func (s *session) stepDown() {
	s.leads, s.watch, s.read, s.balanced, s.checked, s.idle = false, liveness.Watch{}, nil, nil, time.Time{}, nil
	s.Forget()
}

// asJSON scans a text column as JSON.
func asJSON(into any) sql.Scanner { return jsonColumn{into} }

type jsonColumn struct{ into any }

func (j jsonColumn) Scan(value any) error {
	switch v := value.(type) {
	case string:
		return json.Unmarshal([]byte(v), j.into)
	case []byte:
		return json.Unmarshal(v, j.into)
	}
	return fmt.Errorf("%T is no text", value)
}

// UnmarshalJSON parses the assignments that a poll returns.
func (a *assignments) UnmarshalJSON(text []byte) error {
	var found struct {
		Owners map[string]uuid.UUID
		Wanted map[string]int
		Parts  []part
	}
	err := json.Unmarshal(text, &found)
	*a = assignments{found.Owners, found.Wanted, found.Parts}
	return err
}

// UnmarshalJSON parses a lease that a statement returns.
func (l *lease) UnmarshalJSON(text []byte) error {
	var row struct {
		Holder *uuid.UUID
		Term   int64
		Left   int64 // microseconds
		Most   int64 // microseconds
	}
	if err := json.Unmarshal(text, &row); err != nil {
		return err
	}
	*l = lease{term: row.Term, left: time.Duration(row.Left) * time.Microsecond, most: time.Duration(row.Most) * time.Microsecond}
	if row.Holder != nil {
		l.holder = *row.Holder
	}
	return nil
}
