package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/postgres"
)

// restBound is how long everything may take to come to rest after the last
// fault: what a disturbed worker may wait before it tries again, and the time
// to work off what it is behind on a machine that is busy with other things.
func restBound(behind int64) time.Duration {
	return 20*time.Second + time.Duration(behind)*5*time.Millisecond
}

// Run runs the scenario of c.Seed in a database of its own and reports what
// the oracle found. What the harness could not do is in the report, too. An error says
// that c cannot be run on that server, or that ctx ended; then there is a report of what
// was done until then.
func Run(ctx context.Context, c Config) (report *oracle.Report, err error) {
	return start(ctx, c, Draw(c), nil)
}

// start measures the machine, makes a database and runs a scenario in it.
func start(ctx context.Context, c Config, scenario Scenario, driver Driver) (report *oracle.Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	server, err := parseServer(c.URL)
	if err != nil {
		return nil, err
	}
	if c.Bounds == (harness.Bounds{}) {
		if c.Bounds, err = harness.Measure(ctx, server); err != nil {
			return NotStarted(ctx, c, err)
		}
	}
	c.Bounds = c.Bounds.Times(c.Patience)
	on, err := createDatabase(ctx, server, c.Bounds)
	if err != nil {
		return NotStarted(ctx, c, err)
	}
	if c.made != nil {
		*c.made = append(*c.made, on.name)
	}
	on.mortal = driver != nil
	defer func() { err = errors.Join(err, Blame(report, on.drop())) }()
	if err := on.room(ctx, c.Connections()); err != nil {
		if harness.Is(err) {
			return NotStarted(ctx, c, err)
		}
		return nil, err
	}
	if c.Jobs {
		return runJobs(ctx, c, scenario, on, driver)
	}
	return run(ctx, c, scenario, on, driver)
}

// run runs a scenario in the database on; without a driver, with workers in this
// process.
func run(ctx context.Context, c Config, scenario Scenario, on *database, driver Driver) (*oracle.Report, error) {
	on.own = c.Server
	scenario.Faults = on.able(scenario.Faults)
	on.mortal = on.mortal || scenario.Faults.any(func(f faultRow) bool { return f.outage })
	on.async = scenario.Faults.any(func(f faultRow) bool { return f.async })
	if err := on.follow(ctx, scenario.Faults); err != nil {
		return NotStarted(ctx, c, err)
	}
	s := newSimulation(c, scenario, on, driver)
	err := s.execute(ctx)
	if ctx.Err() == nil {
		on.collectAll(ctx, &s.evidence, err, func() error { return on.collect(ctx, &s.evidence) })
	}
	if ctx.Err() != nil {
		return s.report(true), errors.Join(ctx.Err(), err)
	}
	return s.report(false), nil
}

// Connections is about how many a run has open at its busiest: each worker's
// own, those of the consumers, some twice because a crashed worker's linger,
// and the writers' and the harness's.
func (c Config) Connections() int {
	if c.Jobs {
		return 2*jobConnections*c.Workers + 2*poolSize(2)*emitters + c.Writers + 20
	}
	return 8*c.Workers + 2*c.Consumers + c.Writers + 12
}

// simulation is a run under way.
type simulation struct {
	config     Config
	scenario   Scenario
	on         *database
	began      time.Time
	tally      tally
	history    *history.History
	writers    []*writer
	slots      []*slot
	readers    []*reader
	ofHandlers []faultRow // that are on
	news       news
	broken     breachBook
	driver     Driver        // in place of the slots
	ended      chan struct{} // closed when the faults end
	evidence   history.Evidence
}

func newSimulation(c Config, scenario Scenario, on *database, driver Driver) *simulation {
	began := time.Now()
	s := &simulation{config: c, scenario: scenario, on: on, driver: driver, began: began, ended: make(chan struct{}), history: history.New(began), news: newNews()}
	s.history.Add("", "", history.RunBegan, header(c, scenario))
	s.evidence.Consumers, s.evidence.History = s.scenario.Scope, s.history
	s.evidence.Strict, s.evidence.Forgetful = s.scenario.Knobs.strict(), s.scenario.Faults[asyncWorkersOn] > 0
	for _, f := range faultRows {
		if f.handler != nil && scenario.Faults[f.Name] > 0 {
			s.ofHandlers = append(s.ofHandlers, f)
		}
	}
	for i := range c.Writers {
		s.writers = append(s.writers, newWriter(i+1, s.scenario, on, &s.tally, s.history))
	}
	for _, w := range s.writers {
		w.news = s.news
	}
	for i := 0; i < readers && driver == nil; i++ {
		s.readers = append(s.readers, newReader(s, i+1))
	}
	for i := 0; i < c.Workers && driver == nil; i++ {
		s.slots = append(s.slots, newSlot(i+1, s.scenario, on, &s.tally, s.history, s))
	}
	return s
}

