package coord

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// session is one connection to the database and what is bound to it. After any
// error it is worth nothing: close it and open another.
type session struct {
	cfg  Config
	sql  statements
	conn *sql.Conn
	key  int64 // of the leader's lock

	opened   time.Time
	beaten   time.Time // start of the last heartbeat, zero: not in this session
	leads    bool
	balanced []Member // as of the last rebalance
	checked  time.Time
}

func (c *Coordinator) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.timeLimit())
	defer cancel()
	conn, err := c.cfg.DB.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("coord: take a connection: %w", err)
	}
	s := &session{cfg: c.cfg, sql: c.sql, conn: conn, opened: time.Now()}
	if err := s.resolve(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close ends the connection rather than giving it back to the pool: so its
// locks are gone for certain.
func (s *session) close() {
	_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = s.conn.Close()
}

// resolve derives the lock's key from where the table really is, so that two
// applications in one database do not meet.
func (s *session) resolve(ctx context.Context) error {
	var schema, table string
	err := s.conn.QueryRowContext(ctx, `
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)`, s.cfg.Nodes.SQL()).Scan(&schema, &table)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("coord: table %s does not exist: apply the migrations", s.cfg.Nodes)
	}
	if err != nil {
		return fmt.Errorf("coord: look up table %s: %w", s.cfg.Nodes, err)
	}
	s.key = lockKey("leader", schema, table)
	return nil
}

func lockKey(parts ...string) int64 {
	text, _ := json.Marshal(parts)
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// view is what one look shows.
type view struct {
	registered bool     // this worker's row is there
	mine       []string // assigned to this worker
	leads      bool
	nodes      []node // for the leader
}

type node struct {
	ID    uuid.UUID `json:"id"`
	Units []string  `json:"units"`
	Fresh bool      `json:"fresh"` // its heartbeat is younger than HeartbeatTimeout
}

// look sees what there is to do. Who does not lead tries to, in the same
// statement.
func (s *session) look(ctx context.Context) (v view, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	var backend int
	var mine string
	nodes := "[]"
	if s.leads {
		err = s.conn.QueryRowContext(ctx, s.sql.lead, s.cfg.ID.String(), s.key, s.cfg.HeartbeatTimeout.Microseconds()).
			Scan(&backend, &v.registered, &mine, &v.leads, &nodes)
	} else {
		err = s.conn.QueryRowContext(ctx, s.sql.follow, s.cfg.ID.String(), s.key).Scan(&backend, &v.registered, &mine, &v.leads)
	}
	if err == nil {
		err = json.Unmarshal([]byte(mine), &v.mine)
	}
	if err == nil {
		err = json.Unmarshal([]byte(nodes), &v.nodes)
	}
	if err != nil {
		return view{}, fmt.Errorf("coord: look at the assignments: %w", err)
	}
	return v, nil
}

func (s *session) clean(ctx context.Context) error {
	_, err := s.exec(ctx, "remove stale workers", s.sql.clean, s.cfg.ID.String(), s.cfg.HeartbeatTimeout.Microseconds())
	return err
}

// register makes this worker known. It may be repeated.
func (s *session) register(ctx context.Context, host string, pid int) error {
	units, err := json.Marshal(append([]string{}, s.cfg.Units...))
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := s.exec(ctx, "register", s.sql.register, s.cfg.ID.String(), string(units), host, pid, protocol); err != nil {
		return err
	}
	s.beaten = start
	return nil
}

// beat tells the others that this worker is alive, and returns false if its
// row is gone.
func (s *session) beat(ctx context.Context) (bool, error) {
	start := time.Now()
	n, err := s.exec(ctx, "heartbeat", s.sql.beat, s.cfg.ID.String())
	if err != nil || n == 0 {
		return false, err
	}
	s.beaten = start
	return true, nil
}

func (s *session) assignments(ctx context.Context) (map[string]uuid.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	var text string
	owners := map[string]uuid.UUID{}
	err := s.conn.QueryRowContext(ctx, s.sql.assignments).Scan(&text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &owners)
	}
	if err != nil {
		return nil, fmt.Errorf("coord: read the assignments: %w", err)
	}
	return owners, nil
}

// change gives a unit to a worker.
type change struct {
	Unit   string    `json:"unit"`
	Worker uuid.UUID `json:"worker"`
}

// assign writes changes if this worker leads at that moment, and returns
// whether it does.
func (s *session) assign(ctx context.Context, changes []change) (leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeLimit())
	defer cancel()
	text, err := json.Marshal(changes)
	if err != nil {
		return false, err
	}
	var written int
	err = s.conn.QueryRowContext(ctx, s.sql.assign, s.cfg.ID.String(), s.key, string(text)).Scan(&leads, &written)
	if err != nil {
		return false, fmt.Errorf("coord: write %d assignments: %w", len(changes), err)
	}
	return leads, nil
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
