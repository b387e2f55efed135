package coord

import (
	"context"
	"encoding/json"
	"os"
	"runtime/debug"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// register makes this worker known. It may be repeated.
func (s *session) register(ctx context.Context) error {
	units, err := json.Marshal(append([]string{}, s.cfg.Units...))
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // it is for people's eyes only
	}
	protocol := protocolHeartbeat
	if s.locks() {
		protocol = protocolLock
	}
	start := time.Now()
	err = s.report(ctx, func(status string) error {
		_, err := s.exec(ctx, "register", s.sql.register, s.args(status, string(units), host, os.Getpid(), build(), protocol)...)
		return err
	})
	if err == nil {
		s.beaten = start
	}
	return err
}

// report sends this worker's status, which is for people: if it cannot be had,
// or the database does not take it (a zero byte in an error's text is enough),
// it goes without.
func (s *session) report(ctx context.Context, send func(status string) error) error {
	if s.cfg.Status == nil {
		return send("")
	}
	status, err := s.cfg.Status()
	if err == nil {
		if err = send(string(status)); !pgdriver.IsInvalidValue(err) {
			return err
		}
	}
	s.cfg.taskFailed("report status", err)
	return send("")
}

// build names what this process was built from: the main module, its version
// and the revision of its sources, as far as they are known.
func build() string {
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
