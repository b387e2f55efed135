//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Run is the driver's part until intake ends.
func (p *processes) Run(ctx, intake context.Context, env sim.Env) error {
	p.env = env
	p.suspended = make(chan struct{}, p.config.suspensions())
	for i := range p.config.Workers {
		actor := fmt.Sprintf("worker %d", i+1)
		r := fault.Dice(p.config.Seed, actor)
		p.slots = append(p.slots, &slot{processes: p, number: i + 1, dice: r, deck: p.faults.deck(r, p.config.rows().ofProcesses())})
	}
	// One that fails ends the others.
	intake, fail := context.WithCancel(intake)
	defer fail()
	errs := make([]error, len(p.slots)+2)
	var wg sync.WaitGroup
	for i, s := range p.slots {
		wg.Go(func() {
			if errs[i] = s.run(ctx, intake); errs[i] != nil {
				fail()
			}
		})
	}
	if p.faults[killLeader] > 0 {
		wg.Go(func() { p.killLeaders(intake) })
	}
	if p.faults[rescale] > 0 {
		wg.Go(func() {
			if errs[len(p.slots)+1] = p.rescales(ctx, intake); errs[len(p.slots)+1] != nil {
				fail()
			}
		})
	}
	wg.Go(func() {
		if errs[len(p.slots)] = p.injectServer(ctx, intake); errs[len(p.slots)] != nil {
			fail()
		}
	})
	wg.Wait()
	env.Refresh()
	if err := errors.Join(errs...); err != nil {
		return err // there may be no server to run on
	}
	for _, s := range p.slots {
		errs = append(errs, s.ensureRunning(ctx))
	}
	return errors.Join(errs...)
}

// injectServer injects faults into the server until intake ends.
func (p *processes) injectServer(ctx, intake context.Context) error {
	r := fault.Dice(p.config.Seed, "server")
	var injected []history.Fault // that are not over
	f := &serverFaults{cluster: p.cluster, dice: r, links: p.links, env: p.env, copying: &p.copying, count: func(f history.Fault, where string) {
		p.happened("", f, where)
		injected = append(injected, f)
	}}
	deck := p.faults.deck(r, p.config.rows().ofServer())
	for backoff.Sleep(intake, f.between(2*time.Second, 6*time.Second)) {
		row, ok := deck.Deal()
		if !ok {
			continue
		}
		over := p.hurt()
		err := row.server(f, ctx)
		over()
		if err != nil { // all that a fault of the server does is the harness's
			return errors.Join(fmt.Errorf("chaos: %w", harness.Failed("the fault "+row.Name, f.cluster.bounds.Of(recovery), err)), ctx.Err())
		}
		for _, f := range injected {
			p.env.History.Add("", "", history.FaultOver, history.Injection{Fault: f})
		}
		injected = nil
		p.env.Refresh()
	}
	return ctx.Err()
}

// suspensions is how many processes may be suspended at once. The jobs of one that is
// dead must go on: somebody must be there to take them.
func (c Config) suspensions() int {
	if c.Jobs {
		return max(1, c.Workers/2)
	}
	return c.Workers
}

// Stop ends all worker processes and tells how all of them ended.
func (p *processes) Stop(ctx context.Context) []history.Exit {
	var wg sync.WaitGroup
	for _, s := range p.slots {
		wg.Go(func() { s.stop(ctx) })
	}
	wg.Wait()
	var exits []history.Exit
	for _, s := range p.slots {
		exits = append(exits, s.exits...)
	}
	return exits
}

// Annotate tells the report which faults were on, and how often each happened.
func (p *processes) Annotate(r *oracle.Report, happened func(history.Fault) int64) {
	r.Counts = slices.DeleteFunc(r.Counts, func(c history.Count) bool {
		return c.Count == 0 || slices.Contains(p.config.rows().counters(), c.Fault)
	})
	for _, f := range p.config.rows().counters() {
		r.Counts = append(r.Counts, history.Count{Fault: f, Count: happened(f)})
	}
	r.Faults = p.config.rows().table().On(p.faults, happened)
	for i, k := range r.Knobs {
		if k.Name == "faults" {
			r.Knobs[i].Value = p.config.rows().table().Format(p.faults)
		}
	}
	for name, err := range p.cannot {
		r.Knobs = append(r.Knobs, oracle.Line{Name: "not " + name, Value: err.Error()})
	}
}

// links are those of processes that take for the primary where they are led.
func (p *processes) links() (links []*network.Link) {
	for _, s := range p.slots {
		if l := s.link.Load(); l != nil && s.followed() {
			links = append(links, l)
		}
	}
	return links
}
