//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// troupe plays the workers of a run with processes, and lets faults befall
// them and the server.
type troupe struct {
	config Config
	faults Faults           // that are on
	cannot map[string]error // and those that this machine cannot do
	site   *site
	stage  sim.Stage
	places []*place
	// copying is held to copy the server, and shared to break a rule.
	copying sync.RWMutex
}

// dice gives each actor randomness of its own.
func dice(seed uint64, actor string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(actor)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Act is the cast's part until intake ends.
func (t *troupe) Act(ctx, intake context.Context, on sim.Stage) error {
	t.stage = on
	for i := range t.config.Workers {
		actor := fmt.Sprintf("worker %d", i+1)
		r := dice(t.config.Seed, actor)
		t.places = append(t.places, &place{troupe: t, number: i + 1, dice: r, deck: deck{faults: t.faults, worker: true, dice: r}})
	}
	// One that fails ends the others.
	intake, fail := context.WithCancel(intake)
	defer fail()
	errs := make([]error, len(t.places)+1)
	var wg sync.WaitGroup
	for i, p := range t.places {
		wg.Go(func() {
			if errs[i] = p.run(ctx, intake); errs[i] != nil {
				fail()
			}
		})
	}
	wg.Go(func() {
		if errs[len(t.places)] = t.direct(ctx, intake); errs[len(t.places)] != nil {
			fail()
		}
	})
	wg.Wait()
	for _, p := range t.places {
		errs = append(errs, p.ensure(ctx))
	}
	on.Refresh()
	return errors.Join(errs...)
}

// direct lets faults befall the server until intake ends.
func (t *troupe) direct(ctx, intake context.Context) error {
	r := dice(t.config.Seed, "server")
	var struck []history.Fault // that are not over
	d := &director{site: t.site, dice: r, links: t.links, stage: t.stage, copying: &t.copying, count: func(f history.Fault, where string) {
		t.happened("", f, where)
		struck = append(struck, f)
	}}
	cards := deck{faults: t.faults, dice: r}
	for backoff.Sleep(intake, d.between(2*time.Second, 6*time.Second)) {
		name := cards.deal()
		if name == "" {
			continue
		}
		if err := strikes[name](d, ctx); err != nil {
			return errors.Join(fmt.Errorf("chaos: %s: %w", name, err), ctx.Err())
		}
		for _, f := range struck {
			t.stage.History.Add("", "", history.FaultOver, history.Injection{Fault: f})
		}
		struck = nil
		t.stage.Refresh()
	}
	return ctx.Err()
}

func (t *troupe) happened(who string, f history.Fault, where string) {
	t.stage.Count(f)
	t.stage.History.Add(who, "", history.FaultInjected, history.Injection{Fault: f, Where: where})
}

// Stop ends all worker processes and tells how all of them ended.
func (t *troupe) Stop(ctx context.Context) []history.Exit {
	var wg sync.WaitGroup
	for _, p := range t.places {
		wg.Go(func() { p.stop(ctx) })
	}
	wg.Wait()
	var exits []history.Exit
	for _, p := range t.places {
		exits = append(exits, p.exits...)
	}
	return exits
}

// Sign tells the report which faults were on, and how often each happened.
func (t *troupe) Sign(r *oracle.Report, happened func(history.Fault) int64) {
	r.Counts = slices.DeleteFunc(r.Counts, func(c history.Count) bool { return c.Count == 0 || slices.Contains(counted, c.Fault) })
	for _, f := range counted {
		r.Counts = append(r.Counts, history.Count{Fault: f, Count: happened(f)})
	}
	r.Faults = nil
	for _, k := range kinds {
		if t.faults[k.name] > 0 {
			r.Faults = append(r.Faults, oracle.Struck{Name: k.name, Intensity: t.faults[k.name], Count: happened(k.count)})
		}
	}
	for i, k := range r.Knobs {
		if k.Name == "faults" {
			r.Knobs[i].Value = t.faults.String()
		}
	}
	for name, err := range t.cannot {
		r.Knobs = append(r.Knobs, oracle.Line{Name: "not " + name, Value: err.Error()})
	}
}

// place is one for a worker process: whatever becomes of one, another takes it.
type place struct {
	*troupe
	number, lives int
	dice          *rand.Rand
	deck          deck
	process       *process
	link          atomic.Pointer[sim.Link] // of the process
	exits         []history.Exit
}

// run keeps a worker process going and lets faults befall it until intake ends.
func (p *place) run(ctx, intake context.Context) error {
	if err := p.start(); err != nil {
		return err
	}
	for p.pause(intake, 2*time.Second, 7*time.Second) {
		if p.process.ended() {
			if err := p.replace(ctx); err != nil {
				return err
			}
			continue
		}
		switch p.deck.deal() {
		case "kill":
			if p.process.broke.Load() {
				continue // nobody else could mend what its handler did
			}
			p.process.signal(syscall.SIGKILL)
			p.happened(p.process.name, history.Killed, "")
			p.bury(ctx, history.ExitCrashed, recovery)
			p.pause(intake, 0, p.stage.Scenario.Knobs.Outage)
			if err := p.start(); err != nil {
				return err
			}
		case "stop":
			p.process.signal(syscall.SIGSTOP)
			p.happened(p.process.name, history.Stopped, "")
			p.pause(intake, 200*time.Millisecond, p.stage.Scenario.Knobs.HeartbeatTimeout*2)
			p.process.signal(syscall.SIGCONT)
			p.stage.History.Add(p.process.name, "", history.FaultOver, history.Injection{Fault: history.Stopped})
		case "hole":
			p.hole()
		case "contract":
			if err := p.breakRule(ctx, intake); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (p *place) pause(ctx context.Context, low, high time.Duration) bool {
	return backoff.Sleep(ctx, low+time.Duration(p.dice.Int64N(int64(high-low))))
}

// hole makes half of the process's connections die in silence. The worker is to
// find out by itself.
func (p *place) hole() {
	n := p.link.Load().Swallow()
	for range n {
		p.stage.Count(history.Swallowed)
	}
	if n > 0 {
		p.stage.History.Add(p.process.name, "", history.FaultInjected, history.Injection{Fault: history.Swallowed, Where: fmt.Sprintf("%d of them", n)})
	}
}

// breakRule lets a handler of the process end its transaction. The worker is to
// repair what that did, and to end with the error that says so. No copy of the
// server is made meanwhile: it would have what the handler did, and not the
// repair.
func (p *place) breakRule(ctx, intake context.Context) error {
	if p.process.broke.Load() {
		return nil // once in a life
	}
	p.copying.RLock()
	defer p.copying.RUnlock()
	answered, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	if p.process.breakRule(answered) {
		p.bury(ctx, history.ExitBroke, recovery)
		p.pause(intake, 0, p.stage.Scenario.Knobs.Outage)
		return p.start()
	}
	if p.process.broke.Load() { // perhaps it did, and the answer was lost
		p.process.ends(ctx, 15*time.Second)
	}
	return nil
}

func (p *place) start() (err error) {
	p.lives++
	p.process = nil
	name := fmt.Sprintf("worker %d.%d", p.number, p.lives)
	connect, attributes := p.site.link, " target_session_attrs=read-write"
	if p.followed() {
		connect, attributes = p.site.linkToPrimary, ""
	}
	link, err := connect(p.config.Seed, name)
	if err != nil {
		return err
	}
	p.process, err = startProcess(p.config.Program, sim.Role{
		Name: name, URL: p.site.urlThrough(p.stage.Database, link.Ports()) + attributes, Scenario: p.stage.Scenario,
	}, p.stage)
	if err != nil {
		link.Close()
		return err
	}
	p.link.Store(link)
	return nil
}

// followed reports whether the process knows one address, behind which somebody
// follows the primary. The others know all servers, and choose.
func (p *place) followed() bool { return p.number%2 == 1 }

// links are those of processes that take for the primary where they are led.
func (t *troupe) links() (links []*sim.Link) {
	for _, p := range t.places {
		if l := p.link.Load(); l != nil && p.followed() {
			links = append(links, l)
		}
	}
	return links
}

// bury takes down how the process ends, and frees what it leaves.
func (p *place) bury(ctx context.Context, asked string, bound time.Duration) {
	p.exits = append(p.exits, p.process.await(ctx, asked, bound))
	p.link.Load().Close()
}

// replace takes down how a process has ended that nobody had asked to, and
// starts another. One that could not start, because the server was away, is no
// failure: whoever runs workers starts them again.
func (p *place) replace(ctx context.Context) error {
	why := history.ExitItself
	if !p.process.began.Load() {
		why = history.ExitOutage
		p.happened(p.process.name, FailedStarts, "")
	}
	p.bury(ctx, why, recovery)
	return p.start()
}

// ensure waits until the worker runs.
func (p *place) ensure(ctx context.Context) error {
	if p.process == nil {
		return nil // it failed to start, which has been told
	}
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	for !p.process.began.Load() {
		if p.process.ended() {
			if err := p.replace(ctx); err != nil {
				return err
			}
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("chaos: waited in vain for %s to run: %w\n%s", p.process.name, ctx.Err(), p.process.log.String())
		}
	}
	return nil
}

// stop ends the process, politely if there is time.
func (p *place) stop(ctx context.Context) {
	if p.process == nil {
		return
	}
	if ctx.Err() != nil {
		p.process.kill()
		p.bury(ctx, history.ExitCrashed, recovery)
		return
	}
	p.process.signal(syscall.SIGTERM)
	p.bury(ctx, history.ExitStopped, p.stage.Scenario.Knobs.BatchTimeout+10*time.Second)
}
