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

// session is what a Coordinator knows and holds between two failures: all its
// statements run on one connection. With Advisory the leader's lock lasts as
// long as that.
type session struct {
	*liveness.Session
	cfg Config
	sql statements

	asked time.Time // when a silent leader's session was last looked for

	leads bool
	lease lease // with Lease, as last read

	// What only a leader knows.
	watch    liveness.Watch
	read     map[uuid.UUID]Member // whom the last look found alive
	balanced []Member             // whom the last rebalance found alive
	checked  time.Time            // when that was; zero: the next look reads the assignments
	idle     vigil
}

// open makes the first session. It also looks for a proxy.
func (c *Coordinator) open(ctx context.Context) (*session, error) {
	return c.session(c.alive.Open(ctx))
}

// reopen makes another session, after some logins in a row that failed.
func (c *Coordinator) reopen(ctx context.Context, failed int) (*session, error) {
	return c.session(c.alive.Reopen(ctx, failed))
}

// connect makes a session that knows nothing yet.
func (c *Coordinator) connect(ctx context.Context) (*session, error) {
	return c.session(c.alive.Connect(ctx))
}

func (c *Coordinator) session(s *liveness.Session, err error) (*session, error) {
	if err != nil {
		return nil, wrap(err)
	}
	return &session{Session: s, cfg: c.cfg, sql: c.sql}, nil
}

// args are the values of given, and more.
func (s *session) args(more ...any) []any {
	return append([]any{s.cfg.ID.String(), s.Home.Key("leader"), s.Home.Schema + "." + s.Home.Table, s.cfg.HeartbeatTimeout.Microseconds()}, more...)
}

// view is what one look shows.
type view struct {
	liveness.Self
	mine  map[string]int // assigned to this worker, with the partitions that are wanted; 0: as they are
	leads bool

	// For the leader.
	is    assignments
	nodes []liveness.Node
}

// look sees what there is to do. Who does not lead tries to. A heartbeat that
// is due goes with it.
func (s *session) look(ctx context.Context) (v view, err error) {
	self, err := s.Look(ctx, func(ctx context.Context, beat bool, status string) (liveness.Self, error) {
		v = view{}
		if s.cfg.Strategy == Lease {
			err = s.seeLease(ctx, &v, beat, status)
		} else {
			err = s.see(ctx, &v, beat, status, &v.leads)
		}
		return v.Self, err
	})
	v.Self = self
	return v, err
}

// see executes the statement of a look; leader is for what it says of the
// leadership.
func (s *session) see(ctx context.Context, v *view, beat bool, status string, leader any) error {
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
		return fmt.Errorf("look at the assignments: %w", err)
	}
	s.Complete(v.nodes, held)
	return nil
}

func (s *session) seeLease(ctx context.Context, v *view, beat bool, status string) error {
	start := time.Now()
	s.lease = lease{}
	if err := s.see(ctx, v, beat, status, asJSON(&s.lease)); err != nil {
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

// claim takes or prolongs the lease, unless somebody else was faster.
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

// assign writes what is next if this worker leads at that moment. It returns whether
// it does, and how many it has written.
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

// leave undoes what this worker has written, and records that it stopped.
func (s *session) leave(ctx context.Context, failed bool) error {
	if s.cfg.Strategy == Lease {
		if _, err := s.Exec(ctx, "give up the lease", s.sql.release, s.args()...); err != nil {
			return err
		}
	}
	_, err := s.Exec(ctx, "hand the consumers back", s.sql.leave, s.args(failed)...)
	return err
}

// stepDown forgets what only a leader knows.
func (s *session) stepDown() {
	s.leads, s.watch, s.read, s.balanced, s.checked, s.idle = false, liveness.Watch{}, nil, nil, time.Time{}, nil
	s.Forget()
}

// asJSON scans a column of text as JSON.
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

// UnmarshalJSON reads what the statement of a look returns of assignments.
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

// UnmarshalJSON reads what the statements return of a lease.
func (l *lease) UnmarshalJSON(text []byte) error {
	var row struct {
		Holder *uuid.UUID
		Term   int64
		Left   int64 // microseconds
		Most   int64 // likewise
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
