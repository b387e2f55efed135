package jobs

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	enqueuesCommitted  history.Fault = "transactions with jobs committed"
	enqueuesRolledBack history.Fault = "transactions with jobs rolled back"
	enqueuesDelayed    history.Fault = "commits of jobs delayed"
	enqueuesLost       history.Fault = "commits of jobs without an answer"
	enqueuersQuit      history.Fault = "enqueuers cut off before their commit"
)

// ending is how an enqueuer ends a transaction, beside a plain commit.
type ending struct {
	weight float64
	run    func(e *enqueuer, ctx, intake context.Context, a *enqueueAttempt) error
}

// enqueueFaults are what enqueuers do in place of a plain commit.
var enqueueFaults = []faultRow{
	{Row: fault.New("rollback", "rolls back a transaction in which jobs were enqueued", enqueuesRolledBack), end: ending{0.1, (*enqueuer).rollback}},
	{Row: fault.New("delay", "delays a commit, so that later jobs are claimed before", enqueuesDelayed).Reaching(oracle.LateEnqueues),
		end: ending{0.15, (*enqueuer).delay}},
	{Row: fault.New("lose", "cuts an enqueuer off at its COMMIT, whose answer is lost", enqueuesLost), end: ending{0.05, (*enqueuer).lose}},
	{Row: fault.New("quit", "cuts an enqueuer off before its COMMIT", enqueuersQuit), end: ending{0.05, (*enqueuer).quit}},
}

// enqueuer enqueues jobs in all the ways in which applications do, and records
// what became of them.
type enqueuer struct {
	name   string
	dice   *rand.Rand
	native *rand.Rand // draws the transactions that are of pgx
	knobs  Knobs
	of     *shared
	net    *network.Network
	db     *sql.DB
	client *jobs.Client
	flows  *flow.Client
	async  bool
	ends   []weighted[ending]
	acts   []weighted[faultyAct]
	begun  int // transactions
	tokens int
}

// faultyAct is an act of a handler, and what it is counted as.
type faultyAct struct {
	act    string
	counts history.Fault
}

type weighted[T any] struct {
	what   T
	weight float64
}

// enqueueAttempt is a transaction under way.
type enqueueAttempt struct {
	number  int
	life    int64 // of the server, when it began
	conn    *sql.Conn
	tx      either.Tx
	xid     string
	entries []entry
	event   string // the event that asks for the entries, or the key of their run; empty: they are jobs of this transaction
	sent    bool   // its COMMIT
}

// keep records what became of the transaction.
func (e *enqueuer) keep(a *enqueueAttempt, outcome string, why error) {
	for i := range a.entries {
		a.entries[i].Outcome = outcome
	}
	e.of.ledger.enqueue(a.entries)
	if outcome != history.EnqueueCommitted {
		e.record(history.RolledBack, a, outcome, why)
		return
	}
	e.of.Tally.Add(enqueuesCommitted, 1)
	if e.async {
		e.of.Tally.Add(stage.AsyncCommits, 1)
	}
	e.record(history.Committed, a, outcome, nil)
}

func (e *enqueuer) record(kind history.Kind, a *enqueueAttempt, outcome string, why error) {
	var ids []int64
	for _, x := range a.entries {
		if !x.Existing && !x.Asked {
			ids = append(ids, x.ID)
		}
	}
	t := history.Transaction{Tx: a.number, Native: either.Native(a.tx), Error: history.TextOf(why)}
	if kind == history.Committed {
		t.Positions = history.Spans(ids)
	} else if kind == history.RolledBack {
		t.Abandoned = history.Spans(ids)
	}
	e.of.History.Add(e.name, "", kind, t)
}

func (e *enqueuer) commit(ctx, _ context.Context, a *enqueueAttempt) error {
	a.sent = true
	if err := a.tx.Commit(); err != nil {
		return err
	}
	e.keep(a, history.EnqueueCommitted, nil)
	if x := a.entries[0]; x.Kind == "plain" && !x.Far && !x.Existing && !x.Asked && fault.Chance(e.dice, 0.4) {
		e.of.ledger.awaitResult(ctx, x.Token, func(ctx context.Context) (string, error) {
			return jobs.Wait[string](ctx, e.of.client, x.ID)
		})
	}
	return nil
}

func (e *enqueuer) rollback(_, _ context.Context, a *enqueueAttempt) error {
	e.keep(a, history.EnqueueRolledBack, nil)
	e.of.Tally.Add(enqueuesRolledBack, 1)
	return a.tx.Rollback()
}

// delay waits, meanwhile later jobs are committed and claimed.
func (e *enqueuer) delay(ctx, intake context.Context, a *enqueueAttempt) error {
	backoff.Sleep(intake, fault.Between(e.dice, 50*time.Millisecond, e.knobs.LongestTx))
	e.of.Tally.Add(enqueuesDelayed, 1)
	return e.commit(ctx, intake, a)
}

// lose commits over a connection that breaks at that moment.
func (e *enqueuer) lose(ctx, _ context.Context, a *enqueueAttempt) error {
	wire, err := network.ConnOf(a.conn)
	if err != nil {
		return err
	}
	wire.AtCommit(e.dice.IntN(2) == 0, e.net.Cut)
	a.sent = true
	if err := a.tx.Commit(); err == nil {
		return errors.New("a commit succeeded whose connection was to break")
	}
	e.of.Tally.Add(enqueuesLost, 1)
	return e.learn(ctx, a)
}

// quit breaks the connection before the COMMIT is sent: the process is gone.
func (e *enqueuer) quit(_, _ context.Context, a *enqueueAttempt) error {
	e.net.Cut()
	e.of.Tally.Add(enqueuersQuit, 1)
	e.keep(a, history.EnqueueRolledBack, nil)
	return nil
}

// learn asks what became of a transaction whose COMMIT got no answer. The ids of its jobs prove
// nothing: after a crash other jobs may have them.
func (e *enqueuer) learn(ctx context.Context, a *enqueueAttempt) error {
	var there bool
	on := e.of.on
	err := on.Insist(ctx, func(ctx context.Context) (known bool, err error) {
		known, err = on.Over(ctx, a.xid)
		if err == nil && known {
			err = on.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM sim_enqueuers WHERE name = $1::text AND number = $2::bigint)`, e.name, a.number).Scan(&there)
		}
		return known, err
	})
	if err != nil {
		return err
	}
	e.keep(a, learned(there, e.async && on.Life() != a.life), nil)
	return nil
}

// learned is what became of a transaction whose COMMIT was sent and got no answer. If a crash may
// have taken it back, it may have been committed before, and workers may have run its jobs.
func learned(there, mayBeTakenBack bool) string {
	switch {
	case there:
		return history.EnqueueCommitted
	case mayBeTakenBack:
		return history.EnqueueUnsure
	}
	return history.EnqueueRolledBack
}
