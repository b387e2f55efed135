//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/chaos"
	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// roleVariable in the environment makes the test program the command.
const roleVariable = "CHAOS_TEST_COMMAND"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == chaos.WorkerArgument || os.Getenv(roleVariable) != "" {
		main()
	}
	pgtest.Main(m)
}

func TestWrongUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"unknown flag":   {[]string{"-fast"}, "-fast"},
		"argument":       {[]string{"now"}, `unexpected argument "now"`},
		"out of range":   {[]string{"-workers", "0"}, "-workers 0 is out of range, allowed is 1 to 50"},
		"no such fault":  {[]string{"-faults", "crash=1"}, `there is no fault "crash"`},
		"bad seed":       {[]string{"-seed", "-1"}, `-seed "-1" is not a number`},
		"an event's":     {[]string{"-jobs", "-faults", "contract=1"}, `there is no fault "contract"`},
		"a job's":        {[]string{"-faults", "deploy=1"}, `there is no fault "deploy"`},
		"no consumers":   {[]string{"-jobs", "-consumers", "3"}, "-consumers is of no use with -jobs"},
		"no such folder": {[]string{"-history", "/no/such/folder/x"}, "chaos: -history: open /no/such/folder/x"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if status := run(t.Context(), c.args, &stdout, &stderr); status != command.Error {
				t.Errorf("exit status %d, want %d", status, command.Error)
			}
			if stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stdout %q, stderr %q; want nothing, and something that says %q", stdout.String(), stderr.String(), c.says)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d", status, command.OK)
	}
	for _, want := range []string{"-workers", "-writers", "-consumers", "-duration", "-seed", "-faults", "-jobs", "-json", "-history", "-report", "promote ", "contract ", "deploy ", "Exit status", "default 10m"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the help lacks %q:\n%s", want, stdout.String())
		}
	}
}

func TestMissing(t *testing.T) {
	r := &oracle.Report{Faults: []oracle.Injected{{Name: "kill", Count: 1}, {Name: "promote"}}}
	if got := missing(chaos.Config{Duration: chaos.Enough}, r); len(got) != 1 || got[0] != "promote" {
		t.Errorf("missing: %v", got)
	}
	if got := missing(chaos.Config{Duration: chaos.Enough - 1}, r); len(got) != 0 {
		t.Errorf("missing in a short run: %v", got)
	}
	r = &oracle.Report{Seconds: chaos.Enough.Seconds(), Faults: []oracle.Injected{{Name: "rescale", Count: 1, Reaches: []oracle.Condition{oracle.Rescaled}}}}
	r.Reached = []oracle.State{{Name: "units split", Count: 1}, {Name: "units merged"}, {Name: "units reset while their consumer was split"}}
	if got := missing(chaos.Config{Duration: chaos.Enough}, r); len(got) != 1 || got[0] != "units merged" {
		t.Errorf("missing of the states: %v", got)
	}
	if got := missing(chaos.Config{Duration: chaos.Enough, Jobs: true}, r); len(got) != 0 {
		t.Errorf("missing in a run of jobs: %v", got)
	}
}