// execute runs the actors, then demands that everything comes to rest. When it
// returns, none of them is left.
func (s *simulation) execute(ctx context.Context) (err error) {
	observed, stopObserving := context.WithCancel(ctx)
	var observer sync.WaitGroup
	observer.Go(func() { s.observe(observed) })
	defer observer.Wait()
	defer stopObserving()
	defer s.stop(ctx)
	defer func() {
		for _, r := range s.readers {
			r.collect(&s.evidence)
		}
	}()
	if err := s.faults(ctx); err != nil {
		return err
	}
	return s.comeToRest(ctx)
}

// readers is how many read at a time what was just written.
const readers = 2

// wantedPerWriter is how many events a second each writer is to commit for each
// consumer, or the run takes longer.
const wantedPerWriter = 4

// enough reports whether every consumer has been given something to do, and the
// first copy of the server that was made has been put back.
func (s *simulation) enough() bool {
	least := int64(s.config.Duration.Seconds()*wantedPerWriter) * int64(s.config.Writers)
	if s.driver != nil {
		least = 1 // the writers cannot always write
	}
	if s.on.restored.Load() == 0 && s.on.waits.Load() {
		return false
	}
	for _, c := range s.scenario.Scope {
		if s.tally.wanted(c) < least {
			return false
		}
	}
	return true
}

// clock ends the faults after the run's duration, or when enough has been done: within as much
// again as the machine takes for what the reference does in that, beside the time in which the
// server is down to be copied.
func (s *simulation) clock(intake context.Context, over context.CancelFunc) {
	defer close(s.ended)
	defer over()
	backoff.Sleep(intake, s.config.Duration)
	left := s.config.Bounds.Of(s.config.Duration)
	for last := time.Now(); !s.enough() && left > 0; {
		if !backoff.Sleep(intake, 50*time.Millisecond) {
			return
		}
		now := time.Now()
		if !s.on.copying.Load() {
			left -= now.Sub(last)
		}
		last = now
	}
}

// faults runs writers and slots.
func (s *simulation) faults(ctx context.Context) error {
	intake, over := context.WithCancel(ctx)
	defer over()
	a := &actors{ctx: ctx, intake: intake, over: over}
	a.all.Go(func() { s.clock(intake, over) })
	for _, slot := range s.slots {
		a.run(slot.run)
	}
	for _, r := range s.readers {
		a.run(r.run)
	}
	if s.driver != nil {
		a.run(func(ctx, intake context.Context) error { return s.on.drive(ctx, intake, s.driver, s.env()) })
	}
	for _, w := range s.writers {
		a.run(w.run)
	}
	err := a.wait()
	if err == nil {
		err = ensureAll(ctx, s.slots)
	}
	s.history.Add("", "", history.FaultsOver, nil)
	s.collectBooks()
	return err
}

// collectBooks takes the writers' books. What was committed asynchronously before a
// crash may be gone; what a copy of the server cannot have is, once that was put
// back.
func (s *simulation) collectBooks() {
	e := &s.evidence
	e.Restores = s.on.restores
	for _, w := range s.writers {
		for _, t := range w.book.committed {
			switch {
			case t.gone(s.on.restores):
				e.Abandoned = append(e.Abandoned, t.events...)
			case t.async && t.begun < s.on.life() || t.uncertain(s.on.restores):
				e.Unsure = append(e.Unsure, t.events)
			default:
				e.Committed = append(e.Committed, t.events...)
			}
		}
		e.Abandoned = append(e.Abandoned, w.book.abandoned...)
		e.Misled = append(e.Misled, w.book.misled...)
		e.Refused += w.book.refused
		e.Sightings = append(e.Sightings, w.book.sightings...)
	}
}

