package liveness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Registry is the table of the workers, for one of them.
type Registry struct {
	Config
	sql  statements
	home atomic.Pointer[Home] // since Register
}

// New returns a Registry. It does nothing yet.
func New(cfg Config) *Registry { return &Registry{Config: cfg, sql: cfg.statements()} }

// openLimit bounds the making of a session: of the first at once, as nobody counts on this
// worker yet, of others after some that failed.
const openLimit = 10 * time.Second

// Open makes the first session. It also looks for a proxy.
func (r *Registry) Open(ctx context.Context) (*Session, error) {
	return r.open(ctx, openLimit, true)
}

// Reopen makes another session, after some logins in a row that failed. It must do with
// one connection, for the pool may be busy.
//
// Its bound doubles with each of them. After a server's crash all workers log in at once,
// and a login that is given up before its turn comes has cost the server as much as one
// that succeeds. A connection of the pool that may be dead is none of them: to wait longer
// for it gains nothing.
func (r *Registry) Reopen(ctx context.Context, failed int) (*Session, error) {
	return r.open(ctx, min(r.TimeLimit()<<min(failed, 4), openLimit), false)
}

func (r *Registry) open(ctx context.Context, limit time.Duration, first bool) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := r.Connect(ctx)
	if err != nil {
		return nil, err
	}
	err = s.resolve(ctx)
	if err == nil && r.Lock && first {
		err = s.probe(ctx)
	}
	if err == nil && r.Lock {
		err = s.hold(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Connect makes a session that knows nothing yet and holds no lock.
func (r *Registry) Connect(ctx context.Context) (*Session, error) {
	conn, err := r.DB.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a connection: %w", err)
	}
	return &Session{Config: r.Config, registry: r, Conn: conn, Opened: time.Now()}, nil
}

// OwnGrace is for Dead and DeadSQL: the [Config.Grace] of each worker that is judged.
const OwnGrace time.Duration = -1

// Dead reports whether what a worker has begun may be ended: the worker has no
// row, its last heartbeat is older than its HeartbeatTimeout, or its lock is free
// and its last heartbeat older than grace. A worker may look like it for a
// moment, so ask twice, a while apart. It takes a Register that succeeded.
func (r *Registry) Dead(ctx context.Context, db pgdriver.Pool, id uuid.UUID, grace time.Duration) (dead bool, err error) {
	args, err := r.deadArgs([]uuid.UUID{id}, grace)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.TimeLimit())
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("take a connection: %w", err)
	}
	err = conn.QueryRowContext(ctx, r.sql.dead, args...).Scan(&dead)
	if err != nil {
		pgdriver.Discard(conn) // it may lead to a standby
		return false, fmt.Errorf("look whether worker %s is dead: %w", id, err)
	}
	return dead, conn.Close()
}

// DeadSQL returns the begin of a statement, up to its CTE "dead", and its
// arguments. The CTE has the worker_id of those of the workers that are dead, as
// [Registry.Dead] says it. So a statement can judge when it acts.
func (r *Registry) DeadSQL(workers []uuid.UUID, grace time.Duration) (with string, args []any, err error) {
	args, err = r.deadArgs(workers, grace)
	return given + `, ` + r.dead(), args, err
}

func (r *Registry) deadArgs(workers []uuid.UUID, grace time.Duration) ([]any, error) {
	home := r.home.Load()
	if home == nil {
		return nil, errors.New("Dead was called before Register")
	}
	type suspect struct {
		ID  uuid.UUID `json:"id"`
		Key int64     `json:"key"`
	}
	suspects := make([]suspect, len(workers))
	for i, id := range workers {
		suspects[i] = suspect{id, home.WorkerKey(id)}
	}
	list, err := json.Marshal(suspects)
	micros := grace.Microseconds()
	if grace < 0 {
		micros = -1
	}
	return r.args(string(list), ProtocolLock, micros), err
}

// args are the values of given, and more.
func (r *Registry) args(more ...any) []any {
	return append([]any{r.ID.String(), r.HeartbeatTimeout.Microseconds()}, more...)
}
