// Package jobs makes runs of jobs. table.go lists the faults.
package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// workerConnections is the most that the pool of a worker of jobs has.
const workerConnections = 12

// Simulation is a run of jobs: enqueuers, workers of jobs and operators, in place of the
// writers and workers of a run of events.
type Simulation struct {
	*shared
	zero      time.Time // when it began, by the server's clock
	enqueuers []*enqueuer
	slots     []*slot
	operators []*operator
	emitter   *emitter
	emitting  []*events.Slot // of workers of consumers that enqueue
}

// Connections is about how many connections a run of jobs has open at its busiest.
func Connections(workers, enqueuers int) int {
	return 2*workerConnections*workers + 2*events.PoolSize(2)*emitters + enqueuers + 20
}

// New prepares a run of jobs on the server of its database. Without a driver, the workers are in
// this process.
func New(ctx context.Context, p stage.Plan, scenario Scenario, on *server.Instance, driver stage.Driver) (*Simulation, error) {
	on.Mortal = on.Mortal || anyOn(scenario.Faults, func(f faultRow) bool { return f.outage })
	on.Async = anyOn(scenario.Faults, func(f faultRow) bool { return f.async })
	d := &database{events.NewDatabase(on)}
	if err := d.setUp(ctx, scenario.Knobs); err != nil {
		return nil, on.Mine(ctx, err)
	}
	s := newSimulation(p, scenario, d, driver)
	var err error
	if s.operators, err = newOperators(s.shared); err != nil {
		return nil, err
	}
	s.zero, err = d.clock(ctx, s.Began)
	return s, err
}

func newSimulation(p stage.Plan, scenario Scenario, on *database, driver stage.Driver) *Simulation {
	queues := names(scenario.Knobs.Queues)
	x := stage.NewExecution(p, on.Instance, driver, queues)
	s := &Simulation{shared: &shared{Execution: x, scenario: scenario, on: on, ledger: newLedger(x.Began), stalls: make(chan struct{}, max(1, p.Workers/2)), client: jobs.NewClient(on.DB), emits: driver == nil}}
	s.Evidence.Jobs = &history.Jobs{Slowness: max(p.Bounds.Slowness, 1), MaxAttempts: maxAttempts, Queues: queues, RescueBound: scenario.rescueBound().Seconds(), DeadAfter: scenario.deadAfter().Seconds()}
	for _, f := range faultRows {
		s.builds = s.builds.With(f.Row, f.build, scenario.Faults)
	}
	for i := range p.Writers {
		s.enqueuers = append(s.enqueuers, newEnqueuer(i+1, s.shared))
	}
	for i := 0; i < p.Workers && driver == nil; i++ {
		slot := newSlot(i+1, s.shared, injections(scenario.Faults))
		s.slots, s.places = append(s.slots, slot), append(s.places, &slot.Place)
	}
	s.emitter = &emitter{of: s.shared}
	for i := 0; i < emitters && driver == nil; i++ {
		s.emitting = append(s.emitting, events.NewSlot(p.Workers+i+1, emitting(scenario), on.Database, &s.emitter.tally, s.History, s.emitter))
	}
	return s
}

// Run makes the run, judges it, and reports what the oracle found. If ctx ends, it returns an error
// with a report of what was done until then.
func (s *Simulation) Run(ctx context.Context) (*oracle.Report, error) {
	err := s.Execute(ctx, s.act, s.comeToRest, s.stop, s.observe, s.pulse)
	if ctx.Err() == nil {
		j := s.Evidence.Jobs
		j.Forgetful = s.on.Async && s.on.Life() > 0
		s.ledger.collect(j, s.on.Life())
		s.Collect(ctx, err, func() error { return s.on.collect(ctx, j, s.zero) })
		j.Emitted.Workers = len(s.emitting)
	}
	s.Tally.Add(emittersDisturbed, int(s.emitter.disturbed()))
	return s.Report(ctx, err, Faults, s.scenario.Faults, counters...)
}

