package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/postgres"
)

// run appends until intake ends, then settles the prepared transactions. It returns an error that
// no fault explains.
func (w *writer) run(ctx, intake context.Context) (err error) {
	defer func() { err = errors.Join(err, w.db.Close()) }()
	for backoff.Sleep(intake, w.pause()) {
		if err := w.act(ctx, intake, w.choose()); err != nil {
			return fmt.Errorf("sim: %s: %w", w.name, err)
		}
		if err := w.settle(ctx, time.Now()); err != nil {
			return fmt.Errorf("sim: %s: %w", w.name, err)
		}
	}
	if ctx.Err() != nil {
		return nil // interrupted
	}
	return w.settle(ctx, time.Now().Add(time.Hour))
}

// pause draws the time to the next transaction. The further the consumers are
// behind, the longer it is.
func (w *writer) pause() time.Duration {
	d := time.Duration(w.dice.ExpFloat64() * float64(w.knobs.Pause) * w.tally.Slowdown())
	if w.next != nil {
		return 0
	}
	return d
}

func (w *writer) choose() operation {
	sum := 0.0
	for _, p := range w.operations {
		sum += p.weight
	}
	at := w.dice.Float64() * sum
	for _, p := range w.operations {
		if at -= p.weight; at < 0 {
			return p
		}
	}
	return w.operations[0]
}

// act makes one transaction.
func (w *writer) act(ctx, intake context.Context, o operation) error {
	bounded, cancel := w.on.Bounded(ctx, 2*server.WaitBound)
	defer cancel()
	life := w.on.Life()
	conn, err := w.db.Conn(bounded)
	if err != nil {
		return w.on.Forgive(w.on.Mine(ctx, err))
	}
	defer func() { _ = conn.Close() }() // back to the pool
	tx, err := either.Begin(bounded, conn, w.native.IntN(2) == 0)
	if err != nil {
		return w.on.Forgive(w.on.Mine(ctx, err))
	}
	defer func() { _ = tx.Rollback() }() // a no-op after its end
	w.begun++
	a := &attempt{number: w.begun, life: life, counts: o.counts, late: o.late, conn: conn, tx: tx, store: w.loud}
	w.record(history.Begin, a, nil)
	if o.ending == prepare || w.dice.IntN(10) == 0 {
		a.store = w.quiet
	}
	if err = o.run(w, bounded, intake, a); err == nil {
		err = w.end(bounded, a, o.ending)
	}
	if err != nil {
		return w.excuse(ctx, a, err)
	}
	if o.counts != "" {
		w.tally.Add(o.counts, 1)
	}
	return nil
}

// excuse abandons a transaction that the server refused for a reason that writers meet in normal
// life. A COMMIT may be refused, too: it waits for other COMMITs that notify.
func (w *writer) excuse(ctx context.Context, a *attempt, err error) error {
	var pg *pgconn.PgError
	expected := errors.Is(err, store.ErrOptimisticConcurrency) ||
		errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01") // lock time-out, deadlock
	if !expected {
		return w.brokenOff(ctx, a, err)
	}
	w.abandon(a, err)
	w.tally.Add(stage.Conflicts, 1)
	return nil
}

// end commits, rolls back or prepares the transaction.
func (w *writer) end(ctx context.Context, a *attempt, how ending) error {
	if how == toss {
		how = fault.OneOf(w.dice, commit, commit, rollback)
	}
	if how != rollback && fault.Chance(w.dice, 0.15) {
		if err := w.look(ctx, a); err != nil {
			return err
		}
	}
	if how == lose || w.on.Mortal {
		if err := w.identify(ctx, a); err != nil {
			return err
		}
	}
	switch how {
	case commit:
		a.sent = true
		if err := a.tx.Commit(); err != nil {
			return err
		}
		w.keep(a)
	case rollback:
		w.abandon(a, nil)
		return a.tx.Rollback()
	case prepare:
		return w.prepare(ctx, a)
	case lose:
		return w.lose(ctx, a)
	}
	return nil
}

// prepare leaves the transaction to be decided later. The end of tx then does nothing.
func (w *writer) prepare(ctx context.Context, a *attempt) error {
	gid := fmt.Sprintf("%s %s %s", w.on.Name, w.name, w.uuid())
	if err := a.tx.Exec(ctx, "PREPARE TRANSACTION "+ident.Literal(gid)); err != nil {
		if err = w.on.Forgive(err); err != nil {
			return err
		}
		switch there, err := w.seek(ctx, gid, a.xid); {
		case err != nil:
			return err
		case !there:
			return errNotPrepared
		}
	}
	w.record(history.PreparedToEnd, a, nil)
	w.prepared = append(w.prepared, preparedTx{
		number: a.number, life: a.life, gid: gid, drawn: a.drawn, keep: w.dice.IntN(3) > 0,
		due: time.Now().Add(w.wait()),
	})
	return nil
}

// settle decides the prepared transactions that are due.
func (w *writer) settle(ctx context.Context, now time.Time) error {
	for i := 0; i < len(w.prepared); {
		p := w.prepared[i]
		if p.due.After(now) {
			i++
			continue
		}
		w.prepared = slices.Delete(w.prepared, i, i+1)
		if !p.keep {
			if err := w.decide(ctx, "ROLLBACK PREPARED "+ident.Literal(p.gid), p.life); err != nil {
				return err
			}
			w.abandon(&attempt{number: p.number, counts: transactionsPrepared, drawn: p.drawn}, nil)
			w.tally.Add(preparedRolledBack, 1)
			continue
		}
		standings, err := w.on.Standings(ctx)
		if err == nil && !w.on.copies.restoredSince(p.life) {
			w.sight(p.drawn, standings)
		} else if err = w.on.Forgive(err); err != nil {
			return err
		}
		if err := w.decide(ctx, "COMMIT PREPARED "+ident.Literal(p.gid), p.life); err != nil {
			return err
		}
		w.keep(&attempt{number: p.number, life: p.life, counts: transactionsPrepared, late: true, drawn: p.drawn})
	}
	return nil
}

// newWriter returns the n-th writer of a run, with weights of its own for operations.
func newWriter(n int, s *shared, operations []operation) *writer {
	w := &writer{
		name: fmt.Sprintf("writer %d", n), dice: fault.Dice(s.scenario.Seed, fmt.Sprintf("writer %d", n)), knobs: s.scenario.Knobs,
		native: fault.Dice(s.scenario.Seed, fmt.Sprintf("native transactions of writer %d", n)),
		on:     s.on, tally: &s.Tally, output: &s.output, history: s.History, news: s.news, async: s.scenario.Faults[stage.AsyncWritersOn] > 0,
		quiet:      postgres.NewStore(postgres.NewStoreConfig()),
		loud:       postgres.NewStore(postgres.NewStoreConfig(postgres.WithNotifyChannel(Channel))),
		operations: operations,
		versions:   map[aggregate]int64{},
	}
	for i := range w.operations { // each writer has weights of its own
		w.operations[i].weight *= 0.5 + w.dice.Float64()
	}
	w.net, w.db = stage.Connect(s.on.Instance.Database, w.name, w.dice, w.async)
	return w
}
