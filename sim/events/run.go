// Package events makes runs of events. table.go lists the faults.
package events

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/postgres"
)

// Simulation is a run of events.
type Simulation struct {
	*shared
	writers []*writer
	slots   []*Slot
	readers []*reader
}

// New prepares a run of events on the server of its database. Without a driver, the workers are in
// this process.
func New(ctx context.Context, p stage.Plan, scenario Scenario, on *server.Instance, driver stage.Driver) (*Simulation, error) {
	d := NewDatabase(on)
	on.Mortal = on.Mortal || anyOn(scenario.Faults, func(f faultRow) bool { return f.outage })
	on.Async = anyOn(scenario.Faults, func(f faultRow) bool { return f.async })
	if anyOn(scenario.Faults, func(f faultRow) bool { return slices.Contains(f.Needs, fault.Replicating) }) {
		if err := d.follower.Start(ctx); err != nil {
			return nil, err
		}
	}
	if err := scenario.shadow(ctx, d); err != nil {
		return nil, err
	}
	return newSimulation(p, scenario, d, driver), nil
}

func newSimulation(p stage.Plan, scenario Scenario, on *Database, driver stage.Driver) *Simulation {
	var consumers []string
	for _, c := range scenario.Scope {
		consumers = append(consumers, c.Name)
	}
	s := &Simulation{shared: &shared{Execution: stage.NewExecution(p, on.Instance, driver, consumers), scenario: scenario, on: on, ended: make(chan struct{}), news: newNews()}}
	s.Evidence.Consumers = scenario.Scope
	s.Evidence.Strict, s.Evidence.Forgetful = scenario.Knobs.strict(), scenario.Faults[stage.AsyncWorkersOn] > 0
	for _, f := range faultRows {
		if x := scenario.Faults[f.Name]; f.handler != nil && x > 0 {
			s.handlers = append(s.handlers, func(ctx context.Context, b *LedgerConsumer, d Delivered) (bool, error) {
				return f.handler(s.shared, ctx, b, d, x)
			})
		}
	}
	for i := range p.Writers {
		s.writers = append(s.writers, newWriter(i+1, s.shared, operations(scenario.Faults)))
	}
	for i := 0; i < readers && driver == nil; i++ {
		s.readers = append(s.readers, newReader(s.shared, i+1))
	}
	for i := 0; i < p.Workers && driver == nil; i++ {
		slot := NewSlot(i+1, scenario, on, &s.Tally, s.History, s.shared)
		s.slots, s.places = append(s.slots, slot), append(s.places, &slot.Place)
	}
	return s
}

// NewSlot returns a place for a worker of consumers. The handlers write the ledger and call i.
func NewSlot(number int, s Scenario, on *Database, t *stage.Tally, h *history.History, i Injector) *Slot {
	return newSlot(number, s, on, t, h, i, injections(s.Faults), buildsOf(s.Faults))
}

// Run makes the run, judges it, and reports what the oracle found. If ctx ends, it returns an error
// with a report of what was done until then.
func (s *Simulation) Run(ctx context.Context) (*oracle.Report, error) {
	err := s.Execute(ctx, s.faults, s.comeToRest, s.stop, s.observe)
	if ctx.Err() == nil {
		s.Collect(ctx, err, func() error { return s.on.collect(ctx, &s.Evidence) })
	}
	return s.Report(ctx, err, Faults, s.scenario.Faults, counters...)
}

// readers is the number of readers of what was just written.
const readers = 2

// wantedPerWriter is how many events a second each writer must commit for each consumer. With
// fewer, the run takes longer.
const wantedPerWriter = 4

// enough reports whether every consumer has been given something to do, and the
// first copy of the server that was made has been put back.
func (s *Simulation) enough() bool {
	least := int64(s.Plan.Duration.Seconds()*wantedPerWriter) * int64(s.Plan.Writers)
	if s.Driver != nil {
		least = 1 // the writers cannot always write
	}
	if s.on.copies.restored.Load() == 0 && s.on.copies.waits.Load() {
		return false
	}
	for _, c := range s.scenario.Scope {
		if s.output.wanted(c) < least {
			return false
		}
	}
	return true
}

// clock ends the faults after the run's duration and enough work. It waits for enough work no
// longer than the duration once more, as long as this machine needs, without the time in which the
// server is down for a copy.
func (s *Simulation) clock(intake context.Context, over context.CancelFunc) {
	defer close(s.ended)
	defer over()
	backoff.Sleep(intake, s.Plan.Duration)
	left := s.Plan.Bounds.Of(s.Plan.Duration)
	for last := time.Now(); !s.enough() && left > 0; {
		if !backoff.Sleep(intake, 50*time.Millisecond) {
			return
		}
		now := time.Now()
		if !s.on.copies.copying.Load() {
			left -= now.Sub(last)
		}
		last = now
	}
}

// faults runs writers and slots.
func (s *Simulation) faults(ctx context.Context) error {
	intake, over := context.WithCancel(ctx)
	defer over()
	a := stage.NewActors(ctx, intake, over)
	a.Beside(func() { s.clock(intake, over) })
	for _, slot := range s.slots {
		a.Run(slot.Run)
	}
	for _, r := range s.readers {
		a.Run(r.run)
	}
	if s.Driver != nil {
		env := stage.Env{
			Count: s.Count, Take: s.History.Take, Fault: func(string) {}, Lose: func(string) {}, Outage: func(time.Time) {},
			Breached: s.Breached, Save: s.on.copies.save, PutBack: s.on.copies.putBack,
		}
		a.Run(func(ctx, intake context.Context) error { return s.Drive(ctx, intake, env) })
	}
	for _, w := range s.writers {
		a.Run(w.run)
	}
	err := a.Wait()
	if err == nil {
		err = stage.EnsureAll(ctx, s.slots)
	}
	s.History.Add("", "", history.FaultsOver, nil)
	s.collectLedgers()
	return err
}

