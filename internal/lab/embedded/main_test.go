package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// The test binary started with this in its environment is something else until
// its standard input ends: the owner of a server, or a process that does nothing.
const roleVariable = "EMBEDDED_TEST_ROLE"

// pristineVariable tells an owner the data directory that its server is a copy of. Empty:
// the owner runs initdb.
const pristineVariable = "EMBEDDED_TEST_PRISTINE"

// TestMain gives the tests a directory for temporary files of their own, which
// must be empty in the end.
func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "owner":
		if err := ownServer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "idler":
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	tmp, err := os.MkdirTemp(Config{}.root(), "embedded-test-")
	if err == nil {
		err = os.Chmod(tmp, 0o777|os.ModeSticky)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	aside = Config{}.root()
	os.Setenv("TMPDIR", tmp)
	os.Unsetenv("DATABASE_URL")
	if err := flag.Set("rapid.checks", "5000"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := removePristine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if left := leftIn(tmp); left != "" {
		fmt.Fprintln(os.Stderr, "left after the tests:"+left)
		code = 1
	}
	os.RemoveAll(tmp)
	testdeps.Summarize()
	os.Exit(code)
}

// leftIn lists the files in a directory and the processes that work below it.
func leftIn(dir string) string {
	var left strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		fmt.Fprintf(&left, " %s", e.Name())
	}
	for _, pid := range processesIn(dir) {
		fmt.Fprintf(&left, " process %s", pid)
	}
	return left.String()
}

func processesIn(dir string) []string {
	var pids []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir+"/") {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// owned is what an owner prints about its server.
type owned struct {
	Home, URL, Source string
	PID               int
}

func ownServer() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := Start(ctx, Config{Pristine: os.Getenv(pristineVariable)})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(owned{Home: s.home.path, URL: s.URL(""), Source: s.Source(), PID: s.PID()}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Stop(ctx)
}

// owner is another process with a server.
type owner struct {
	owned
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout io.ReadCloser
}

// begin starts an owner, as another user if who is not nil. Its server is a copy of pristine,
// unless that is empty.
func begin(t *testing.T, who *account, pristine string) *owner {
	t.Helper()
	program, home := executable(t, "owner"), reachableDir(t)
	if err := who.give(home); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), roleVariable+"=owner", pristineVariable+"="+pristine, "HOME="+home)
	cmd.Dir = home
	cmd.Stderr = os.Stderr
	if who != nil {
		cmd.SysProcAttr = attributes(who, 0)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &owner{cmd: cmd, stdin: stdin, stdout: stdout}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			o.kill(t)
		}
	})
	return o
}

// wait waits until the owner has its server.
func (o *owner) wait(t *testing.T) {
	t.Helper()
	line, err := bufio.NewReader(o.stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o.owned)
	}
	if err != nil {
		t.Fatalf("the owner did not start its server: %v (it printed %q)", err, line)
	}
}

// finish has the owner stop its server.
func (o *owner) finish(t *testing.T) {
	t.Helper()
	o.stdin.Close()
	if err := o.cmd.Wait(); err != nil {
		t.Errorf("the owner failed: %v", err)
	}
}

func (o *owner) kill(t *testing.T) {
	t.Helper()
	if err := o.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = o.cmd.Wait() // killed
}

// executable is this program, called name, where other users can run it.
func executable(t *testing.T, name string) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(reachableDir(t), name)
	if err := os.WriteFile(copied, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return copied
}

// reachableDir is a directory that other users can get into, as below
// t.TempDir they cannot.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "reachable-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// aside is a directory for what is none of the tests' own.
var aside string

// pristine is the data directory that the servers of own are copies of.
var pristine struct {
	sync.Once
	*Pristine
	err error
}

func pristinePath(t *testing.T) string {
	t.Helper()
	pristine.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		pristine.Pristine, pristine.err = makePristine(ctx, aside)
	})
	if pristine.err != nil {
		t.Fatal(pristine.err)
	}
	return pristine.Path()
}

func removePristine() error {
	if pristine.Pristine == nil {
		return nil
	}
	return pristine.Remove()
}

// own starts a server for a test, on a copy of the pristine directory.
func own(t *testing.T, settings map[string]string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{Own: true, Settings: settings, Pristine: pristinePath(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// query connects anew and returns one value.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var value string
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