// act runs enqueuers, slots and operators for the run's duration.
func (s *Simulation) act(ctx context.Context) error {
	intake, over := context.WithTimeout(ctx, s.Plan.Duration)
	defer over()
	a := stage.NewActors(ctx, intake, over)
	for _, slot := range s.slots {
		a.Run(slot.run)
	}
	for _, slot := range s.emitting {
		a.Run(slot.Run)
	}
	if s.Driver != nil {
		env := stage.Env{
			Count: func(f history.Fault) { s.Tally.Add(f, 1) },
			Take: func(r history.Record) {
				if !s.ledger.take(r) {
					s.History.Take(r)
				}
			},
			Fault: func(worker string) { s.ledger.fault(worker) }, Lose: s.ledger.crash, Outage: s.ledger.outage, Breached: func(history.Breach) {},
		}
		a.Run(func(ctx, intake context.Context) error { return s.Drive(ctx, intake, env) })
	}
	for _, e := range s.enqueuers {
		a.Run(e.run)
	}
	for _, o := range s.operators {
		a.Run(o.run)
	}
	err := a.Wait()
	if err == nil {
		err = stage.EnsureAll(ctx, s.slots)
	}
	if err == nil {
		err = stage.EnsureAll(ctx, s.emitting)
	}
	s.History.Add("", "", history.FaultsOver, nil)
	if err == nil {
		err = s.actLast(ctx)
	}
	return err
}

// actLast takes back what operators have set. Then it does a little of what only
// some faults do, so that every invariant is checked in every run: it caps a queue,
// enqueues jobs there, and cancels one; it pauses all schedules; it starts a run of each
// flow; and it lets consumers handle all events again.
func (s *Simulation) actLast(ctx context.Context) error {
	if err := s.on.undoSettings(ctx); err != nil {
		return err
	}
	queue := s.scenario.Knobs.Queues[0]
	o := operator{of: s.shared}
	err := o.change(ctx, queue.Name, func() error {
		_, err := s.on.DB.ExecContext(ctx, `INSERT INTO jobs_queues (name, max_running) VALUES ($1::text, $2::int)`, queue.Name, queue.Concurrency)
		return s.on.Mine(ctx, err)
	})
	if err != nil {
		return fmt.Errorf("sim: the last cap: %w", err)
	}
	backoff.Sleep(ctx, 1200*time.Millisecond) // then it binds
	if err := s.haltAll(ctx); err != nil {
		return fmt.Errorf("sim: pause the schedules: %w", err)
	}
	if err := s.startLast(ctx); err != nil {
		return fmt.Errorf("sim: the last runs of flows: %w", err)
	}
	const many = 20
	var entries []jobs.EnqueueParams
	var all []entry
	for i := range many {
		t := task{Token: fmt.Sprintf("last-%d", i)}
		opts := []jobs.EnqueueOption{jobs.Queue(queue.Name), jobs.GoodUntil(time.Now().Add(time.Minute))}
		if i == 0 {
			opts = append(opts, jobs.In(time.Minute))
		}
		if i == 1 {
			opts = append(opts, jobs.Unique("last"))
		}
		all = append(all, entry{Enqueued: history.Enqueued{Token: t.Token, Who: "harness", Kind: "plain", Queue: queue.Name, Outcome: history.EnqueueCommitted}})
		entries = append(entries, jobs.EnqueueParams{Args: plainTask{t}, Options: opts})
	}
	made, err := s.client.EnqueueMany(ctx, nil, entries)
	if err != nil {
		return fmt.Errorf("sim: the last jobs: %w", err)
	}
	for i, m := range made {
		all[i].ID, all[i].begun = m.ID, s.on.Life()
	}
	s.ledger.enqueue(all)
	answered := s.ledger.cancel(made[0].ID)
	was, err := s.client.Cancel(ctx, nil, made[0].ID)
	if err != nil {
		return fmt.Errorf("sim: cancel the last job: %w", err)
	}
	answered(string(was))
	if len(s.emitting) == 0 {
		return nil
	}
	if err := s.emitter.appendLast(ctx); err != nil {
		return fmt.Errorf("sim: the last event: %w", err)
	}
	return nil
}

