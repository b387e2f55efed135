package coord

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

// ErrTransactionPooling: something between this worker and the server gives
// each transaction another session, so that a session's locks protect nothing.
var ErrTransactionPooling = errors.New("coord: the connection goes through a transaction-pooling proxy, where session advisory locks do not hold: connect directly or with session pooling, or use the lease strategy (LeaderStrategyLease)")

// lockKey is the key of an advisory lock. It derives from where the table of
// the workers is, so that two applications in one database do not meet.
func lockKey(parts ...string) int64 {
	text, _ := json.Marshal(parts) // strings can always be
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// home is where the table of the workers really is.
type home struct{ schema, table string }

func (h home) leaderKey() int64 { return lockKey("leader", h.schema, h.table) }

func (h home) workerKey(id uuid.UUID) int64 { return lockKey("worker", h.schema, h.table, id.String()) }

// hold takes this worker's lock. It is shared, so that a worker that connects
// anew does not meet the ghost of its last session.
func (s *session) hold(ctx context.Context) error {
	const settings = `
SELECT set_config(v.name, v.setting, false)
FROM (VALUES ('idle_session_timeout', $1::text), ('statement_timeout', $2::text), ('tcp_user_timeout', $1::text),
	('tcp_keepalives_idle', $3::text), ('tcp_keepalives_interval', $4::text), ('tcp_keepalives_count', '3')) AS v(name, setting)
JOIN pg_settings AS s ON s.name = v.name`
	// The locks of a process that was stopped, or whose machine is gone, are
	// freed by the time its heartbeat is too old.
	timeout := s.cfg.HeartbeatTimeout
	_, err := s.exec(ctx, "set the session's time-outs", settings,
		milliseconds(timeout), milliseconds(s.cfg.timeLimit()), seconds(timeout/2), seconds(timeout/10))
	if err != nil {
		return err
	}
	var got bool
	var backend int
	err = s.conn.QueryRowContext(ctx, `
SELECT pg_try_advisory_lock_shared($1::bigint), pg_backend_pid(), NOT EXISTS (SELECT FROM pg_settings WHERE name = 'idle_session_timeout')`,
		s.home.workerKey(s.cfg.ID)).Scan(&got, &backend, &s.endless)
	switch {
	case err != nil:
		return fmt.Errorf("coord: take this worker's lock: %w", err)
	case !got:
		return fmt.Errorf("coord: somebody else holds the advisory lock %d of worker %s exclusively", s.home.workerKey(s.cfg.ID), s.cfg.ID)
	}
	return s.same(backend)
}

// endSilent ends the leader's session if it has been silent for as long as
// idle_session_timeout would let it, where the server has no such setting.
func (s *session) endSilent(ctx context.Context) error {
	if !s.endless || time.Since(s.asked) < s.cfg.HeartbeatTimeout/4 {
		return nil
	}
	s.asked = time.Now()
	_, err := s.exec(ctx, "end a silent leader's session", s.sql.endSilent, s.args()...)
	return err
}

// same checks that a statement was executed by the session's own backend.
func (s *session) same(backend int) error {
	if s.locks() && backend != s.backend {
		return ErrTransactionPooling
	}
	return nil
}

// probe finds a proxy that has not shown itself yet, because it gave each
// statement the backend that was used last: then another connection gets it
// too.
func (s *session) probe(ctx context.Context) error {
	var other, own int
	if err := s.cfg.DB.QueryRowContext(ctx, `SELECT pg_backend_pid() WHERE $1::bool`, true).Scan(&other); err != nil {
		return fmt.Errorf("coord: look for a proxy: %w", err)
	}
	if other == s.backend {
		return ErrTransactionPooling
	}
	if err := s.conn.QueryRowContext(ctx, `SELECT pg_backend_pid() WHERE $1::bool`, true).Scan(&own); err != nil {
		return fmt.Errorf("coord: look for a proxy: %w", err)
	}
	return s.same(own)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// seconds stays in the range that every kernel takes for keepalives.
func seconds(d time.Duration) string {
	return strconv.FormatInt(min(max(int64(d.Seconds()), 1), 7200), 10)
}
