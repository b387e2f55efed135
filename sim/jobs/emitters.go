package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/pgxtx"
	"github.com/pgfrontier/worker/store/postgres"
)

// Two consumers of events enqueue the jobs that events ask for. The second one is the
// copy of a deployment: it enqueues in the name of the first.
const (
	emitterName = "mailer"
	emitterCopy = "mailer-copy"
	emitters    = 2 // workers that run them
)

const (
	emittersDisturbed history.Fault = "workers of event consumers crashed, cut off, stalled or restarted"
	notesRemoved      history.Fault = "times that notes of settled events were removed"
)

// emitterFaults are about consumers of events that enqueue jobs.
var emitterFaults = []faultRow{
	{Row: fault.New(emittersOn, "crashes, cuts off, stalls and restarts workers whose event consumers enqueue jobs", emittersDisturbed)},
	{Row: fault.New("replay", "sets event consumers back that enqueue jobs, so that they handle events again",
		events.ConsumersSetBack).Reaching(oracle.ConsumersSetBack),
		operator: (*operator).replay},
	{Row: fault.New("tidy", "removes the notes of settled events, as a worker that leads does", notesRemoved).Reaching(oracle.RemovedNotes),
		operator: (*operator).tidy},
}

// emittersOn is the fault that the emitters' scenario reads.
const emittersOn = "emitter"

// faultsOfEmitters are the faults of consumers that the fault emittersOn turns on.
func faultsOfEmitters(of map[string]float64) map[string]float64 {
	x := of[emittersOn]
	return map[string]float64{"crash": x, "cut": x, "stall": x, "restart": x}
}

// emitting is the scenario of the consumers that enqueue.
func emitting(s Scenario) events.Scenario {
	k := events.DrawKnobs(fault.Dice(s.Seed, "scenario of emitters"))
	k.Calm, k.Outage = s.Knobs.Calm/2, s.Knobs.Outage
	k.GapPolicy, k.StaleGapThreshold, k.HarborLag = worker.GapSkipStale, 100*time.Millisecond, 0 // so that events come late
	return events.Scenario{Seed: s.Seed, Knobs: k, Faults: faultsOfEmitters(s.Faults), Scope: []history.Scope{{Name: emitterName}, {Name: emitterCopy}}}
}

// order is a job that an event asks for.
type order struct {
	Kind     string `json:"kind"`
	Queue    string `json:"queue"`
	Priority int    `json:"priority"`
	Task     task   `json:"task"`
}

// args are the arguments of the job.
func (o order) args() jobs.Args {
	for _, kind := range kinds {
		if args := kind(o.Task); args.Kind() == o.Kind {
			return args
		}
	}
	return plainTask{o.Task}
}

// eventLog is where events are appended.
var eventLog = postgres.NewStore(postgres.NewStoreConfig(postgres.WithNotifyChannel(events.Channel)))

// asking is an event that asks for jobs.
func asking(orders []order) (store.Event, error) {
	payload, err := json.Marshal(orders)
	return store.Event{AggregateType: "order", AggregateID: uuid.NewString(), EventType: "ordered", EventID: uuid.New(), Payload: payload}, err
}

// emitter is the Injector of those consumers: it enqueues what an event asks for.
type emitter struct {
	of    *shared
	tally stage.Tally // of what happens to their workers
}

func (m *emitter) Count(f history.Fault)   { m.tally.Add(f, 1) }
func (m *emitter) Breached(history.Breach) {}

// Inject enqueues what the event asks for, for every other event through pgx. A few handlers fail
// after that, and have enqueued nothing.
func (m *emitter) Inject(ctx context.Context, b *events.LedgerConsumer, d events.Delivered) (done bool, err error) {
	var orders []order
	if err := json.Unmarshal(d.Payload, &orders); err != nil {
		return true, err
	}
	enqueue := func(tx *sql.Tx) error {
		client := jobs.NewClient(b.Pool())
		for _, o := range orders {
			opts := []jobs.EnqueueOption{jobs.Queue(o.Queue), jobs.Priority(o.Priority)}
			if b.Name() == emitterCopy {
				opts = append(opts, jobs.EmitAs(emitterName))
			}
			if _, err := client.EnqueueFor(ctx, tx, d.PersistedEvent, o.args(), opts...); err != nil {
				return err
			}
		}
		return nil
	}
	if d.GlobalPosition%2 == 0 {
		err = enqueue(d.Tx)
	} else {
		err = pgxtx.In(ctx, func(tx pgx.Tx) error { return pgxtx.Do(tx, enqueue) })
	}
	if err != nil {
		return true, err
	}
	const often = 0.02 // of the events
	if fault.Chance(b.Dice, often*m.of.scenario.Faults[emittersOn]) {
		return true, errors.New("the simulation lets this handler fail after it has enqueued")
	}
	return false, nil
}

