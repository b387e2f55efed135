package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// jobConnections is the most that the pool of a worker of jobs has.
const jobConnections = 12

// jobSimulation is a run of jobs under way: enqueuers, workers of jobs and operators,
// in place of the writers and workers of a [simulation].
type jobSimulation struct {
	config    Config
	scenario  Scenario
	on        *database
	driver    Driver // in place of the slots
	began     time.Time
	zero      time.Time // the same, by the server's clock
	tally     tally
	history   *history.History
	book      *jobBook
	client    *jobs.Client // the harness's own
	enqueuers []*enqueuer
	slots     []*jobSlot
	version   atomic.Int64 // of the program: a deployment raises it
	operators []*jobOperator
	emitter   *emitter
	emitting  []*slot       // of workers of consumers that enqueue
	builds    builds        // of the faults that are on
	stalls    chan struct{} // one for each worker that may be stalled at a time
	evidence  history.Evidence
}

// runJobs runs a scenario of jobs in the database on; without a driver, with workers in
// this process.
func runJobs(ctx context.Context, c Config, scenario Scenario, on *database, driver Driver) (*oracle.Report, error) {
	on.own = c.Server
	scenario.Faults = on.ableJobs(scenario.Faults)
	on.mortal = on.mortal || scenario.Faults.anyJob(func(f jobFaultRow) bool { return f.outage })
	on.async = scenario.Faults.anyJob(func(f jobFaultRow) bool { return f.async })
	if err := on.setUpJobs(ctx, *scenario.Jobs); err != nil {
		return NotStarted(ctx, c, on.mine(ctx, err))
	}
	s := newJobSimulation(c, scenario, on, driver)
	var err error
	if s.operators, err = newJobOperators(s); err != nil {
		return NotStarted(ctx, c, err)
	}
	if s.zero, err = on.clock(ctx, s.began); err != nil {
		return NotStarted(ctx, c, err)
	}
	err = s.execute(ctx)
	if ctx.Err() == nil {
		s.evidence.Jobs.Forgetful = on.async && on.life() > 0
		s.book.collect(s.evidence.Jobs, on.life())
		on.collectAll(ctx, &s.evidence, err, func() error { return on.collectJobs(ctx, s.evidence.Jobs, s.zero) })
		s.evidence.Jobs.Emitted.Workers = len(s.emitting)
	}
	if ctx.Err() != nil {
		return s.report(true), errors.Join(ctx.Err(), err)
	}
	return s.report(false), nil
}

func newJobSimulation(c Config, scenario Scenario, on *database, driver Driver) *jobSimulation {
	began := time.Now()
	s := &jobSimulation{config: c, scenario: scenario, on: on, driver: driver, began: began, history: history.New(began), book: newJobBook(began), stalls: make(chan struct{}, max(1, c.Workers/2)), client: jobs.NewClient(on.db)}
	queues := names(scenario.Jobs.Queues)
	s.history.Add("", "", history.RunBegan, history.Header{Seed: c.Seed, Repeat: c.command(), Workers: c.Workers, Writers: c.Writers, Consumers: queues})
	s.evidence.History = s.history
	s.evidence.Jobs = &history.Jobs{Slowness: max(c.Bounds.Slowness, 1), MaxAttempts: jobAttempts, Queues: queues, RescueBound: scenario.rescueBound().Seconds(), DeadAfter: scenario.deadAfter().Seconds()}
	for _, f := range jobFaultRows {
		s.builds = s.builds.with(f.Row, f.build, scenario.Faults)
	}
	for i := range c.Writers {
		s.enqueuers = append(s.enqueuers, newEnqueuer(i+1, s))
	}
	for i := 0; i < c.Workers && driver == nil; i++ {
		s.slots = append(s.slots, newJobSlot(i+1, s))
	}
	s.emitter = &emitter{of: s}
	for i := 0; i < emitters && driver == nil; i++ {
		s.emitting = append(s.emitting, newSlot(c.Workers+i+1, emitting(scenario), on, &s.emitter.tally, s.history, s.emitter))
	}
	return s
}

// faultAll takes down that something happens to all workers.
func (s *jobSimulation) faultAll() {
	for _, slot := range s.slots {
		if n := slot.current(); n != nil {
			s.book.fault(n.name)
		}
	}
}

// execute runs the actors, then demands that everything comes to rest. When it
// returns, none of them is left.
func (s *jobSimulation) execute(ctx context.Context) error {
	observed, stopObserving := context.WithCancel(ctx)
	var observer sync.WaitGroup
	observer.Go(func() { s.observe(observed) })
	observer.Go(func() { s.pulse(observed) })
	defer observer.Wait()
	defer stopObserving()
	defer s.stop(ctx)
	if err := s.act(ctx); err != nil {
		return err
	}
	return s.comeToRest(ctx)
}

// act runs enqueuers, slots and operators for the run's duration.
func (s *jobSimulation) act(ctx context.Context) error {
	intake, over := context.WithTimeout(ctx, s.config.Duration)
	defer over()
	a := &actors{ctx: ctx, intake: intake, over: over}
	for _, slot := range s.slots {
		a.run(slot.run)
	}
	for _, slot := range s.emitting {
		a.run(slot.run)
	}
	if s.driver != nil {
		a.run(func(ctx, intake context.Context) error { return s.on.drive(ctx, intake, s.driver, s.env()) })
	}
	for _, e := range s.enqueuers {
		a.run(e.run)
	}
	for _, o := range s.operators {
		a.run(o.run)
	}
	err := a.wait()
	if err == nil {
		err = ensureAll(ctx, s.slots)
	}
	if err == nil {
		err = ensureAll(ctx, s.emitting)
	}
	s.history.Add("", "", history.FaultsOver, nil)
	if err == nil {
		err = s.actLast(ctx)
	}
	return err
}

