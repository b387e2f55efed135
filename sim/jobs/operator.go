package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	queuesPaused  history.Fault = "queues paused for a moment by an operator"
	queuesCapped  history.Fault = "caps set by an operator"
	jobsCancelled history.Fault = "jobs cancelled, by clients and operators"
	jobsRetried   history.Fault = "ended jobs enqueued again by an operator"
)

// operatorFaults are what operators and clients do to queues and jobs.
var operatorFaults = []faultRow{
	{Row: fault.New("pause", "pauses a queue for a moment", queuesPaused), operator: (*operator).pause},
	{Row: fault.New("cap", "caps what runs of a queue, or of all, in all workers together", queuesCapped).Reaching(oracle.CappedQueues),
		operator: (*operator).cap},
	{Row: fault.New("cancel", "cancels a job, whether it runs or not", jobsCancelled).Reaching(oracle.Cancellations), operator: (*operator).cancel},
	{Row: fault.New("again", "enqueues a job again that has ended otherwise than completed", jobsRetried), operator: (*operator).retry},
}

// operator does one thing now and then, on the harness's own connections.
type operator struct {
	of        *shared
	dice      *rand.Rand
	client    *jobs.Client
	ops       *ops.Jobs
	consumers *ops.Operator
	intensity float64
	act       func(o *operator, ctx, intake context.Context) error
}

// run operates until intake ends.
func (o *operator) run(ctx, intake context.Context) error {
	for backoff.Sleep(intake, time.Duration(o.dice.ExpFloat64()*float64(700*time.Millisecond)/o.intensity)) {
		if err := o.of.on.Forgive(o.act(o, ctx, intake)); err != nil {
			return fmt.Errorf("sim: an operator: %w", err)
		}
	}
	return nil
}

// queue draws a queue.
func (o *operator) queue() string { return fault.OneOf(o.dice, o.of.scenario.Knobs.Queues...).Name }

// change changes a setting of a queue, and notes when it did: workers must apply it
// from a second after that.
func (o *operator) change(ctx context.Context, queue string, do func() error) error {
	for _, at := range []string{"'infinity'", "clock_timestamp()"} {
		if at != "'infinity'" {
			if err := do(); err != nil {
				return err
			}
		}
		if _, err := o.of.on.DB.ExecContext(ctx, `INSERT INTO sim_settings VALUES ($1::text, `+at+`) ON CONFLICT (queue) DO UPDATE SET at = excluded.at`, queue); err != nil {
			return o.of.on.Mine(ctx, err)
		}
	}
	return nil
}

// did counts and records what the operator did.
func (o *operator) did(f history.Fault, queue, what string) {
	o.of.Tally.Add(f, 1)
	o.of.History.Add("", queue, history.FaultInjected, history.Injection{Fault: f, Where: what})
}

// pause pauses a queue for a moment.
func (o *operator) pause(ctx, intake context.Context) error {
	queue := o.queue()
	if err := o.change(ctx, queue, func() error { return o.ops.PauseQueue(ctx, queue, stage.By) }); err != nil {
		return err
	}
	o.did(queuesPaused, queue, "")
	backoff.Sleep(intake, fault.Between(o.dice, 100*time.Millisecond, 2500*time.Millisecond))
	return o.of.on.Steadily(ctx, func() error {
		err := o.change(ctx, queue, func() error { return o.ops.ResumeQueue(ctx, queue, stage.By) })
		if errors.Is(err, ops.ErrUnchanged) {
			err = nil // a crash took the answer
		}
		return err
	})
}

// cap caps a queue or all of them, or takes a cap away.
func (o *operator) cap(ctx, _ context.Context) error {
	queue, most := o.queue(), fault.OneOf(o.dice, o.of.scenario.Knobs.Caps...)
	if fault.Chance(o.dice, 0.4) {
		queue = ops.AllQueues
	}
	err := o.change(ctx, queue, func() error {
		if most == 0 {
			return o.ops.RemoveCap(ctx, queue, stage.By)
		}
		return o.ops.SetCap(ctx, queue, most, stage.By)
	})
	if errors.Is(err, ops.ErrUnchanged) {
		return nil
	}
	if err == nil {
		o.did(queuesCapped, queue, fmt.Sprint(most))
	}
	return err
}

