package liveness

import (
	"context"
	"encoding/json"
	"os"
	"runtime/debug"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Register makes this worker known. It may be repeated.
func (s *Session) Register(ctx context.Context) error {
	names, err := json.Marshal(append([]string{}, s.Names...))
	if err != nil {
		return err
	}
	host := s.Hostname
	if host == "" {
		host, _ = os.Hostname() // it is for people's eyes only
	}
	protocol := ProtocolHeartbeat
	if s.Lock {
		protocol = ProtocolLock
	}
	said := []any{string(names), host, os.Getpid(), Build(), protocol, s.HeartbeatInterval.Microseconds()}
	if s.DetailsColumn != "" {
		said = append(said, s.Details)
	}
	start := time.Now()
	err = s.report(func(status string) error {
		_, err := s.Exec(ctx, "register", s.registry.sql.register, s.registry.args(append([]any{status}, said...)...)...)
		return err
	})
	if err == nil {
		s.Beaten = start
		home := s.Home
		s.registry.home.Store(&home)
	}
	return err
}

// Clean removes the rows of workers that have been silent for twice their
// HeartbeatTimeout, and returns how many. It also deletes the old records of workers that stopped:
// each worker that stops has registered, so Clean is called often enough.
func (s *Session) Clean(ctx context.Context) (rows int, err error) {
	n, err := s.Exec(ctx, "remove stale workers", s.registry.sql.clean, s.registry.args()...)
	return int(n), err
}

// SetBack takes heartbeats away that [Watch.Ahead] has found, unless their workers have sent
// others since. So everybody judges these workers as dead, those that look only once included.
func (s *Session) SetBack(ctx context.Context, ahead []heartbeat) error {
	list, err := json.Marshal(ahead)
	if err == nil {
		_, err = s.Exec(ctx, "set back heartbeats that lie in the future", s.registry.sql.setBack, string(list))
	}
	return err
}

// report sends this worker's status, which is for people: if it cannot be had,
// or the database does not take it (a zero byte in an error's text is enough),
// it goes without.
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

// Build names what this process was built from: the main module, its version
// and the revision of its sources, as far as they are known.
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
