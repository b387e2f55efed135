package embedded

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestStartStop(t *testing.T) {
	s := own(t, map[string]string{"max_connections": "123"})
	if got := query(t, s.URL(""), `SHOW server_version`); !strings.HasPrefix(got, s.Version()) || s.Version() == "" {
		t.Errorf("Version is %q, the server says %q", s.Version(), got)
	}
	for name, want := range map[string]string{
		"max_connections": "123", "listen_addresses": "127.0.0.1", "synchronous_commit": "on", "fsync": "off",
		"max_prepared_transactions": "64", "server_encoding": "UTF8",
	} {
		if got := query(t, s.URL(""), `SHOW `+name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if !strings.Contains(s.Source(), s.bin.dir) {
		t.Errorf("Source %q does not name %s", s.Source(), s.bin.dir)
	}
	if !strings.Contains(s.Log(), "ready to accept connections") {
		t.Errorf("Log has no word of the start:\n%s", s.Log())
	}
	passwordIsNeeded(t, s)
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gone(t, s)
	if _, err := pgx.Connect(t.Context(), s.URL("")); err == nil {
		t.Error("one can still connect after Stop")
	}
	for name, err := range map[string]error{"Kill": s.Kill(), "Restart": s.Restart(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("%s after Stop: %v", name, err)
		}
	}
}

// The server is a superuser's door into this account: nobody else on the
// machine may come in.
func passwordIsNeeded(t *testing.T, s *Server) {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"", "postgres", cfg.Password + "x"} {
		cfg.Password = wrong
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err == nil {
			conn.Close(t.Context())
			t.Errorf("password %q opened the server", wrong)
		}
	}
	if info, err := os.Stat(s.home.data()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory has mode %v (%v)", info.Mode(), err)
	}
	if strings.Contains(s.Log(), s.password) || strings.Contains(s.Source(), s.password) {
		t.Error("the password is in the log")
	}
}

// gone checks that a server left no process, file or memory behind.
func gone(t *testing.T, s *Server) {
	t.Helper()
	if _, err := os.Stat(s.home.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", s.home.path, err)
	}
	if left := processesIn(s.home.path); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	noSegment(t, s.PID())
}

// noSegment checks that there is no System V shared memory of that creator.
func noSegment(t *testing.T, pid int) {
	t.Helper()
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		const creator = 4
		if fields := strings.Fields(line); len(fields) > creator && fields[creator] == strconv.Itoa(pid) {
			t.Errorf("shared memory is left: %s", line)
		}
	}
}

func TestStopConcurrently(t *testing.T) {
	s := own(t, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			gone(t, s) // for each of them, when its Stop has returned
		})
	}
	wg.Wait()
}

// A server that does not shut down is ended all the same.
func TestStopWhenContextEnds(t *testing.T) {
	s := own(t, nil)
	stoppedSession(t, s.URL(""))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop: %v, want the context's error", err)
	}
	gone(t, s)
}

// session leaves a session open until the test ends, and returns its pid.
func session(t *testing.T, url string) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return int(conn.PgConn().PID())
}

// stoppedSession is one whose backend is deaf to every signal but SIGKILL.
func stoppedSession(t *testing.T, url string) {
	t.Helper()
	if err := syscall.Kill(session(t, url), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func TestKillAndRestart(t *testing.T) {
	s := own(t, nil)
	conn, err := pgx.Connect(t.Context(), s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{`CREATE TABLE kept (i INT)`, `INSERT INTO kept VALUES (1)`, `BEGIN`, `INSERT INTO kept VALUES (2)`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	url, first := s.URL(""), s.PID()
	for name, end := range map[string]func() error{
		"Kill":            s.Kill,
		"Kill again":      func() error { return errors.Join(s.Kill(), s.Kill()) },
		"postmaster dies": func() error { return syscall.Kill(s.PID(), syscall.SIGKILL) },
		"nothing":         func() error { return nil },
	} {
		before := s.PID()
		if strings.HasPrefix(name, "Kill") {
			stoppedSession(t, url)
		}
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.HasPrefix(name, "Kill") {
			if left := processesIn(s.home.path); len(left) > 0 {
				t.Errorf("%s: processes %v live", name, left)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.URL("") != url || s.PID() == before {
			t.Errorf("%s: url the same: %v, pid %d after %d", name, s.URL("") == url, s.PID(), before)
		}
		if got := query(t, url, `SELECT string_agg(i::text, ',') FROM kept`); got != "1" {
			t.Errorf("%s: rows %s, want 1", name, got)
		}
	}
	noSegment(t, first)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Restart(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Restart: %v, want the context's error", err)
	}
	if left := processesIn(s.home.path); len(left) > 0 {
		t.Errorf("Restart failed, but processes %v live", left)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(t, s)
}