// retry enqueues a job again that has ended otherwise than completed.
func (o *operator) retry(ctx, _ context.Context) error {
	var id int64
	var q history.Enqueued
	err := o.of.on.DB.QueryRowContext(ctx, `
SELECT id, args->>'token', kind, queue FROM jobs_history WHERE state <> 'completed' ORDER BY random() LIMIT 1`).Scan(&id, &q.Token, &q.Kind, &q.Queue)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	life := o.of.on.Life()
	q.ID, err = o.ops.Retry(ctx, id, stage.By)
	var state *ops.StateError
	if errors.As(err, &state) {
		return nil
	}
	q.Who, q.Outcome = "operator", history.EnqueueCommitted
	if err != nil {
		q.Outcome = history.EnqueueUnsure
		if o.of.on.Forgive(err) == nil {
			o.of.ledger.enqueue([]entry{{Enqueued: q, begun: life}})
		}
		return err
	}
	o.of.ledger.enqueue([]entry{{Enqueued: q, begun: life}})
	o.did(jobsRetried, q.Queue, fmt.Sprintf("job %d, as job %d", id, q.ID))
	return nil
}

// cancel cancels three jobs: one that was committed not long ago, the one that has run
// for the longest time, and one that is claimed and has not started, if there are such.
func (o *operator) cancel(ctx, _ context.Context) error {
	if id := o.of.ledger.recent(int(o.dice.ExpFloat64() * 10)); id > 0 {
		if err := o.cancelOne(ctx, id); err != nil {
			return err
		}
	}
	for _, order := range []string{`started_at`, `started_at NULLS FIRST`} {
		var id int64
		err := o.of.on.DB.QueryRowContext(ctx, `SELECT id FROM jobs WHERE state = 'running' AND cancel_at IS NULL ORDER BY `+order+` LIMIT 1`).Scan(&id)
		if err == nil {
			err = o.cancelOne(ctx, id)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
}

// cancelOne cancels a job, as an operator or a client.
func (o *operator) cancelOne(ctx context.Context, id int64) error {
	answered := o.of.ledger.cancel(id)
	if fault.Chance(o.dice, 0.3) {
		now, err := o.ops.Cancel(ctx, id, stage.By)
		var state *ops.StateError
		if errors.As(err, &state) {
			return nil // it has ended, or was asked to
		}
		if err == nil {
			answered(map[jobs.State]string{jobs.StateCancelled: string(jobs.StateAvailable)}[now])
			o.did(jobsCancelled, "", fmt.Sprintf("job %d, which is %s", id, now))
		}
		return unlessTaken(err)
	}
	was, err := o.client.Cancel(ctx, nil, id)
	if err != nil {
		return unlessTaken(err)
	}
	answered(string(was))
	if !was.Finished() {
		o.did(jobsCancelled, "", fmt.Sprintf("job %d, which was %s", id, was))
	}
	return nil
}

// unlessTaken returns err, or nil if a job cannot end because another in the history has its id.
func unlessTaken(err error) error {
	if pgdriver.SQLState(err) == pgdriver.UniqueViolation {
		return nil
	}
	return err
}

// undoSettings takes back what operators have set, so that everything can come to rest.
func (d *database) undoSettings(ctx context.Context) error {
	return d.Query(ctx, func() error {
		_, err := d.DB.ExecContext(ctx, `DELETE FROM jobs_queues WHERE name IN (SELECT name FROM jobs_queues ORDER BY name FOR UPDATE)`)
		return err
	})
}

func names(queues []Queue) (all []string) {
	for _, q := range queues {
		all = append(all, q.Name)
	}
	return all
}