// disturbed counts what happened to the workers of those consumers.
func (m *emitter) disturbed() (n int64) {
	for _, f := range []history.Fault{history.Cuts, history.Stalls, stage.WorkersRestarted} {
		n += m.tally.Count(f)
	}
	return n + m.tally.Crashes()
}

// replay sets a consumer back to an event that it has handled.
func (o *operator) replay(ctx, _ context.Context) error {
	consumer, at := fault.OneOf(o.dice, emitterName, emitterCopy), int64(0)
	err := o.of.on.DB.QueryRowContext(ctx, `SELECT coalesce((SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1::text), 0)`, consumer).Scan(&at)
	if at == 0 || err != nil {
		return err
	}
	to := o.dice.Int64N(at)
	switch err = o.consumers.Reset(ctx, consumer, to, stage.By); {
	case err == nil:
		o.did(events.ConsumersSetBack, "", fmt.Sprintf("%s, from %d to %d", consumer, at, to))
	case errors.Is(err, ops.ErrUnchanged):
		err = nil
	}
	return err
}

// tidy removes the notes of settled events. A leader may do the same at the same time.
func (o *operator) tidy(ctx, _ context.Context) error {
	t, err := tables.ParseJobs(store.Names{})
	events, err2 := tables.Parse(store.Names{})
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if _, err = queue.New(t).Raise(ctx, o.of.on.DB, events); err == nil {
		o.did(notesRemoved, "", "")
	}
	return err
}

// appendLast appends an event that asks for two jobs and lasts, and sets the
// consumers back to the first: they handle all events again.
func (m *emitter) appendLast(ctx context.Context) error {
	on := m.of.on
	var orders []order
	var drawn []entry
	for i := range 2 {
		o := order{Kind: "plain", Queue: m.of.scenario.Knobs.Queues[0].Name, Priority: 5, Task: task{Token: fmt.Sprintf("asked-%d", i)}}
		orders = append(orders, o)
		drawn = append(drawn, entry{begun: on.Life(), Enqueued: history.Enqueued{
			Token: o.Task.Token, Who: "harness", Kind: o.Kind, Queue: o.Queue, Asked: true, Outcome: history.EnqueueCommitted,
		}})
	}
	last, err := asking(orders)
	if err != nil {
		return err
	}
	tx, err := on.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, err := eventLog.Append(ctx, tx, store.NoStream(), []store.Event{last}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	m.of.ledger.enqueue(drawn)
	o, err := ops.New(on.DB)
	for _, consumer := range []string{emitterName, emitterCopy} {
		if err == nil {
			err = o.Reset(ctx, consumer, 0, stage.By)
		}
		if errors.Is(err, ops.ErrUnchanged) { // it has handled nothing yet
			err = nil
		}
	}
	return err
}

// behind counts the positions that those consumers have not settled.
func (d *database) behind(ctx context.Context) (n int64, err error) {
	head, err := d.Head(ctx)
	if err != nil {
		return 0, err
	}
	standings, err := d.Standings(ctx)
	for _, s := range standings {
		n += head - s.Checkpoint + int64(len(s.Open))
	}
	return n + head*int64(emitters-len(standings)), err
}

// collectEmitted counts what those consumers have committed.
func (d *database) collectEmitted(ctx context.Context) (e history.Emitted, err error) {
	err = d.Query(ctx, func() error {
		return d.DB.QueryRowContext(ctx, `
SELECT count(*), count(*) FILTER (WHERE epoch > 0), count(*) FILTER (WHERE late), count(*) FILTER (WHERE consumer = $1::text),
	count(DISTINCT position) FILTER (WHERE position NOT IN (SELECT position FROM jobs_emitted)) FROM sim_ledger`, emitterCopy).
			Scan(&e.Handled, &e.Again, &e.Late, &e.ByCopy, &e.Settled)
	})
	if err != nil {
		err = fmt.Errorf("sim: read what consumers enqueued: %w", err)
	}
	return e, err
}
