package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/lab/subprocess"
)

// Bounds of the wait for processes that were told to end. They take
// milliseconds, or a little longer on a busy machine.
const (
	grace    = 5 * time.Second  // for one that may not have heard, as it was stopped
	patience = 30 * time.Second // for one that was killed
)

// account is the user that the server runs as. nil: the current one.
type account struct{ uid, gid uint32 }

// serverAccount picks a user for the server if the current one is root, as
// whom PostgreSQL refuses to run.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	const remedy = "run as an ordinary user, or name a server that runs with -db or DATABASE_URL"
	if runtime.GOOS != "linux" {
		return nil, errors.New("embedded: PostgreSQL refuses to run as root: " + remedy)
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(errUID, errGID); err != nil {
			return nil, fmt.Errorf("embedded: user %s: %w", name, err)
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("embedded: PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as: " + remedy)
}

// give makes the account the owner of a file.
func (a *account) give(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// run runs a program to its end and returns what it printed.
func run(ctx context.Context, who *account, dir, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, environment(os.Environ())
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = attributes(who, syscall.SIGKILL)
	p, err := subprocess.Start(cmd, nil)
	if err != nil {
		return "", err
	}
	<-p.Done() // also waits until the last child has closed the output
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if state := p.State(); !state.Success() {
		return out.String(), errors.New(state.String())
	}
	return out.String(), nil
}

// environment leaves out what would change the server's settings or its
// language, and the secrets of other connections.
func environment(own []string) []string {
	var env []string
	for _, e := range own {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") && !strings.HasPrefix(e, "DATABASE_URL=") {
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C")
}

// process is a postmaster and what it forks, or a proxy.
type process struct {
	*subprocess.Process
	data string // the data directory, where all of them work
}

// spawn starts a postmaster or a proxy. When this process ends, it gets the
// signal death.
func spawn(who *account, data, log string, death syscall.Signal, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = data, environment(os.Environ())
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = attributes(who, death)
	p, err := subprocess.Start(cmd, nil)
	return &process{p, data}, err
}

// shutdown ends all sessions, then the server ("fast"), and waits for it. When
// ctx ends first, it aborts the server, and that is the error.
func (p *process) shutdown(ctx context.Context) error {
	if err := p.signal(syscall.SIGINT); err != nil {
		return errors.Join(err, p.kill())
	}
	select {
	case <-p.Done():
		return killAll(p.data, 0) // there is nobody, unless the postmaster crashed
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("embedded: the server did not shut down and was made to: %w", ctx.Err()), p.abort())
	}
}

// abort ends the server without saving anything ("immediate"). The postmaster
// would grant its children some seconds, which one that hangs would use up.
func (p *process) abort() error {
	err := p.signal(syscall.SIGQUIT)
	if err == nil {
		err = killAll(p.data, p.Pid())
	}
	if err == nil {
		select {
		case <-p.Done():
			return nil
		case <-time.After(grace):
		}
	}
	return errors.Join(err, p.kill())
}

// kill ends the whole server at once and waits until it is gone.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return killAll(p.data, 0)
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("embedded: process %d cannot be sent %q: %w", p.Pid(), sig, err)
	}
	return nil
}

// ready waits until the postmaster accepts connections, as it says itself in
// its pid file, which pg_ctl reads too.
func (p *process) ready(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid")); err == nil && saysReady(string(text), p.Pid()) {
			return nil
		}
		select {
		case <-p.Done():
			return errors.New("the server ended while it was starting")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// saysReady reads a postmaster.pid: the first line is the pid, the eighth the
// status (LOCK_FILE_LINE_* in PostgreSQL's pidfile.h). One with another pid was
// left by a crash.
func saysReady(text string, pid int) bool {
	lines := strings.Split(text, "\n")
	return len(lines) > 7 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// indent sets a program's output off from the error that it explains.
func indent(out string) string {
	out = strings.TrimSpace(out)
	if out == "" {
		return ""
	}
	return ":\n\t" + strings.ReplaceAll(out, "\n", "\n\t")
}
