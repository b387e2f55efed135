//go:build unix

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// slot is a place for a worker process: whatever becomes of one, another takes
// over.
type slot struct {
	*processes
	number, lives int
	dice          *rand.Rand
	deck          *fault.Deck[faultRow]
	process       *process
	current       atomic.Pointer[process]      // the same, for others
	version       int64                        // of the process
	link          atomic.Pointer[network.Link] // of the process
	exits         []history.Exit
}

// run keeps a worker process going and injects faults until intake ends.
func (s *slot) run(ctx, intake context.Context) error {
	if err := s.start(); err != nil {
		return err
	}
	for intake.Err() == nil {
		if err := s.keepUp(ctx, intake, s.between(2*time.Second, 7*time.Second)); err != nil {
			return err
		}
		if intake.Err() != nil || s.process.ended() {
			continue
		}
		row, ok := s.deck.Deal()
		if !ok {
			continue
		}
		if err := row.process(s, ctx, intake); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// keepUp keeps a process of the latest version going for a while, or until intake
// ends.
func (s *slot) keepUp(ctx, intake context.Context, while time.Duration) error {
	for until := time.Now().Add(while); time.Now().Before(until); {
		var err error
		switch {
		case s.process.ended():
			const soon = 500 * time.Millisecond // a server that is away is away for a while
			if backoff.Sleep(intake, soon) {
				err = s.replaceDead(ctx)
			}
		case s.version < s.latest.Load():
			err = s.update(ctx)
		}
		if err != nil || !backoff.Sleep(intake, 20*time.Millisecond) {
			return err
		}
	}
	return nil
}

func (s *slot) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.dice.Int64N(int64(high-low)))
}

func (s *slot) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, s.between(low, high))
}

// bound is how long the harness waits on this machine.
func (s *slot) bound(d time.Duration) time.Duration { return s.env.Bounds.Of(d) }

func (s *slot) start() (err error) {
	s.lives++
	s.process, s.version = nil, s.latest.Load()
	name := fmt.Sprintf("worker %d.%d", s.number, s.lives)
	connect, attributes := s.cluster.link, " target_session_attrs=read-write"
	if s.followed() {
		connect, attributes = s.cluster.linkToPrimary, ""
	}
	link, err := connect(s.config.Seed, name)
	if err != nil {
		return harness.Failed("the relay of a worker process", 0, err)
	}
	program, began := s.config.Program, s.env.Began
	if s.number == 1 && s.config.Ahead != nil {
		program, began = s.config.Ahead, began.Add(time.Hour) // by its clock
	}
	s.process, err = startProcess(program, sim.Role{
		Role:     stage.Role{Name: name, URL: s.cluster.urlThrough(s.env.Database, link.Ports()) + attributes, Version: s.version, Began: began},
		Scenario: s.scenario,
	}, s.env)
	if err != nil {
		link.Close()
		return harness.Failed("the start of a worker process", 0, err)
	}
	s.link.Store(link)
	s.current.Store(s.process)
	if s.hurting.Load() {
		s.process.fault(s.env)
	}
	return nil
}

// followed reports whether the process knows one address, behind which somebody
// follows the primary. The others know all servers, and choose.
func (s *slot) followed() bool { return s.number%2 == 1 }

// cleanUp takes down how the process ends, and frees what it leaves.
func (s *slot) cleanUp(ctx context.Context, asked string, bound time.Duration) {
	s.exits = append(s.exits, s.process.await(ctx, asked, bound))
	s.link.Load().Close()
}

// replaceDead takes down how a process has ended that nobody had asked to, and
// starts another. One that could not start, because the server was away, is no
// failure: operators start workers again.
func (s *slot) replaceDead(ctx context.Context) error {
	why := history.ExitItself
	if !s.process.began.Load() {
		why = history.ExitOutage
		s.happened(s.process.name, failedStarts, "")
	}
	s.cleanUp(ctx, why, s.bound(recovery))
	return s.start()
}

// ensureRunning waits until the worker runs.
func (s *slot) ensureRunning(ctx context.Context) error {
	if s.process == nil {
		return nil // it failed to start, which has been told
	}
	ctx, cancel := context.WithTimeout(ctx, s.bound(recovery))
	defer cancel()
	for !s.process.began.Load() {
		if s.process.ended() {
			if err := s.replaceDead(ctx); err != nil {
				return err
			}
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("chaos: waited in vain for %s to run: %w\n%s", s.process.name, ctx.Err(), s.process.log.String())
		}
	}
	return nil
}

// stop ends the process, politely if there is time.
func (s *slot) stop(ctx context.Context) {
	if s.process == nil {
		return
	}
	if ctx.Err() != nil {
		s.process.kill()
		s.cleanUp(ctx, history.ExitCrashed, s.bound(recovery))
		return
	}
	s.process.signal(syscall.SIGTERM)
	s.cleanUp(ctx, history.ExitStopped, s.scenario.EndBound(s.env.Bounds))
}

// processes drives a run whose workers are processes, and injects faults into
// them and the servers.
type processes struct {
	config   Config
	faults   Faults           // that are on
	cannot   map[string]error // and those that this machine cannot do
	cluster  *cluster
	scenario sim.Scenario
	env      sim.Env
	slots    []*slot
	// copying is held to copy the server, and shared to break a rule.
	copying sync.RWMutex

	suspended chan struct{} // one for each process that may be suspended at a time
	hurting   atomic.Bool   // a fault of the server is under way
	latest    atomic.Int64  // version of the program: a deployment raises it
	updating  sync.Mutex    // held while a process is replaced by one of a later version
}

// hurt takes down that a fault is injected into the server, until it is over. The
// oracle excuses what workers lose meanwhile.
func (p *processes) hurt() (over func()) {
	from := time.Now()
	all := func() {
		for _, s := range p.slots {
			if x := s.current.Load(); x != nil {
				x.fault(p.env)
			}
		}
	}
	p.hurting.Store(true)
	all()
	return func() {
		all()
		p.hurting.Store(false)
		p.env.Outage(from)
	}
}

func (p *processes) happened(who string, f history.Fault, where string) {
	p.env.Count(f)
	p.env.History.Add(who, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}
