package coord

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

// session is what a Coordinator knows and holds between two failures. It keeps
// one connection, and all its statements run there: none waits for the pool,
// and with Advisory the locks last as long. After any error, close it and open
// another: the connection may be dead, or lead to a standby.
type session struct {
	cfg Config
	sql statements

	conn    *sql.Conn
	backend int // with Advisory

	home   home
	opened time.Time
	beaten time.Time // start of the last heartbeat; zero: not in this session
	// overdue: the last heartbeat is older than the token, so that this
	// worker's death would not be noticed by its lock. The next look sends one.
	overdue bool

	located time.Time // start of the heartbeat whose server was last compared with where the units work
	strange bool      // it was elsewhere then
	endless bool      // the server lets sessions be idle for ever
	asked   time.Time // when a silent leader's session was last looked for

	leads bool
	lease lease // with Lease, as last read

	// What only a leader knows.
	watch    watch
	units    map[uuid.UUID][]string // of all workers, which never change
	balanced []Member               // whom the last rebalance found alive
	checked  time.Time              // when that was; zero: the next look reads the assignments
	idle     vigil
}

// startLimit bounds the making of connections at the start, when nobody counts
// on this worker yet.
const startLimit = 10 * time.Second

// open makes a session. The first one also looks for a proxy; later ones must
// do with one connection, for the pool may be busy.
func (c *Coordinator) open(ctx context.Context, first bool) (*session, error) {
	limit := c.cfg.timeLimit()
	if first {
		limit = max(limit, startLimit)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	err = s.resolve(ctx)
	if err == nil && s.locks() && first {
		err = s.probe(ctx)
	}
	if err == nil && s.locks() {
		err = s.hold(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// connect makes a session that knows nothing yet.
func (c *Coordinator) connect(ctx context.Context) (*session, error) {
	conn, err := c.cfg.DB.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("coord: take a connection: %w", err)
	}
	return &session{cfg: c.cfg, sql: c.sql, conn: conn, opened: time.Now()}, nil
}

// locks reports whether the connection is a session of the server, and holds
// advisory locks.
func (s *session) locks() bool { return s.cfg.Strategy == Advisory }

// unlock frees the locks before anybody hears that this worker leaves: the
// server may take its time to notice the end of a connection.
func (s *session) unlock() {
	if !s.locks() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = s.conn.ExecContext(ctx, `SELECT pg_advisory_unlock_all() WHERE $1::bool`, true)
}

// close ends the connection rather than giving it back to the pool: so its
// locks are free for certain, and nobody gets one that failed.
func (s *session) close() { pgdriver.Discard(s.conn) }

func (s *session) resolve(ctx context.Context) error {
	err := s.conn.QueryRowContext(ctx, s.sql.resolve, s.cfg.Nodes.SQL()).Scan(&s.home.schema, &s.home.table, &s.backend)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("coord: table %s does not exist: apply the migrations", s.cfg.Nodes)
	}
	if err != nil {
		return fmt.Errorf("coord: look up table %s: %w", s.cfg.Nodes, err)
	}
	return nil
}

// args are the values of given, and more.
func (s *session) args(more ...any) []any { return s.cfg.args(s.home, more...) }

func (c Config) args(h home, more ...any) []any {
	return append([]any{c.ID.String(), h.leaderKey(), h.schema + "." + h.table, c.HeartbeatTimeout.Microseconds()}, more...)
}

// view is what one look shows.
type view struct {
	registered bool     // this worker's row is there
	proven     bool     // its heartbeat before this look was sent in this life of the server
	mine       []string // assigned to this worker
	leads      bool

	beat        bool   // it sent a heartbeat
	incarnation string // of the server that took it; empty: nobody has put a token there

	// For the leader.
	owners map[string]uuid.UUID // nil if it has not asked
	nodes  []node
}

// look sees what there is to do. Who does not lead tries to. A heartbeat that
// is due goes with it.
func (s *session) look(ctx context.Context) (v view, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	start := time.Now()
	beat := s.overdue || start.Sub(s.beaten) >= s.cfg.HeartbeatInterval
	see := func(status string) error {
		v = view{beat: beat}
		if s.cfg.Strategy == Lease {
			return s.seeLease(ctx, &v, beat, status)
		}
		return s.see(ctx, &v, beat, status, &v.leads)
	}
	if beat {
		err = s.report(ctx, see)
	} else {
		err = see("")
	}
	if err != nil {
		return v, err
	}
	if beat && v.registered {
		s.beaten = start
	}
	s.overdue = !beat && !v.proven
	return v, nil
}

// see executes the statement of a look; leader is for what it says of the
// leadership.
func (s *session) see(ctx context.Context, v *view, beat bool, status string, leader any) error {
	var backend int
	var held []int64
	query, args := s.sql.follow, s.args(status, beat)
	into := []any{&backend, &v.incarnation, &v.registered, &v.proven, asJSON(&v.mine), leader}
	if s.leads {
		known, err := json.Marshal(slices.AppendSeq([]uuid.UUID{}, maps.Keys(s.units)))
		if err != nil {
			return err
		}
		query, args = s.sql.lead, append(args, time.Since(s.checked) >= s.cfg.RebalanceInterval, string(known))
		into = append(into, asJSON(&v.owners), asJSON(&v.nodes), asJSON(&held))
	}
	if err := s.conn.QueryRowContext(ctx, query, args...).Scan(into...); err != nil {
		return fmt.Errorf("coord: look at the assignments: %w", err)
	}
	s.complete(v.nodes, held)
	return s.same(backend)
}

// complete adds to the workers' rows whose locks are held, and the units that
// are known.
func (s *session) complete(nodes []node, held []int64) {
	locks := make(map[int64]bool, len(held))
	for _, key := range held {
		locks[key] = true
	}
	units := make(map[uuid.UUID][]string, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		n.Held = locks[s.home.workerKey(n.ID)]
		if known, ok := s.units[n.ID]; ok {
			n.Units = known
		}
		units[n.ID] = n.Units
	}
	s.units = units
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
	v.leads = s.lease.heldBy(s.cfg.ID, s.cfg.HeartbeatTimeout)
	return nil
}

// claim takes or prolongs the lease, unless somebody else was faster.
func (s *session) claim(ctx context.Context) error {
	start := time.Now()
	s.lease = lease{}
	err := s.conn.QueryRowContext(ctx, s.sql.claim, s.args()...).Scan(asJSON(&s.lease))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("coord: claim the lease: %w", err)
	}
	s.lease.read = start
	return nil
}

// assign writes changes if this worker leads at that moment. It returns whether
// it does, and how many it has written.
func (s *session) assign(ctx context.Context, changes []change) (leads bool, written int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	text, err := json.Marshal(changes)
	if err != nil {
		return false, 0, err
	}
	if err := s.conn.QueryRowContext(ctx, s.sql.assign, s.args(string(text))...).Scan(&leads, &written); err != nil {
		return false, 0, fmt.Errorf("coord: write %d assignments: %w", len(changes), err)
	}
	return leads, written, nil
}

// leave undoes what this worker has written.
func (s *session) leave(ctx context.Context) error {
	if s.cfg.Strategy == Lease {
		if _, err := s.exec(ctx, "give up the lease", s.sql.release, s.args()...); err != nil {
			return err
		}
	}
	_, err := s.exec(ctx, "hand the consumers back", s.sql.leave, s.args()...)
	return err
}

// stepDown forgets what only a leader knows.
func (s *session) stepDown() {
	s.leads, s.watch, s.units, s.balanced, s.checked, s.idle = false, nil, nil, nil, time.Time{}, nil
}

func (s *session) exec(ctx context.Context, what, query string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	result, err := s.conn.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("coord: %s: %w", what, err)
	}
	return result.RowsAffected()
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

// UnmarshalJSON reads what the statements return of a lease.
func (l *lease) UnmarshalJSON(text []byte) error {
	var row struct {
		Holder *uuid.UUID
		Term   int64
		Left   int64 // microseconds
	}
	if err := json.Unmarshal(text, &row); err != nil {
		return err
	}
	*l = lease{term: row.Term, left: time.Duration(row.Left) * time.Microsecond}
	if row.Holder != nil {
		l.holder = *row.Holder
	}
	return nil
}