// collectLedgers collects the writers' ledgers. What was committed asynchronously before a crash
// may be gone. What a restored copy of the server cannot have is gone.
func (s *Simulation) collectLedgers() {
	e := &s.Evidence
	e.Restores = s.on.copies.restores
	for _, w := range s.writers {
		for _, t := range w.ledger.committed {
			switch {
			case t.gone(s.on.copies.restores):
				e.Abandoned = append(e.Abandoned, t.events...)
			case t.async && t.begun < s.on.Life() || t.uncertain(s.on.copies.restores):
				e.Unsure = append(e.Unsure, t.events)
			default:
				e.Committed = append(e.Committed, t.events...)
			}
		}
		e.Abandoned = append(e.Abandoned, w.ledger.abandoned...)
		e.Misled = append(e.Misled, w.ledger.misled...)
		e.Refused += w.ledger.refused
		e.Sightings = append(e.Sightings, w.ledger.sightings...)
	}
}

// comeToRest waits until every consumer has caught up with everything.
func (s *Simulation) comeToRest(ctx context.Context) error {
	defer s.keepSilent()()
	if err := s.appendLast(ctx); err != nil {
		return err
	}
	head, err := s.on.Head(ctx)
	if err != nil {
		return err
	}
	r := &s.Evidence.Rest
	if r.Partitions, err = s.fixPartitions(ctx); err != nil {
		return err
	}
	r.Head = head
	for began := time.Now(); ; {
		if r.Standings, err = s.on.Standings(ctx); err != nil {
			return err
		}
		if r.Bound == 0 {
			r.Bound = s.on.Bounds.Of(stage.RestBound(lag(r.Standings, head))).Round(time.Second)
		}
		r.Took = time.Since(began).Round(time.Millisecond)
		if s.allThere(r.Standings, r.Partitions) && atRest(r.Standings, head) {
			for _, reader := range s.readers[:min(1, len(s.readers))] {
				reader.readLast(ctx, s.Evidence.Committed[len(s.Evidence.Committed)-1])
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

// fixPartitions fixes the number of parts that consumers have in the end, and returns it. It does
// what an operator does, without a notification: workers must poll for what is left to do.
func (s *Simulation) fixPartitions(ctx context.Context) (n int, err error) {
	n = fault.OneOf(fault.Dice(s.scenario.Seed, "partitions at rest"), partitionCounts...)
	return n, s.on.Query(ctx, func() error {
		for _, c := range s.scenario.Scope {
			if !c.Partitioned {
				continue
			}
			_, err := s.on.DB.ExecContext(ctx, `UPDATE consumer_checkpoints SET partitions = $2::int, revision = revision + 1 WHERE consumer_name = $1::text`, c.Name, n)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// allThere reports whether each consumer has a checkpoint, and each split one has so many parts.
func (s *Simulation) allThere(standings []history.Standing, partitions int) bool {
	want := 0
	for _, c := range s.scenario.Scope {
		if want++; c.Partitioned {
			want += partitions - 1
		}
	}
	return len(standings) == want
}

// keepSilent drops the notification of the last event for listeners, if notifications are lost in
// this run: listeners must also poll.
func (s *Simulation) keepSilent() (end func()) {
	var filters []*network.Filter
	if s.scenario.Faults[notifyLost] > 0 {
		for _, p := range s.places {
			if n := p.Current(); n != nil {
				filters = append(filters, &n.Relay.Filter)
			}
		}
	}
	for _, f := range filters {
		f.Change(network.Dropping)
	}
	return func() {
		for _, f := range filters {
			s.Tally.Add(notificationsLost, f.Change(network.Passing))
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

// appendLast appends one event that stays, so that the positions rolled back before it are gaps,
// not the end of the log. It leaves out one more position, so that every run has a gap.
func (s *Simulation) appendLast(ctx context.Context) error {
	tx, err := s.on.DB.BeginTx(ctx, nil)
	if err != nil {
		return s.on.Mine(ctx, err)
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
	standings, err := s.on.Standings(ctx) // one sighting at least
	if err != nil {
		return fmt.Errorf("sim: the last event: %w", err)
	}
	s.Evidence.Sightings = append(s.Evidence.Sightings, history.Sighting{Positions: []int64{e.GlobalPosition}, Standings: standings})
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sim: the last event: %w", s.on.Mine(ctx, err))
	}
	s.History.Add("harness", "", history.Committed, history.Transaction{Tx: 1, Positions: []history.Span{{First: e.GlobalPosition, Last: e.GlobalPosition}}})
	s.Evidence.Committed = append(s.Evidence.Committed, history.Event{Position: e.GlobalPosition, Type: e.AggregateType, ID: e.AggregateID, Version: e.AggregateVersion, EventID: e.EventID})
	return nil
}

// stop ends all workers and records how they end.
func (s *Simulation) stop(ctx context.Context) {
	for _, r := range s.readers {
		r.collect(&s.Evidence)
	}
	s.Stop(ctx, stage.StopAll(ctx, s.slots))
	s.Evidence.Breaches = s.broken.judge(s.Evidence.Exits)
}
