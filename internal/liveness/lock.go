package liveness

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// ErrPooled reports a transaction-pooling proxy between this worker and the server. Such a proxy
// gives each transaction another session, so a session's locks protect nothing.
var ErrPooled = errors.New("the connection goes through a transaction-pooling proxy, where session advisory locks do not hold")

// Home is the resolved name of the table of the workers. The keys of advisory locks derive
// from it, so that two applications in one database have different keys.
type Home struct{ Schema, Table string }

// Key returns the key of an advisory lock.
func (h Home) Key(what string, more ...string) int64 {
	text, _ := json.Marshal(append([]string{what, h.Schema, h.Table}, more...)) // strings always marshal
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// WorkerKey returns the key of a worker's lock.
func (h Home) WorkerKey(id uuid.UUID) int64 { return h.Key("worker", id.String()) }

// hold takes this worker's lock. The lock is shared, so a worker that connects again does not
// wait for its previous session.
func (s *Session) hold(ctx context.Context) error {
	const settings = `
SELECT set_config(v.name, v.setting, false)
FROM (VALUES ('idle_session_timeout', $1::text), ('statement_timeout', $2::text), ('lock_timeout', '0'), ('transaction_timeout', '0'), ('default_transaction_isolation', 'read committed'), ('tcp_user_timeout', $1::text),
	('tcp_keepalives_idle', $3::text), ('tcp_keepalives_interval', $4::text), ('tcp_keepalives_count', '3')) AS v(name, setting)
JOIN pg_settings AS s ON s.name = v.name`
	// The server frees the locks of a stopped process or a lost machine before its heartbeat
	// is too old. The session must not be serializable: PostgreSQL could abort one of two
	// concurrent heartbeats, and the session would end with its locks.
	timeout := s.HeartbeatTimeout
	_, err := s.Exec(ctx, "set the session's timeouts and isolation level", settings,
		milliseconds(timeout), milliseconds(s.TimeLimit()), seconds(timeout/2), seconds(timeout/10))
	if err != nil {
		return err
	}
	var got bool
	var backend int
	err = s.Conn.QueryRowContext(ctx, `
SELECT pg_try_advisory_lock_shared($1::bigint), pg_backend_pid(), NOT EXISTS (SELECT FROM pg_settings WHERE name = 'idle_session_timeout')`,
		s.Home.WorkerKey(s.ID)).Scan(&got, &backend, &s.Endless)
	switch {
	case err != nil:
		return fmt.Errorf("take this worker's lock: %w", err)
	case !got:
		return fmt.Errorf("another session holds the advisory lock %d of worker %s exclusively: end that session", s.Home.WorkerKey(s.ID), s.ID)
	}
	return s.same(backend)
}

// Unlock frees the session's locks before the worker's leave is announced. The server may
// detect the end of a connection late.
func (s *Session) Unlock() {
	if !s.Lock {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = s.Conn.ExecContext(ctx, `SELECT pg_advisory_unlock_all() WHERE $1::bool`, true)
}

// same returns ErrPooled if another backend than the session's executed a statement.
func (s *Session) same(backend int) error {
	if s.Lock && backend != s.Backend {
		return ErrPooled
	}
	return nil
}

// probe detects a proxy that has so far given each statement the backend that was used last.
// Another connection then gets the same backend.
func (s *Session) probe(ctx context.Context) error {
	var other, own int
	if err := s.DB.QueryRowContext(ctx, `SELECT pg_backend_pid() WHERE $1::bool`, true).Scan(&other); err != nil {
		return fmt.Errorf("detect a proxy: %w", err)
	}
	if other == s.Backend {
		return ErrPooled
	}
	if err := s.Conn.QueryRowContext(ctx, `SELECT pg_backend_pid() WHERE $1::bool`, true).Scan(&own); err != nil {
		return fmt.Errorf("detect a proxy: %w", err)
	}
	return s.same(own)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// seconds returns a duration in the range that every kernel accepts for keepalives.
func seconds(d time.Duration) string {
	return strconv.FormatInt(min(max(int64(d.Seconds()), 1), 7200), 10)
}
