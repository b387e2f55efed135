package subprocess

import (
	"os"
	"os/exec"
	"runtime"
)

// Process is a process that [Start] has started.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts cmd. On Linux the process gets the parent-death signal of
// cmd.SysProcAttr, SIGKILL by default, when this process ends, however that
// comes. On Unix it has a process group of its own: an interrupt typed at the
// terminal is for this process to handle.
//
// Start waits for the process in the background, after listen has returned.
// listen reads the pipes of cmd to their end; nil if there are none.
func Start(cmd *exec.Cmd, listen func()) (*Process, error) {
	cmd.SysProcAttr = dependent(cmd.SysProcAttr)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // the parent-death signal comes when the forking thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if listen != nil {
			listen()
		}
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and all it printed was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether Done is still open.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// State tells how the process ended. Call it after Done.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Signal sends a signal. The error is os.ErrProcessDone if the process has
// ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process, also a stopped one, and waits until Done.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // or it has ended
	<-p.done
}
