package sim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

// Role is what a process needs to know that is a worker of a run.
type Role struct {
	Name     string // in the history: "worker 2.1"
	URL      string // of the run's database; secret
	Scenario Scenario
	Version  int64     // of the program
	Began    time.Time // the run, by the clock of the machine
}

// Run runs the worker until ctx ends or it fails. What happens is told as it
// happens. An order lets a handler break the rules, if there is an event soon:
// either a transaction is told that it ended, or that this fault is over.
func (r Role) Run(ctx context.Context, orders <-chan struct{}, tell func(history.Record)) error {
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return errors.New("sim: the connection string cannot be parsed (not shown, it may hold a password)")
	}
	config.RuntimeParams["application_name"] = "sim " + r.Name
	config.DefaultQueryExecMode = oneOf(fault.Dice(r.Scenario.Seed, "node "+r.Name), execModes...)
	if r.Scenario.Jobs != nil {
		return r.runJobs(ctx, config, tell)
	}
	h, o := history.Tell(time.Now(), tell), &byOrder{}
	r.Scenario.watchMerges(config, h, r.Name)
	n := &node{machine: &machine{name: r.Name, history: h, db: stdlib.OpenDB(*config)}, knobs: r.Scenario.Knobs}
	defer n.db.Close()
	n.db.SetMaxOpenConns(poolSize(len(r.Scenario.Scope)))
	n.db.SetMaxIdleConns(poolSize(len(r.Scenario.Scope)))
	n.newWorker(r.Scenario, h, o, r.URL)
	config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	var ordered sync.WaitGroup
	defer ordered.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ordered.Go(func() {
		o.wait(ctx, orders, func() { h.Add(r.Name, "", history.FaultOver, history.Injection{Fault: history.Breaches}) })
	})
	return n.worker.Start(ctx)
}

// byOrder injects nothing, but lets handlers break the rules when it is told to.
type byOrder struct{ told atomic.Bool }

func (o *byOrder) inject(ctx context.Context, b *bookkeeper, d delivered) (bool, error) {
	return b.breach(ctx, d, func() bool { return o.told.CompareAndSwap(true, false) })
}

func (*byOrder) count(history.Fault)     {}
func (*byOrder) breached(history.Breach) {}

// wait waits for orders until ctx ends. It says so if one came to nothing, as
// there was no event.
func (o *byOrder) wait(ctx context.Context, orders <-chan struct{}, inVain func()) {
	const enough = 2 * time.Second
	for {
		select {
		case <-orders:
		case <-ctx.Done():
			return
		}
		o.told.Store(true)
		backoff.Sleep(ctx, enough)
		if o.told.CompareAndSwap(true, false) {
			inVain()
		}
	}
}