// A run that broke is kept with the logs, one that held is not.
func TestFailuresAreKept(t *testing.T) {
	t.Chdir(t.TempDir())
	r := &oracle.Report{Seed: 7, Held: true, Verdict: "all held"}
	r.Evidence = &history.Evidence{History: history.New(time.Now())}
	for _, held := range []bool{true, false, false} {
		var say bytes.Buffer
		r.Held, r.Outcome = held, map[bool]oracle.Outcome{true: oracle.Held, false: oracle.Broken}[held]
		if err := keepFailure(r, []bundle.Log{{Name: "server.log", Text: strings.NewReader("PANIC")}}, &say); err != nil {
			t.Fatal(err)
		}
		if kept := strings.Contains(say.String(), "chaos-failure-7"); kept == held {
			t.Errorf("held: %v, and it says %q", held, say.String())
		}
	}
	for _, dir := range []string{"chaos-failure-7", "chaos-failure-7-2"} {
		if again, err := bundle.Load(dir); err != nil || again.Seed != 7 {
			t.Errorf("%s: %v, %v", dir, again, err)
		}
		if log, err := os.ReadFile(filepath.Join(dir, "server.log")); err != nil || string(log) != "PANIC" {
			t.Errorf("%s: the log says %q, %v", dir, log, err)
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		outcome oracle.Outcome
		never   []string
		want    int
	}{
		{oracle.Held, nil, command.OK},
		{oracle.Held, []string{"kill"}, command.Failed},
		{oracle.Broken, nil, command.Failed},
		{oracle.NotJudged, nil, command.NotJudged},
		{oracle.NotJudged, []string{"kill"}, command.NotJudged},
	} {
		if got := status(c.outcome, c.never, io.Discard); got != c.want {
			t.Errorf("%s, never %v: exit status %d, want %d", c.outcome, c.never, got, c.want)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	picture := filepath.Join(t.TempDir(), "picture")
	args := []string{"-json", "-report", picture, "-duration", "1s", "-workers", "1", "-writers", "2", "-consumers", "1", "-faults", "kill=1", "-seed", "3"}
	if status := run(t.Context(), args, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d\n%s", status, command.OK, stderr.String())
	}
	var r oracle.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s\n%s", err, stdout.String(), stderr.String())
	}
	if want := "go run ./cmd/chaos -workers 1 -writers 2 -consumers 1 -duration 1s -faults kill=1 -seed 3"; r.Repeat != want || !r.Held {
		t.Errorf("held: %v, repeat: %q, want %q", r.Held, r.Repeat, want)
	}
	if text, err := os.ReadFile(picture); err != nil || !bytes.HasSuffix(text, []byte("</html>\n")) {
		t.Errorf("the picture: %v, %d bytes", err, len(text))
	}
}

func TestJSONOfJobs(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	args := []string{"-jobs", "-json", "-duration", "1s", "-workers", "1", "-writers", "2", "-faults", "kill=1", "-seed", "3"}
	if status := run(t.Context(), args, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d\n%s", status, command.OK, stderr.String())
	}
	var r oracle.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s\n%s", err, stdout.String(), stderr.String())
	}
	if want := "go run ./cmd/chaos -jobs -workers 1 -writers 2 -duration 1s -faults kill=1 -seed 3"; r.Repeat != want || !r.Held || r.Jobs == nil || r.Jobs.Completed == 0 {
		t.Errorf("held: %v, jobs: %+v, repeat: %q, want %q", r.Held, r.Jobs, r.Repeat, want)
	}
	if !strings.Contains(stderr.String(), "jobs enqueued") {
		t.Errorf("progress: %q", stderr.String())
	}
}

// program is the command in a process of its own, with a folder for temporary
// files of its own.
type program struct {
	cmd *exec.Cmd
	dir string
	pgtest.Lines
}

func begin(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &program{cmd: exec.Command(path, args...), dir: dir}
	c.cmd.Env = append(os.Environ(), roleVariable+"=1", "TMPDIR="+dir)
	c.cmd.Stdout, c.cmd.Stderr = io.Discard, c
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// folder is one that the server's user can get into.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos-test-")
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
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

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !pgtest.Poll(holds) {
		t.Fatalf("waited in vain: %s", what)
	}
}

// processes counts worker processes and servers that work in dir or below.
func processes(t *testing.T, dir string) (workers, servers int) {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range environments {
		env, _ := os.ReadFile(name) // or it has ended
		if !bytes.Contains(env, []byte("TMPDIR="+dir+"\x00")) {
			continue
		}
		words, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		switch {
		case bytes.HasSuffix(words, []byte("\x00"+chaos.WorkerArgument+"\x00")):
			workers++
		case bytes.Contains(words, []byte("postgres")):
			servers++
		}
	}
	return workers, servers
}

// stopOneWorker stops a worker process of a run in dir.
func stopOneWorker(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		words, _ := os.ReadFile(name) // or it has ended
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "environ"))
		if !bytes.HasSuffix(words, []byte("\x00"+chaos.WorkerArgument+"\x00")) || !bytes.Contains(env, []byte("TMPDIR="+dir+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGSTOP)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("there is no worker process to be stopped")
}

func empty(t *testing.T, dir string) bool {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(left) == 0
}

// longRun is a run under way.
func longRun(t *testing.T, dir string) *program {
	t.Helper()
	c := begin(t, dir, "-duration", "5m", "-workers", "2", "-writers", "2", "-consumers", "2", "-faults", "full-disk=0.5")
	eventually(t, "two worker processes and a server", func() bool {
		workers, servers := processes(t, dir)
		return workers == 2 && servers > 0
	})
	return c
}

// An interrupted run leaves nothing behind.
func TestInterrupted(t *testing.T) {
	dir := folder(t)
	c := longRun(t, dir)
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // its exit status follows
	if code := c.cmd.ProcessState.ExitCode(); code != command.Error || !strings.HasSuffix(c.String(), "chaos: interrupted\n") {
		t.Errorf("exit status %d, and it said:\n%s", code, c)
	}
	if workers, servers := processes(t, dir); workers+servers > 0 || !empty(t, dir) {
		t.Errorf("left: %d workers, %d processes of servers, files: %v", workers, servers, !empty(t, dir))
	}
}

// What a run that is killed leaves ends by itself, and the next one takes the
// files away.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	c := longRun(t, dir)
	stopOneWorker(t, dir) // which hears nothing of it
	if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // killed
	eventually(t, "the end of all workers and of the server", func() bool {
		workers, servers := processes(t, dir)
		return workers+servers == 0
	})
	if empty(t, dir) {
		t.Fatal("the test is wrong: the files went by themselves")
	}
	next := begin(t, dir, "-duration", "1s", "-workers", "1", "-writers", "1", "-consumers", "1", "-faults", "none")
	if err := next.cmd.Wait(); next.cmd.ProcessState.ExitCode() == command.Error || !empty(t, dir) {
		t.Errorf("the next run: %v, files left: %v\n%s", err, !empty(t, dir), next)
	}
}
