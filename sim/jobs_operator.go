package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	queuesPaused  history.Fault = "queues paused for a moment by an operator"
	queuesCapped  history.Fault = "caps set by an operator"
	jobsCancelled history.Fault = "jobs cancelled by a client"
)

// jobOperatorFaults are what operators and clients do to queues and jobs.
var jobOperatorFaults = []jobFaultRow{
	{
		Row: fault.Row{
			Name: "pause", Does: "pauses a queue for a moment",
			Counts: []history.Fault{queuesPaused},
		},
		operator: (*jobOperator).pause,
	},
	{
		Row: fault.Row{
			Name: "cap", Does: "caps what runs of a queue, or of all, in all workers together",
			Counts:  []history.Fault{queuesCapped},
			Reaches: []oracle.Condition{oracle.CappedQueues},
		},
		operator: (*jobOperator).cap,
	},
	{
		Row: fault.Row{
			Name: "cancel", Does: "cancels a job, whether it runs or not",
			Counts:  []history.Fault{jobsCancelled},
			Reaches: []oracle.Condition{oracle.Cancellations},
		},
		operator: (*jobOperator).cancel,
	},
}

// jobOperator does one thing now and then, on the harness's own connections.
type jobOperator struct {
	of        *jobSimulation
	dice      *rand.Rand
	client    *jobs.Client
	intensity float64
	act       func(o *jobOperator, ctx, intake context.Context) error
}

// newJobOperators makes one for each fault that is on.
func newJobOperators(s *jobSimulation) (all []*jobOperator) {
	for _, f := range jobFaultRows {
		if x := s.scenario.Faults[f.Name]; f.operator != nil && x > 0 {
			all = append(all, &jobOperator{s, fault.Dice(s.scenario.Seed, "operator "+f.Name), jobs.NewClient(s.on.db), x, f.operator})
		}
	}
	return all
}

// run operates until intake ends.
func (o *jobOperator) run(ctx, intake context.Context) error {
	for backoff.Sleep(intake, time.Duration(o.dice.ExpFloat64()*float64(700*time.Millisecond)/o.intensity)) {
		if err := o.of.on.forgive(o.act(o, ctx, intake)); err != nil {
			return fmt.Errorf("sim: an operator: %w", err)
		}
	}
	return nil
}

// queue draws a queue.
func (o *jobOperator) queue() string { return oneOf(o.dice, o.of.scenario.Jobs.Queues...).Name }

// set changes a row of the queues, and notes when: workers must heed it from then on.
func (o *jobOperator) set(ctx context.Context, queue, column string, value any) error {
	tx, err := o.of.on.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	for _, s := range []struct {
		statement string
		args      []any
	}{
		{`INSERT INTO jobs_queues (name, ` + column + `) VALUES ($1::text, $2) ON CONFLICT (name) DO UPDATE SET ` + column + ` = excluded.` + column, []any{queue, value}},
		{`INSERT INTO sim_settings VALUES ($1::text, clock_timestamp()) ON CONFLICT (queue) DO UPDATE SET at = clock_timestamp()`, []any{queue}},
	} {
		if _, err := tx.ExecContext(ctx, s.statement, s.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// did counts what the operator did, and writes it down.
func (o *jobOperator) did(f history.Fault, queue, what string) {
	o.of.tally.add(f, 1)
	o.of.history.Add("", queue, history.FaultInjected, history.Injection{Fault: f, Where: what})
}

// pause pauses a queue for a moment.
func (o *jobOperator) pause(ctx, intake context.Context) error {
	queue := o.queue()
	if err := o.set(ctx, queue, "paused_at", time.Now()); err != nil {
		return err
	}
	o.did(queuesPaused, queue, "")
	backoff.Sleep(intake, between(o.dice, 100*time.Millisecond, 2500*time.Millisecond))
	return o.of.on.steadily(ctx, func() error { return o.set(ctx, queue, "paused_at", nil) })
}

// cap caps a queue or all of them, or takes a cap away.
func (o *jobOperator) cap(ctx, _ context.Context) error {
	queue := oneOf(o.dice, append([]string{"*"}, names(o.of.scenario.Jobs.Queues)...)...)
	most := oneOf[any](o.dice, nil, 1, 2, 3, 5, 10)
	if err := o.set(ctx, queue, "max_running", most); err != nil {
		return err
	}
	o.did(queuesCapped, queue, fmt.Sprint(most))
	return nil
}

// cancel cancels a job that was committed not long ago.
func (o *jobOperator) cancel(ctx, _ context.Context) error {
	id := o.of.book.recent(int(o.dice.ExpFloat64() * 10))
	if id == 0 {
		return nil
	}
	answered := o.of.book.cancel(id)
	was, err := o.client.Cancel(ctx, nil, id)
	if err != nil {
		return err
	}
	answered(string(was))
	if !was.Finished() {
		o.did(jobsCancelled, "", fmt.Sprintf("job %d, which was %s", id, was))
	}
	return nil
}

// undoSettings takes back what operators have set, so that everything can come to rest.
func (d *database) undoSettings(ctx context.Context) error {
	return d.steadily(ctx, func() error {
		_, err := d.db.ExecContext(ctx, `DELETE FROM jobs_queues WHERE name IN (SELECT name FROM jobs_queues ORDER BY name FOR UPDATE)`)
		return err
	})
}

func names(queues []JobQueue) (all []string) {
	for _, q := range queues {
		all = append(all, q.Name)
	}
	return all
}