// actLast takes back what operators have set. Then it does a little of what only
// some faults do, so that every invariant is checked in every run: it caps a queue,
// enqueues jobs there, and cancels one; it pauses all schedules; it starts a run of each
// flow; and it lets consumers handle all events again.
func (s *jobSimulation) actLast(ctx context.Context) error {
	if err := s.on.undoSettings(ctx); err != nil {
		return err
	}
	queue := s.scenario.Jobs.Queues[0]
	o := jobOperator{of: s}
	err := o.change(ctx, queue.Name, func() error {
		_, err := s.on.db.ExecContext(ctx, `INSERT INTO jobs_queues (name, max_running) VALUES ($1::text, $2::int)`, queue.Name, queue.Concurrency)
		return s.on.mine(ctx, err)
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
	var entries []jobs.Entry
	var all []jobEntry
	for i := range many {
		t := task{Token: fmt.Sprintf("last-%d", i)}
		opts := []jobs.EnqueueOption{jobs.Queue(queue.Name), jobs.GoodUntil(time.Now().Add(time.Minute))}
		if i == 0 {
			opts = append(opts, jobs.In(time.Minute))
		}
		if i == 1 {
			opts = append(opts, jobs.Unique("last"))
		}
		all = append(all, jobEntry{Enqueued: history.Enqueued{Token: t.Token, Who: "harness", Kind: "plain", Queue: queue.Name, Outcome: history.EnqueueCommitted}})
		entries = append(entries, jobs.Entry{Args: plainTask{t}, Options: opts})
	}
	made, err := s.client.EnqueueMany(ctx, nil, entries)
	if err != nil {
		return fmt.Errorf("sim: the last jobs: %w", err)
	}
	for i, m := range made {
		all[i].ID, all[i].begun = m.ID, s.on.life()
	}
	s.book.enqueue(all)
	answered := s.book.cancel(made[0].ID)
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
func (s *jobSimulation) comeToRest(ctx context.Context) error {
	rest := &s.evidence.Jobs.Rest
	for began := time.Now(); ; {
		now, err := s.on.jobsAtRest(ctx)
		if err != nil {
			return fmt.Errorf("sim: look at the jobs: %w", err)
		}
		if rest.Bound == 0 {
			bound := restBound(now.Due + now.Running + now.Behind + now.Flows)
			if s.scenario.Faults["hole"] > 0 {
				bound += silence
			}
			rest.Bound = s.on.bounds.Of(bound).Round(time.Second).Seconds()
		}
		rest.Due, rest.Running, rest.Behind, rest.Overdue, rest.Flows, rest.Took = now.Due, now.Running, now.Behind, now.Overdue, now.Flows, time.Since(began).Round(time.Millisecond).Seconds()
		s.evidence.Rest.Took, s.evidence.Rest.Bound = time.Since(began).Round(time.Millisecond), time.Duration(rest.Bound)*time.Second
		if rest.Due+rest.Running+rest.Behind+rest.Overdue+rest.Flows == 0 || rest.Took > rest.Bound {
			return nil
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// observe samples how much there is to do until ctx ends, and reports progress.
func (s *jobSimulation) observe(ctx context.Context) {
	for backoff.Sleep(ctx, 2*sampleEvery) {
		now, err := s.on.jobsAtRest(ctx)
		if err != nil {
			continue
		}
		s.tally.setLag(now.Due)
		done := s.book.done()
		s.history.Add("", "", history.Sampled, history.Sample{Head: done + now.Due, Lag: now.Due, Checkpoints: map[string]int64{}})
		if s.config.Progress != nil {
			s.config.Progress(Progress{Elapsed: time.Since(s.began), Appended: s.book.committed(), Handled: done, Crashes: s.tally.crashes(), Lag: now.Due})
		}
	}
}

// stop ends all workers and takes down how they end.
func (s *jobSimulation) stop(ctx context.Context) {
	s.evidence.Exits = append(stopAll(ctx, s.slots), stopAll(ctx, s.emitting)...)
	if s.driver != nil {
		s.evidence.Exits = append(s.evidence.Exits, s.driver.Stop(ctx)...)
	}
}

// report says what the run was, and judges it.
func (s *jobSimulation) report(interrupted bool) *oracle.Report {
	s.tally.add(emittersDisturbed, int(s.emitter.disturbed()))
	r := s.config.report(s.scenario, s.began)
	r.Interrupted, r.Server = interrupted, s.on.version
	r.Faults, r.Counts = jobFaultTable.On(s.scenario.Faults, s.tally.count), s.tally.all(jobCounters())
	if s.on.own == nil && s.driver == nil {
		r.Knobs = append(r.Knobs, ownServer.says)
	}
	if s.driver != nil {
		s.driver.Annotate(r, s.tally.count)
	}
	r.Judge(&s.evidence)
	return r
}
