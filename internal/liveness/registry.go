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

// Registry is the table of the workers, as one worker uses it.
type Registry struct {
	Config
	sql  statements
	home atomic.Pointer[Home] // set by Register
}

// New returns a Registry that has no session yet.
func New(cfg Config) *Registry { return &Registry{Config: cfg, sql: cfg.statements()} }

// openLimit is the longest time limit for opening a session. The first session has this limit, as
// no other worker relies on this worker yet. Later sessions reach the limit by failed attempts.
const openLimit = 10 * time.Second

// Open opens the first session. It also detects a transaction-pooling proxy.
func (r *Registry) Open(ctx context.Context) (*Session, error) {
	return r.open(ctx, openLimit, true)
}

// Reopen opens another session, after failed logins in a row. It uses only one connection,
// since the pool may be busy.
//
// The time limit doubles with each failed login. After a crash of the server all workers log
// in at once. A login that is given up has cost the server as much as a login that succeeds. A
// dead connection of the pool does not count as a failed login: waiting longer for it gains
// nothing.
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

// Connect returns a session without state and without a lock.
func (r *Registry) Connect(ctx context.Context) (*Session, error) {
	conn, err := r.DB.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a connection: %w", err)
	}
	return &Session{Config: r.Config, registry: r, Conn: conn, Opened: time.Now()}, nil
}

// OwnGrace makes Dead and DeadSQL use the [Config.Grace] of each judged worker.
const OwnGrace time.Duration = -1

// Dead reports whether the work of a worker may be ended. A worker without a row is dead, and
// so is a worker whose last heartbeat is older than its HeartbeatTimeout. A worker is also
// dead if its lock is free and its last heartbeat is older than grace. A live worker may seem
// dead for a moment, so ask twice, with a pause. Dead requires a successful Register.
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
		pgdriver.Discard(conn) // the connection may lead to a standby
		return false, fmt.Errorf("check whether worker %s is dead: %w", id, err)
	}
	return dead, conn.Close()
}

// DeadSQL returns the start of a statement, up to a CTE "dead", and its arguments. The CTE has
// the worker_id of each dead worker among workers, as defined by [Registry.Dead]. So a
// statement can check for death when it acts.
func (r *Registry) DeadSQL(workers []uuid.UUID, grace time.Duration) (with string, args []any, err error) {
	args, err = r.deadArgs(workers, grace)
	return givenCTE + `, ` + r.dead(), args, err
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

// args returns the arguments of the shared parameters, followed by more.
func (r *Registry) args(more ...any) []any {
	return append([]any{r.ID.String(), r.HeartbeatTimeout.Microseconds()}, more...)
}
