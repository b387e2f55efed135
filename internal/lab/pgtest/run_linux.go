package pgtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/lab/embedded"
)

// The test processes of one go test share a server. The first that needs one
// starts a host: the same program, in the background, which runs initdb for all
// servers of the run, starts the server, makes the template, and stops the server
// when go test has ended. The run's directory holds the offer for the processes
// that come later.

// run is one go test process.
type run struct {
	pid   int
	began string // in the kernel's ticks; a later process may have the same pid
}

// runTemplate is the template on the server of a run.
const runTemplate = "pgtest_template"

// currentRun returns the go test process that runs this program, if one does.
func currentRun() (run, bool) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil || string(name) != "go\n" {
		return run{}, false
	}
	return findRun(os.Getppid())
}

func findRun(pid int) (run, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name in parentheses may hold anything. starttime is the 20th field
	// after it, proc_pid_stat(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if err != nil || len(fields) < 20 || fields[0] == "Z" {
		return run{}, false
	}
	return run{pid: pid, began: fields[19]}, true
}

func (r run) lives() bool {
	now, ok := findRun(r.pid)
	return ok && now == r
}

func (r run) dir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("pgtest-%d-%s", r.pid, r.began))
}

// offer is what a host prints when its server is ready, or why it is not.
type offer struct {
	URL      string
	Pristine string // for embedded.Config
	Error    string
}

// hostVariable in the environment makes a test program the host of a run. Its
// value is the id of the go test process.
const hostVariable = "PGTEST_HOST"

// join returns the server of a run, and starts it if there is none. The caller
// need not stop it.
func (r run) join(ctx context.Context) (*embedded.Server, error) {
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(r.dir())
	if err != nil {
		return nil, err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; !info.IsDir() || int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("%s, the directory of the run, belongs to user %d: remove it, or set TMPDIR", r.dir(), owner)
	}
	lock, err := os.OpenFile(filepath.Join(r.dir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	if o, ok := r.offered(); ok {
		if server, err := embedded.Start(ctx, embedded.Config{URL: o.URL}); err == nil {
			return server, nil
		}
	}
	o, err := r.startHost()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(r.offerFile(), text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return embedded.Start(ctx, embedded.Config{URL: o.URL})
}

func (r run) offerFile() string { return filepath.Join(r.dir(), "offer") }

// offered returns the offer of the last host, which may have died. A file that
// is half written is no offer.
func (r run) offered() (o offer, ok bool) {
	text, err := os.ReadFile(r.offerFile())
	return o, err == nil && json.Unmarshal(text, &o) == nil
}

// dataDir returns the pristine data directory of the run that runs this program,
// "" if there is none. It does not start a host, which costs more than initdb.
func dataDir() string {
	r, ok := currentRun()
	if !ok {
		return ""
	}
	o, _ := r.offered()
	return o.Pristine
}

// startHost starts a host and waits until it has a server. The host outlives
// this process.
func (r run) startHost() (o offer, err error) {
	program, err := os.Executable()
	if err != nil {
		return o, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), hostVariable+"="+strconv.Itoa(r.pid))
	cmd.Dir = "/" // a directory of a test may be removed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return o, err
	}
	if err := cmd.Start(); err != nil {
		return o, fmt.Errorf("the host of the run's server: %w", err)
	}
	line, err := bufio.NewReader(answer).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err == nil && o.Error != "" {
		err = errors.New(o.Error)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return o, errors.Join(fmt.Errorf("the host of the run's server: %w", err), cmd.Wait())
	}
	return o, cmd.Process.Release()
}

// host runs the server of a run if this process is to do that, and then exits.
func host() {
	pid := os.Getenv(hostVariable)
	if pid == "" {
		return
	}
	id, err := strconv.Atoi(pid)
	r, ok := findRun(id)
	if err != nil || !ok {
		os.Exit(0) // the run has ended
	}
	if err := r.serve(); err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(offer{Error: err.Error()}) // stdout is closed after an offer
		os.Exit(1)
	}
	os.Exit(0)
}

// serve starts the server, offers it, and stops it when the run has ended.
func (r run) serve() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s := shared{settings: map[string]string{"max_connections": strconv.Itoa(max(600, 300*runtime.GOMAXPROCS(0)))}}
	defer func() { err = errors.Join(err, s.close(), os.RemoveAll(r.dir())) }()
	p, err := embedded.MakePristine(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Remove()) }()
	s.dataDir = p.Path()
	if err := s.begin(ctx); err != nil {
		return err
	}
	if err := s.makeTemplate(runTemplate, applyEvents); err != nil {
		return err
	}
	if err := errors.Join(json.NewEncoder(os.Stdout).Encode(offer{URL: s.server.URL(""), Pristine: p.Path()}), os.Stdout.Close()); err != nil {
		return err
	}
	// The kernel tells a process of the end of its own parent and children only.
	for r.lives() {
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}
