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
)

// account is the user that the server runs as. nil: the current one.
type account struct{ uid, gid uint32 }

// serverAccount picks a user for the server if the current one is root, as
// whom PostgreSQL refuses to run.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if runtime.GOOS != "linux" {
		return nil, errors.New("embedded: PostgreSQL refuses to run as root: run as an ordinary user, or name a server with -db or DATABASE_URL")
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
	return nil, errors.New("embedded: PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody to run it as: run as an ordinary user, or name a server with -db or DATABASE_URL")
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
	// The parent-death signal comes when the forking thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, environment()
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = attributes(who, syscall.SIGKILL)
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	err := cmd.Run() // also waits until the last child has closed the output
	if ctx.Err() != nil {
		return "", fmt.Errorf("embedded: %w", ctx.Err())
	}
	return out.String(), err
}

// environment is this process's, less what would change the server's settings
// or language, and less the secrets of other connections.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") && !strings.HasPrefix(e, "DATABASE_URL=") {
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C")
}

// process is a postmaster.
type process struct {
	pid  int
	done chan struct{} // closed when it has ended and was waited for
}

// spawn starts a postmaster whose goroutine keeps its thread until the server
// has ended: the parent-death signal comes when the forking thread ends.
func spawn(who *account, dir, log, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, environment()
	cmd.Stdout, cmd.Stderr = out, out
	// On SIGQUIT the postmaster ends its children and removes its shared
	// memory; killed, it could do neither.
	cmd.SysProcAttr = attributes(who, syscall.SIGQUIT)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) error {
	child, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	return child.Signal(s)
}

// kill ends the whole server at once, and waits until it is gone.
func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	err := killServer(p.pid)
	if err == nil {
		<-p.done
	}
	return err
}

// ready waits until the postmaster accepts connections, as it says itself in
// postmaster.pid, where pg_ctl looks too.
func (p *process) ready(ctx context.Context, data string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if f := readPIDFile(data); f.pid == p.pid && f.status == "ready" {
			return nil
		}
		select {
		case <-p.done:
			return errExited
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

var errExited = errors.New("the server ended while it was starting")

// pidFile is what postmaster.pid tells (miscadmin.h, LOCK_FILE_LINE_*).
type pidFile struct {
	pid    int
	status string
}

func readPIDFile(data string) pidFile {
	text, _ := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	var f pidFile
	f.pid, _ = strconv.Atoi(lines[0])
	if len(lines) > 7 {
		f.status = strings.TrimSpace(lines[7])
	}
	return f
}