// comeToRest waits until every consumer has caught up with everything.
func (s *simulation) comeToRest(ctx context.Context) error {
	defer s.keepSilent()()
	if err := s.appendLast(ctx); err != nil {
		return err
	}
	head, err := s.on.head(ctx)
	if err != nil {
		return err
	}
	r := &s.evidence.Rest
	if r.Partitions, err = s.fixPartitions(ctx); err != nil {
		return err
	}
	r.Head = head
	for began := time.Now(); ; {
		if r.Standings, err = s.on.standings(ctx); err != nil {
			return err
		}
		if r.Bound == 0 {
			r.Bound = s.on.bounds.Of(restBound(lag(r.Standings, head))).Round(time.Second)
		}
		r.Took = time.Since(began).Round(time.Millisecond)
		if s.allThere(r.Standings, r.Partitions) && atRest(r.Standings, head) {
			for _, reader := range s.readers[:min(1, len(s.readers))] {
				reader.readLast(ctx, s.evidence.Committed[len(s.evidence.Committed)-1])
			}
			return nil
		}
		if r.Took > r.Bound {
			return nil
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// fixPartitions fixes how many parts consumers have in the end, and returns that. It does
// what an operator does, but tells nobody: workers must find by themselves what is left
// to do.
func (s *simulation) fixPartitions(ctx context.Context) (n int, err error) {
	n = oneOf(fault.Dice(s.scenario.Seed, "partitions at rest"), partitionCounts...)
	return n, s.on.query(ctx, func() error {
		for _, c := range s.scenario.Scope {
			if !c.Partitioned {
				continue
			}
			_, err := s.on.db.ExecContext(ctx, `UPDATE consumer_checkpoints SET partitions = $2::int, revision = revision + 1 WHERE consumer_name = $1::text`, c.Name, n)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// allThere reports whether each consumer stands somewhere, and those that are split
// in so many parts.
func (s *simulation) allThere(standings []history.Standing, partitions int) bool {
	want := 0
	for _, c := range s.scenario.Scope {
		if want++; c.Partitioned {
			want += partitions - 1
		}
	}
	return len(standings) == want
}

// keepSilent keeps the news of the last event from those that listen, if
// notifications are lost in this run: they must also look by themselves.
func (s *simulation) keepSilent() (end func()) {
	var filters []*filter
	if s.scenario.Faults[notifyLost] > 0 {
		for _, slot := range s.slots {
			if n := slot.current(); n != nil {
				filters = append(filters, &n.relay.filter)
			}
		}
	}
	for _, f := range filters {
		f.change(dropping)
	}
	return func() {
		for _, f := range filters {
			s.tally.add(notificationsLost, f.change(passing))
		}
	}
}

func atRest(standings []history.Standing, head int64) bool {
	for _, s := range standings {
		if s.Checkpoint != head || len(s.Open) > 0 {
			return false
		}
	}
	return true
}

// appendLast appends one event that lasts: the positions rolled back before it
// are gaps then, not the end of the log. One more is left out, so that every run has a gap.
func (s *simulation) appendLast(ctx context.Context) error {
	tx, err := s.on.db.BeginTx(ctx, nil)
	if err != nil {
		return s.on.mine(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, err := tx.ExecContext(ctx, `SELECT nextval(pg_get_serial_sequence('events', 'global_position'))`); err != nil {
		return fmt.Errorf("sim: the last gap: %w", err)
	}
	r, err := postgres.NewStore(nil).Append(ctx, tx, store.NoStream(), []store.Event{
		{AggregateType: aggregateTypes[0], AggregateID: "last", EventType: "ended", EventID: uuid.New()},
	})
	if err != nil {
		return fmt.Errorf("sim: the last event: %w", err)
	}
	e := r.Events[0]
	standings, err := s.on.standings(ctx) // one sighting at least
	if err != nil {
		return fmt.Errorf("sim: the last event: %w", err)
	}
	s.evidence.Sightings = append(s.evidence.Sightings, history.Sighting{Positions: []int64{e.GlobalPosition}, Standings: standings})
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sim: the last event: %w", s.on.mine(ctx, err))
	}
	s.history.Add("harness", "", history.Committed, history.Transaction{Tx: 1, Positions: []history.Span{{First: e.GlobalPosition, Last: e.GlobalPosition}}})
	s.evidence.Committed = append(s.evidence.Committed, history.Event{Position: e.GlobalPosition, Type: e.AggregateType, ID: e.AggregateID, Version: e.AggregateVersion, EventID: e.EventID})
	return nil
}

// stop ends all workers and takes down how they end.
func (s *simulation) stop(ctx context.Context) {
	s.evidence.Exits = stopAll(ctx, s.slots)
	if s.driver != nil {
		s.evidence.Exits = append(s.evidence.Exits, s.driver.Stop(ctx)...)
	}
	s.evidence.Breaches = s.broken.judge(s.evidence.Exits)
}

// report says what the run was, and judges it.
func (s *simulation) report(interrupted bool) *oracle.Report {
	r := s.config.report(s.scenario, s.began)
	r.Interrupted, r.Server = interrupted, s.on.version
	r.Faults, r.Counts = faultTable.On(s.scenario.Faults, s.tally.count), s.tally.all(counters())
	for _, lacking := range s.on.unmet() {
		if lacking.says.Name != "" && (s.driver == nil || lacking != ownServer) { // a driver has a server of its own
			r.Knobs = append(r.Knobs, lacking.says)
		}
	}
	if s.driver != nil {
		s.driver.Annotate(r, s.tally.count)
	}
	r.Judge(&s.evidence)
	return r
}
