//go:build unix

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/tail"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/history"
)

// process is a worker process. Whoever starts it waits for its end.
type process struct {
	name     string
	cmd      *exec.Cmd
	lifeline io.Closer // its standard input
	log      tail.Buffer
	began    atomic.Bool   // its worker runs, or did
	farewell bool          // it has told that it ended; read after done
	done     chan struct{} // closed when it has ended and all that it told is written down
}

// startProcess starts a program as a worker process in a role. What it tells goes into the
// history.
func startProcess(program []string, role sim.Role, h *history.History) (*process, error) {
	text, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	p := &process{name: role.Name, cmd: exec.Command(program[0], program[1:]...), done: make(chan struct{})}
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = dependent()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.lifeline = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // the parent-death signal comes when the forking thread ends
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.listen(out, h)
			_ = p.cmd.Wait() // how it ended is in ProcessState
			if p.began.Load() && !p.farewell {
				h.Add(p.name, "", history.WorkerEnded, history.Life{Error: p.cmd.ProcessState.String()})
			}
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("chaos: %s: %w", p.name, err)
	}
	_, _ = in.Write(append(text, '\n')) // or it has ended already
	return p, nil
}

// listen writes down what the process tells until it ends. The last line of
// one that was killed may be cut off.
func (p *process) listen(out io.Reader, h *history.History) {
	lines := bufio.NewScanner(out)
	const longest = 1 << 20
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var r history.Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue
		}
		switch r.Kind {
		case history.WorkerBegan:
			p.began.Store(true)
		case history.WorkerEnded:
			p.farewell = true
		}
		h.Add(r.Who, r.Consumer, r.Kind, r.About)
	}
	_, _ = io.Copy(io.Discard, out) // a line too long
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // or it has ended

// kill ends the process, also one that is stopped.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// await waits for the end of the process, whose time is bounded, and takes it
// down.
func (p *process) await(asked string, bound time.Duration) history.Exit {
	x := history.Exit{Worker: p.name, Asked: asked, Bound: bound}
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case <-p.done:
		x.InTime = true
	case <-late.C:
		p.kill()
	}
	_ = p.lifeline.Close()
	if state := p.cmd.ProcessState; !state.Success() {
		x.Error = strings.TrimSpace(state.String() + "\n" + p.log.String())
	}
	return x
}
