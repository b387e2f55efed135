package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

func newEnqueuer(n int, s *shared) *enqueuer {
	name := fmt.Sprintf("writer %d", n)
	e := &enqueuer{name: name, dice: fault.Dice(s.scenario.Seed, "enqueuer "+name), native: fault.Dice(s.scenario.Seed, "native transactions of "+name),
		knobs: s.scenario.Knobs, of: s, async: s.scenario.Faults[stage.AsyncWritersOn] > 0}
	for _, f := range faultRows {
		x := s.scenario.Faults[f.Name]
		if f.end.run != nil && x > 0 {
			e.ends = append(e.ends, weighted[ending]{f.end, f.end.weight * x * (0.5 + e.dice.Float64())})
		}
		if f.act != "" && x > 0 {
			e.acts = append(e.acts, weighted[faultyAct]{faultyAct{f.act, f.Counts[0]}, 0.03 * x})
		}
	}
	e.net, e.db = stage.Connect(s.on.Instance.Database, name, e.dice, e.async)
	e.client = jobs.NewClient(e.db)
	e.flows = flow.NewClient(e.client)
	return e
}

// run enqueues until intake ends. It returns an error that no fault explains.
func (e *enqueuer) run(ctx, intake context.Context) (err error) {
	defer func() { err = errors.Join(err, e.db.Close()) }()
	for backoff.Sleep(intake, time.Duration(e.dice.ExpFloat64()*float64(e.knobs.Pause)*e.of.Tally.Slowdown())) {
		if err := e.act(ctx, intake); err != nil {
			return fmt.Errorf("sim: %s: %w", e.name, err)
		}
	}
	return nil
}

// act makes one transaction.
func (e *enqueuer) act(ctx, intake context.Context) error {
	bounded, cancel := e.of.on.Bounded(ctx, 2*server.WaitBound)
	defer cancel()
	a := &enqueueAttempt{life: e.of.on.Life()}
	var err error
	if a.conn, err = e.db.Conn(bounded); err != nil {
		return e.of.on.Forgive(e.of.on.Mine(ctx, err))
	}
	defer func() { _ = a.conn.Close() }() // back to the pool
	if a.tx, err = either.Begin(bounded, a.conn, e.native.IntN(2) == 0); err != nil {
		return e.of.on.Forgive(e.of.on.Mine(ctx, err))
	}
	defer func() { _ = a.tx.Rollback() }() // a no-op after its end
	e.begun++
	a.number = e.begun
	e.record(history.Begin, a, "", nil)
	err = a.tx.QueryRow(bounded, `INSERT INTO sim_enqueuers (name, number) VALUES ($1::text, $2::bigint) RETURNING pg_current_xact_id()::text`, e.name, a.number).Scan(&a.xid)
	const often, seldom = 0.3, 0.07 // of the transactions
	switch {
	case err != nil:
	case fault.Chance(e.dice, seldom):
		err = e.startFlow(bounded, a)
	case e.of.emits && fault.Chance(e.dice, often):
		err = e.ask(bounded, a)
	default:
		err = e.enqueue(bounded, a)
	}
	if err == nil {
		err = e.chooseEnd(a).run(e, bounded, intake, a)
	}
	return e.excuse(ctx, a, err)
}

// chooseEnd draws how the transaction ends. A transaction with an event or a run of a flow seldom
// ends plainly: it may come late.
func (e *enqueuer) chooseEnd(a *enqueueAttempt) ending {
	at := e.dice.Float64()
	if a.event != "" {
		at /= 2
	}
	for _, x := range e.ends {
		if at -= x.weight; at < 0 {
			return x.what
		}
	}
	return ending{run: (*enqueuer).commit}
}

// excuse writes off a transaction that was refused for a reason that enqueuers meet
// in normal life.
func (e *enqueuer) excuse(ctx context.Context, a *enqueueAttempt, err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jobs.ErrUniqueBusy), errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01"): // lock time-out, deadlock
		e.of.Tally.Add(stage.Conflicts, 1)
	case e.of.on.Forgive(err) != nil:
		return err
	case a.sent:
		e.of.Tally.Add(stage.TransactionsBrokenOff, 1)
		return e.learn(ctx, a)
	default:
		e.of.Tally.Add(stage.TransactionsBrokenOff, 1)
	}
	e.keep(a, history.EnqueueRolledBack, err)
	return nil
}
