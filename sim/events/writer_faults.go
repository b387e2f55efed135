package events

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/store"
)

const (
	appendsRolledBack    history.Fault = "appends rolled back"
	commitsDelayed       history.Fault = "commits delayed"
	lateDraws            history.Fault = "commits delayed, with a draw in between"
	idleDraws            history.Fault = "draws after idling in a transaction"
	savepointsRolledBack history.Fault = "savepoints rolled back"
	staleAppends         history.Fault = "appends to a stale version"
	commitsUnanswered    history.Fault = "writers' commits with no answer"
)

// writerFaults are what applications do with transactions, beside the usual.
var writerFaults = []faultRow{
	{Row: fault.New("rollback", "rolls appends back", appendsRolledBack),
		always: true, writer: []operation{{weight: 14, ending: rollback, run: (*writer).appendOnce}}},
	{Row: fault.New("delay", "keeps transactions with positions open", commitsDelayed).Reaching(oracle.OpenTransactions, oracle.OpenSessions),
		writer: []operation{{weight: 3, ending: toss, late: true, run: (*writer).appendAndWait}}},
	{Row: fault.New("redraw", "keeps transactions open and draws positions again",
		lateDraws).Reaching(oracle.OpenTransactions, oracle.OpenSessions),
		writer: []operation{{weight: 1.5, ending: commit, late: true, run: (*writer).appendTwice}}},
	{Row: fault.New("idle", "keeps transactions open, and draws a position in the end",
		idleDraws).Reaching(oracle.OpenTransactions, oracle.OpenSessions),
		writer: []operation{{weight: 1.5, ending: commit, late: true, run: (*writer).waitAndAppend}}},
	{Row: fault.New("savepoint", "rolls appends back to a savepoint", savepointsRolledBack),
		writer: []operation{{weight: 6, ending: commit, run: (*writer).appendAround}}},
	{Row: fault.New("stale", "appends with a version that the aggregate has left behind", staleAppends).Reaching(oracle.StaleVersions),
		always: true, writer: []operation{{weight: 5, ending: rollback, run: (*writer).appendStale}}},
	{
		Row: fault.New("prepare", "prepares transactions and decides them later",
			transactionsPrepared).Reaching(oracle.OpenTransactions, oracle.PreparedTransactions).Needing(fault.Preparing).AlsoCounting(preparedRolledBack),
		writer: []operation{
			{weight: 2, ending: prepare, late: true, run: (*writer).appendQuietly},
			{weight: 1, ending: prepare, late: true, run: (*writer).appendAgain},
		},
	},
	{Row: fault.New("lose", "cuts writers off at their COMMIT", commitsUnanswered).Reaching(oracle.WritersLostAtCommit),
		writer: []operation{{weight: 2, ending: lose, run: (*writer).appendOnce}}},
}

// append appends one to eight events to an aggregate.
func (w *writer) append(ctx context.Context, a *attempt, to aggregate, expected store.ExpectedVersion) error {
	n := 1 + min(w.dice.IntN(8), w.dice.IntN(8))
	events := make([]store.Event, n)
	for i := range events {
		events[i] = store.Event{
			AggregateType: to.kind, AggregateID: to.id,
			EventType: "happened", EventID: w.uuid(), Payload: []byte(w.name),
		}
	}
	result, err := either.Do(a.tx, func(tx *sql.Tx) (store.AppendResult, error) { return a.store.Append(ctx, tx, expected, events) })
	if err != nil {
		return err
	}
	for _, e := range result.Events {
		a.drawn = append(a.drawn, history.Event{Position: e.GlobalPosition, Type: e.AggregateType, ID: e.AggregateID, Version: e.AggregateVersion, EventID: e.EventID})
	}
	return nil
}

// someAggregate draws an aggregate, a few of them more often than others.
func (w *writer) someAggregate() aggregate {
	u := w.dice.Float64()
	return w.aggregateAt(int(u * u * float64(w.knobs.Aggregates)))
}

// quietAggregate draws an aggregate that few writers use: a long lock on it delays few of them.
func (w *writer) quietAggregate() aggregate {
	return w.aggregateAt(w.knobs.Aggregates/4 + w.dice.IntN(w.knobs.Aggregates))
}

func (w *writer) aggregateAt(n int) aggregate {
	kind := aggregateTypes[[]int{0, 0, 0, 0, 1, 1, 1, 2, 2, 3}[w.dice.IntN(10)]]
	return aggregate{kind, fmt.Sprintf("%d", n)}
}

// expectation is the version that a careful or a careless application expects.
func (w *writer) expectation(of aggregate) store.ExpectedVersion {
	if v := w.versions[of]; v > 0 && w.dice.IntN(2) == 0 {
		return store.Exact(v)
	}
	return store.Any()
}

