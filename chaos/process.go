//go:build unix

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/subprocess"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/history"
)

// process is a worker process. Its starter waits for its end.
type process struct {
	*subprocess.Process
	name    string
	orders  io.WriteCloser // its standard input
	log     subprocess.Tail
	began   atomic.Bool   // its worker runs, or did
	broke   atomic.Bool   // a handler of it broke the rules, or tried to
	faulted atomic.Bool   // something happened to it, or to its server
	leads   atomic.Bool   // the others, as it has told
	killed  atomic.Bool   // by somebody else than its slot
	answers chan bool     // to an order: whether a transaction ended
	saidEnd bool          // it has told that its worker ended; read after Process.Done
	done    chan struct{} // closed when it has ended and all that it told is written down
}

// startProcess starts a program as a worker process in a role. What it tells is
// written down.
func startProcess(program []string, role sim.Role, env sim.Env) (*process, error) {
	text, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	p := &process{name: role.Name, answers: make(chan bool, 1), done: make(chan struct{})}
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Stderr = &p.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.orders = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.Process, err = subprocess.Start(cmd, func() { p.listen(out, env) }); err != nil {
		return nil, fmt.Errorf("chaos: %s: %w", p.name, err)
	}
	go func() {
		defer close(p.done)
		<-p.Done()
		if p.began.Load() && !p.saidEnd {
			env.History.Add(p.name, "", history.WorkerEnded, history.Life{Error: p.State().String()})
		}
	}()
	_, _ = in.Write(append(text, '\n')) // or it has ended already
	return p, nil
}

// listen writes down what the process tells until it ends. The last line of
// one that was killed may be cut off.
func (p *process) listen(out io.Reader, env sim.Env) {
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
			p.saidEnd = true
		case history.Leads, history.LeadsNoMore:
			p.leads.Store(r.Kind == history.Leads)
		}
		env.Take(r)
		p.answer(r, env)
	}
	_, _ = io.Copy(io.Discard, out) // a line too long
}

// answer records what the process says of an order to break the rules.
func (p *process) answer(r history.Record, env sim.Env) {
	switch about := r.About.(type) {
	case history.Breach:
		p.broke.Store(true)
		env.Breached(about)
		if about.Ended {
			p.answers <- true
		}
	case history.Injection:
		if r.Kind == history.FaultInjected {
			env.Count(about.Fault)
		} else {
			p.answers <- false
		}
	}
}

// breakRule orders a handler of the process to end its transaction, and reports
// whether one did. It gives up if the process ends, or ctx.
func (p *process) breakRule(ctx context.Context) bool {
	_, _ = p.orders.Write([]byte("\n")) // or it has ended already
	select {
	case ended := <-p.answers:
		return ended
	case <-p.done:
	case <-ctx.Done():
	}
	return false
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ends waits until the process has ended, its time is over or ctx ends.
func (p *process) ends(ctx context.Context, bound time.Duration) {
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
	case <-ctx.Done():
	}
}

// fault takes down that something happens to the process.
func (p *process) fault(env sim.Env) {
	p.faulted.Store(true)
	env.Fault(p.name)
}

func (p *process) signal(s syscall.Signal) { _ = p.Signal(s) } // or it has ended

// kill ends the process, also one that is stopped.
func (p *process) kill() {
	p.Kill()
	<-p.done
}

// await waits for the end of the process, whose time is bounded, and takes it
// down. The end of ctx ends the process.
func (p *process) await(ctx context.Context, asked string, bound time.Duration) history.Exit {
	x := history.Exit{Worker: p.name, Asked: asked, Bound: bound}
	p.ends(ctx, bound)
	if x.InTime = p.ended(); !x.InTime {
		p.kill()
	}
	_ = p.orders.Close()
	if state := p.State(); !state.Success() {
		x.Error = strings.TrimSpace(state.String() + "\n" + p.log.String())
	}
	unknown := strings.Contains(x.Error, worker.ErrOutcomeUnknown.Error()) ||
		p.faulted.Load() && strings.Contains(x.Error, jobs.ErrUnsettled.Error())
	switch named := unknown || strings.Contains(x.Error, worker.ErrTransactionEnded.Error()); {
	case p.killed.Load():
		x.Asked = history.ExitCrashed
	case named && p.broke.Load():
		x.Asked = history.ExitBroke
	case unknown:
		x.Asked = history.ExitOutage
	case asked == history.ExitBroke && x.InTime:
		x.Asked = history.ExitItself
	}
	return x
}
