package liveness

import (
	"context"
	"encoding/json"
	"os"
	"runtime/debug"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Register inserts or updates this worker's row. It may be repeated.
func (s *Session) Register(ctx context.Context) error {
	names, err := json.Marshal(append([]string{}, s.Names...))
	if err != nil {
		return err
	}
	host := s.Hostname
	if host == "" {
		host, _ = os.Hostname() // for display only
	}
	protocol := ProtocolHeartbeat
	if s.Lock {
		protocol = ProtocolLock
	}
	values := []any{string(names), host, os.Getpid(), Build(), protocol, s.HeartbeatInterval.Microseconds()}
	if s.DetailsColumn != "" {
		values = append(values, s.Details)
	}
	start := time.Now()
	err = s.report(func(status string) error {
		n, err := s.Exec(ctx, "register", s.registry.sql.register, s.registry.args(append([]any{status}, values...)...)...)
		if err == nil && n == 0 {
			err = pgdriver.Dropped(s.Nodes.String())
		}
		return err
	})
	if err == nil {
		s.Beaten = start
		home := s.Home
		s.registry.home.Store(&home)
	}
	return err
}

// Clean removes the rows of workers that have been silent for twice their HeartbeatTimeout,
// and returns their number. It also deletes old rows of stopped workers. Each worker that
// stops has called Clean at its registration, so these rows do not accumulate.
func (s *Session) Clean(ctx context.Context) (rows int, err error) {
	n, err := s.Exec(ctx, "remove stale workers", s.registry.sql.clean, s.registry.args()...)
	return int(n), err
}

// SetBack invalidates heartbeats that [Watch.Ahead] returned, unless their workers have sent
// others since. So all workers judge these workers as dead, also workers that ask only once.
func (s *Session) SetBack(ctx context.Context, ahead []heartbeat) error {
	list, err := json.Marshal(ahead)
	if err == nil {
		_, err = s.Exec(ctx, "set back heartbeats that lie in the future", s.registry.sql.setBack, string(list))
	}
	return err
}

// report calls send with this worker's status, which is for display. If Status fails, or the
// database rejects the status, report calls send without a status. A zero byte in an error's
// text is enough for a rejection.
func (s *Session) report(send func(status string) error) error {
	if s.Status == nil {
		return send("")
	}
	status, err := s.Status()
	if err == nil {
		if err = send(string(status)); !pgdriver.IsInvalidValue(err) {
			return err
		}
	}
	s.taskFailed("report status", err)
	return send("")
}

// Build returns the main module of this process, its version and its revision, as far as they
// are known.
func Build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	name := info.Main.Path + "@" + info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			name += " " + setting.Value[:min(12, len(setting.Value))]
		}
	}
	return name
}
