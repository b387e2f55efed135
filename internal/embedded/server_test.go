package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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

func TestStartFailsOnBadSetting(t *testing.T) {
	_, err := Start(t.Context(), Config{Own: true, Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Fatalf("the error does not tell why: %v", err)
	}
	nothingLeft(t)
}

// As root, the server runs as a user who cannot get everywhere.
func TestUnreachableDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		return // the server runs as the one who made the directory
	}
	t.Setenv("TMPDIR", t.TempDir()) // below a directory with mode 0700
	_, err := Start(t.Context(), Config{Own: true})
	if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), "set TMPDIR") {
		t.Errorf("the error does not tell what to do: %v", err)
	}
	nothingLeft(t)
}

// Wherever in Start the context ends, nothing is left.
func TestStartCancelled(t *testing.T) {
	reached := map[string]func(home string) bool{
		"at once":       func(string) bool { return true },
		"initdb begins": func(home string) bool { return exists(home, "data/PG_VERSION") },
		"initdb works":  func(home string) bool { return exists(home, "data/base/1/PG_VERSION") },
		"server starts": func(home string) bool { return exists(home, "log") },
		"server runs":   func(home string) bool { return exists(home, "data/postmaster.pid") && exists(home, "log") },
	}
	for name, reached := range reached {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				defer cancel()
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for {
					homes, _ := filepath.Glob(filepath.Join(os.TempDir(), homePrefix+"*"))
					if slices.ContainsFunc(append(homes, "none"), reached) {
						return
					}
					select {
					case <-done:
						return
					case <-tick.C:
					}
				}
			})
			s, err := Start(ctx, Config{Own: true})
			close(done)
			wg.Wait()
			if err == nil { // it was too late
				err = errors.Join(context.Canceled, s.Stop(t.Context()))
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
			nothingLeft(t)
		})
	}
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}

func nothingLeft(t *testing.T) {
	t.Helper()
	homes, _ := filepath.Glob(filepath.Join(os.TempDir(), homePrefix+"*"))
	if left := processesIn(os.TempDir()); len(homes) > 0 || len(left) > 0 {
		t.Errorf("left: directories %v, processes %v", homes, left)
	}
}

// The port is taken between the look and the start.
func TestPortIsTaken(t *testing.T) {
	s := own(t, nil)
	if err := s.process.Load().shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	asked := 0
	err = s.startOnSomePort(t.Context(), func() (int, error) {
		if asked++; asked <= 2 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	})
	if err != nil || asked != 3 {
		t.Fatalf("after %d ports, want 3: %v", asked, err)
	}
	if got, want := query(t, s.URL(""), `SHOW port`), strconv.Itoa(s.port); got != want {
		t.Errorf("the server listens on %s, the URL says %s", got, want)
	}
}

func TestOrdinaryUser(t *testing.T) {
	var who *account // this one, if it is no root
	if os.Geteuid() == 0 {
		who = &account{uid: 65534, gid: 65534}
	}
	o := begin(t, who)
	o.wait(t)
	uid := os.Geteuid()
	if who != nil {
		uid = int(who.uid)
	}
	if got := query(t, o.URL, `SELECT 'answered'`); got != "answered" {
		t.Error(got)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.PID))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) {
		t.Errorf("the server is not run by user %d (%v):\n%s", uid, err, status)
	}
	o.finish(t)
	nothingLeft(t)
}

// Processes that start servers at the same time do not disturb each other.
func TestParallelProcesses(t *testing.T) {
	owners := []*owner{begin(t, nil), begin(t, nil)}
	urls := map[string]bool{}
	for _, o := range owners {
		o.wait(t)
		urls[o.URL] = true
	}
	for _, o := range owners {
		query(t, o.URL, `SELECT 'answered'`)
	}
	if len(urls) != len(owners) {
		t.Errorf("%d servers share %d addresses", len(owners), len(urls))
	}
	for _, o := range owners {
		o.finish(t)
	}
	nothingLeft(t)
}

// The server of an owner that is killed ends with it, and the next Start
// removes the files, but not those of an owner who lives.
func TestOwnerKilled(t *testing.T) {
	living, killed := begin(t, nil), begin(t, nil)
	living.wait(t)
	killed.wait(t)
	session(t, killed.URL)
	killed.kill(t)
	eventually(t, "the end of the server whose owner was killed", func() bool {
		return len(processesIn(killed.Home)) == 0
	})
	noSegment(t, killed.PID)
	if !exists(killed.Home) {
		t.Fatal("the test is wrong: the directory went without a sweep")
	}
	own(t, nil)
	if exists(killed.Home) {
		t.Error("Start did not remove the directory of an owner that was killed")
	}
	query(t, living.URL, `SELECT 'answered'`)
	living.finish(t)
}

func TestSaysReady(t *testing.T) {
	file := func(pid, status string) string {
		return strings.Join([]string{pid, "/data", "1700000000", "15432", "", "127.0.0.1", "  1234 5", status, ""}, "\n")
	}
	for text, want := range map[string]bool{
		file("42", "ready   "):       true,
		file("42", "starting"):       false,
		file("41", "ready   "):       false, // of a server that crashed
		"42\n/data\n1700000000\n":    false,
		"":                           false,
		"42\n\n\n\n\n\n\nready   \n": true,
	} {
		if got := saysReady(text, 42); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "PGPORT=1", "PGPASSWORD=x", "DATABASE_URL=y", "LANG=de", "LC_TIME=de", "HOME=/"})
	if want := []string{"PATH=/bin", "HOME=/", "LC_ALL=C"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