func (w *writer) appendOnce(ctx, _ context.Context, a *attempt) error {
	if to := w.next; to != nil {
		w.next = nil
		return w.append(ctx, a, *to, store.Any())
	}
	if w.dice.IntN(20) == 0 {
		w.born++
		return w.append(ctx, a, aggregate{aggregateTypes[w.dice.IntN(len(aggregateTypes))], fmt.Sprintf("%s-%d", w.name, w.born)}, store.NoStream())
	}
	to := w.someAggregate()
	return w.append(ctx, a, to, w.expectation(to))
}

func (w *writer) appendQuietly(ctx, _ context.Context, a *attempt) error {
	return w.append(ctx, a, w.quietAggregate(), store.Any())
}

// appendAndWait draws positions and lets other transactions pass.
func (w *writer) appendAndWait(ctx, intake context.Context, a *attempt) error {
	if err := w.appendQuietly(ctx, intake, a); err != nil {
		return err
	}
	backoff.Sleep(intake, w.wait())
	return w.look(ctx, a)
}

// appendAgain draws again when other transactions have begun to pass.
func (w *writer) appendAgain(ctx, intake context.Context, a *attempt) error {
	if err := w.appendQuietly(ctx, intake, a); err != nil {
		return err
	}
	if err := w.rest(ctx, intake, a, w.knobs.StaleGapThreshold+w.wait()/4); err != nil {
		return err
	}
	return w.appendQuietly(ctx, intake, a)
}

// rest runs nothing in the transaction for a while. Every other time, the
// transaction is aborted meanwhile, and goes on from a savepoint.
func (w *writer) rest(ctx, intake context.Context, a *attempt, d time.Duration) error {
	if w.dice.IntN(2) == 0 {
		backoff.Sleep(intake, d)
		return nil
	}
	if err := a.tx.Exec(ctx, `SAVEPOINT rest`); err != nil {
		return err
	}
	if err := a.tx.Exec(ctx, `SELECT 1/0`); pgdriver.SQLState(err) != pgdriver.DivisionByZero {
		return fmt.Errorf("a division by zero: %w", err)
	}
	backoff.Sleep(intake, d)
	return a.tx.Exec(ctx, `ROLLBACK TO SAVEPOINT rest`)
}

// appendTwice draws again, and waits for longer than most transactions need to pass.
func (w *writer) appendTwice(ctx, intake context.Context, a *attempt) error {
	if err := w.appendAgain(ctx, intake, a); err != nil {
		return err
	}
	if err := w.rest(ctx, intake, a, (w.wait()+w.knobs.LongestTx)/2); err != nil {
		return err
	}
	return w.look(ctx, a)
}

// waitAndAppend is open for long without a position, then draws one.
func (w *writer) waitAndAppend(ctx, intake context.Context, a *attempt) error {
	if err := a.tx.Exec(ctx, `SELECT 1`); err != nil {
		return err
	}
	backoff.Sleep(intake, w.wait())
	return w.appendOnce(ctx, intake, a)
}

// appendAround appends before, in and after a savepoint that it rolls back.
func (w *writer) appendAround(ctx, intake context.Context, a *attempt) error {
	if w.dice.IntN(2) == 0 {
		if err := w.appendOnce(ctx, intake, a); err != nil {
			return err
		}
	}
	if err := a.tx.Exec(ctx, `SAVEPOINT before`); err != nil {
		return err
	}
	before := len(a.drawn)
	if err := w.appendOnce(ctx, intake, a); err != nil {
		return err
	}
	if err := a.tx.Exec(ctx, `ROLLBACK TO SAVEPOINT before`); err != nil {
		return err
	}
	a.given = append(a.given, a.drawn[before:]...)
	a.drawn = a.drawn[:before]
	return w.appendOnce(ctx, intake, a)
}

func (w *writer) appendSeveral(ctx, intake context.Context, a *attempt) error {
	for range 2 + w.dice.IntN(3) {
		if err := w.appendOnce(ctx, intake, a); err != nil {
			return err
		}
	}
	return nil
}

// appendStale demands a version that the aggregate has left behind: the store
// must refuse.
func (w *writer) appendStale(ctx, _ context.Context, a *attempt) error {
	to := w.someAggregate()
	if err := w.append(ctx, a, to, store.Any()); err != nil {
		return err
	}
	seen := a.drawn[0].Version - 1
	switch err := w.append(ctx, a, to, store.Exact(seen)); {
	case errors.Is(err, store.ErrOptimisticConcurrency):
		w.ledger.refused++
	case err != nil:
		return err
	default:
		w.ledger.misled = append(w.ledger.misled, fmt.Sprintf("an append to %s/%s that expected version %d succeeded at version %d",
			to.kind, to.id, seen, a.drawn[len(a.drawn)-1].Version-1))
	}
	return nil
}