// silence is how long a worker may wait for an answer over a connection that has
// died without a sign.
const silence = 35 * time.Second

// comeToRest waits until no event is left to be handled, no job is due any more, none
// runs, all ticks have passed, and all runs of flows have ended.
func (s *Simulation) comeToRest(ctx context.Context) error {
	rest := &s.Evidence.Jobs.Rest
	for began := time.Now(); ; {
		now, err := s.on.atRest(ctx)
		if err != nil {
			return fmt.Errorf("sim: read the jobs: %w", err)
		}
		if rest.Bound == 0 {
			bound := stage.RestBound(now.Due + now.Running + now.Behind + now.Flows)
			if s.scenario.Faults["hole"] > 0 {
				bound += silence
			}
			rest.Bound = s.on.Bounds.Of(bound).Round(time.Second).Seconds()
		}
		rest.Due, rest.Running, rest.Behind, rest.Overdue, rest.Flows, rest.Took = now.Due, now.Running, now.Behind, now.Overdue, now.Flows, time.Since(began).Round(time.Millisecond).Seconds()
		s.Evidence.Rest.Took, s.Evidence.Rest.Bound = time.Since(began).Round(time.Millisecond), time.Duration(rest.Bound)*time.Second
		if rest.Due+rest.Running+rest.Behind+rest.Overdue+rest.Flows == 0 || rest.Took > rest.Bound {
			return nil
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// observe samples how much there is to do until ctx ends, and reports progress.
func (s *Simulation) observe(ctx context.Context) {
	for backoff.Sleep(ctx, 2*stage.SampleEvery) {
		now, err := s.on.atRest(ctx)
		if err != nil {
			continue
		}
		s.Tally.SetLag(now.Due)
		done := s.ledger.done()
		s.History.Add("", "", history.Sampled, history.Sample{Head: done + now.Due, Lag: now.Due, Checkpoints: map[string]int64{}})
		if s.Plan.Progress != nil {
			s.Plan.Progress(stage.Progress{Elapsed: time.Since(s.Began), Appended: s.ledger.committed(), Handled: done, Crashes: s.Tally.Crashes(), Lag: now.Due})
		}
	}
}

// stop ends all workers and records how they end.
func (s *Simulation) stop(ctx context.Context) {
	s.Stop(ctx, append(stage.StopAll(ctx, s.slots), stage.StopAll(ctx, s.emitting)...))
}

// pulse writes a row over and over until ctx ends, on a connection of its own, as heartbeats do. If
// a write takes half of the time that workers have for theirs, it records that the machine does not
// keep up.
func (s *Simulation) pulse(ctx context.Context) {
	var conn *sql.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for last := time.Now(); backoff.Sleep(ctx, stage.SampleEvery); {
		var err error
		if conn == nil {
			if conn, err = s.on.DB.Conn(ctx); err != nil {
				continue // the server is away
			}
		}
		if _, err = conn.ExecContext(ctx, `UPDATE sim_pulse SET at = clock_timestamp()`); err != nil {
			_ = conn.Close()
			conn = nil
			continue
		}
		if time.Since(last) > s.scenario.Knobs.HeartbeatTimeout/2 {
			s.ledger.slowness(last)
		}
		last = time.Now()
	}
}

// newOperators makes one for each fault that is on.
func newOperators(s *shared) (all []*operator, err error) {
	for _, f := range faultRows {
		if x := s.scenario.Faults[f.Name]; f.operator != nil && x > 0 {
			o, err := ops.NewJobs(s.on.DB)
			if err != nil {
				return nil, fmt.Errorf("sim: %w", err)
			}
			consumers, err := ops.New(s.on.DB)
			if err != nil {
				return nil, fmt.Errorf("sim: %w", err)
			}
			all = append(all, &operator{s, fault.Dice(s.scenario.Seed, "operator "+f.Name), s.client, o, consumers, x, f.operator})
		}
	}
	return all, nil
}
