package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	enqueuesCommitted  history.Fault = "transactions with jobs committed"
	enqueuesRolledBack history.Fault = "transactions with jobs rolled back"
	enqueuesDelayed    history.Fault = "commits of jobs delayed"
	enqueuesLost       history.Fault = "commits of jobs without an answer"
	enqueuersQuit      history.Fault = "enqueuers cut off before their commit"
)

// jobEnd is how an enqueuer ends a transaction, beside a plain commit.
type jobEnd struct {
	weight float64
	run    func(e *enqueuer, ctx, intake context.Context, a *enqueueAttempt) error
}

// jobEnqueueFaults are what enqueuers do in place of a plain commit.
var jobEnqueueFaults = []jobFaultRow{
	{
		Row: fault.Row{Name: "rollback", Does: "rolls back a transaction in which jobs were enqueued", Counts: []history.Fault{enqueuesRolledBack}},
		end: jobEnd{0.1, (*enqueuer).rollback},
	},
	{
		Row: fault.Row{
			Name: "delay", Does: "delays a commit, so that later jobs are claimed before",
			Counts: []history.Fault{enqueuesDelayed}, Reaches: []oracle.Condition{oracle.LateEnqueues},
		},
		end: jobEnd{0.15, (*enqueuer).delay},
	},
	{
		Row: fault.Row{Name: "lose", Does: "cuts an enqueuer off at its COMMIT, whose answer is lost", Counts: []history.Fault{enqueuesLost}},
		end: jobEnd{0.05, (*enqueuer).lose},
	},
	{
		Row: fault.Row{Name: "quit", Does: "cuts an enqueuer off before its COMMIT", Counts: []history.Fault{enqueuersQuit}},
		end: jobEnd{0.05, (*enqueuer).quit},
	},
}

// enqueuer enqueues jobs in all the ways in which applications do, and writes down
// what became of them.
type enqueuer struct {
	name   string
	dice   *rand.Rand
	knobs  JobKnobs
	of     *jobSimulation
	net    *network
	db     *sql.DB
	client *jobs.Client
	flows  *flow.Client
	async  bool
	ends   []weighted[jobEnd]
	acts   []weighted[jobFaultRow]
	begun  int // transactions
	tokens int
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
	tx      *sql.Tx
	xid     string
	entries []jobEntry
	event   string // that asks for the entries, or the key of the run that they are; empty: they are jobs of this transaction
	sent    bool   // its COMMIT
}

func newEnqueuer(n int, s *jobSimulation) *enqueuer {
	name := fmt.Sprintf("writer %d", n)
	e := &enqueuer{name: name, dice: fault.Dice(s.scenario.Seed, "enqueuer "+name), knobs: *s.scenario.Jobs, of: s, net: newNetwork(nil), async: s.scenario.Faults[asyncWritersOn] > 0}
	for _, f := range jobFaultRows {
		x := s.scenario.Faults[f.Name]
		if f.end.run != nil && x > 0 {
			e.ends = append(e.ends, weighted[jobEnd]{f.end, f.end.weight * x * (0.5 + e.dice.Float64())})
		}
		if f.act != "" && x > 0 {
			e.acts = append(e.acts, weighted[jobFaultRow]{f, 0.03 * x})
		}
	}
	config := s.on.config(name)
	config.RuntimeParams["lock_timeout"] = "150ms" // for a key that another transaction holds
	config.DefaultQueryExecMode = execModes[e.dice.IntN(len(execModes))]
	if e.async {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	e.net.carry(config)
	e.db = stdlib.OpenDB(*config)
	e.db.SetMaxOpenConns(1) // what breaks is then the one in use
	e.client = jobs.NewClient(e.db)
	e.flows = flow.NewClient(e.client)
	return e
}

// run enqueues until intake ends. It returns an error if something happens that is
// none of the faults.
func (e *enqueuer) run(ctx, intake context.Context) (err error) {
	defer func() { err = errors.Join(err, e.db.Close()) }()
	for backoff.Sleep(intake, time.Duration(e.dice.ExpFloat64()*float64(e.knobs.Pause)*e.of.tally.slowdown())) {
		if err := e.act(ctx, intake); err != nil {
			return fmt.Errorf("sim: %s: %w", e.name, err)
		}
	}
	return nil
}

// act makes one transaction.
func (e *enqueuer) act(ctx, intake context.Context) error {
	bounded, cancel := e.of.on.bounded(ctx, 2*waitBound)
	defer cancel()
	a := &enqueueAttempt{life: e.of.on.life()}
	var err error
	if a.conn, err = e.db.Conn(bounded); err != nil {
		return e.of.on.forgive(e.of.on.mine(ctx, err))
	}
	defer func() { _ = a.conn.Close() }() // back to the pool
	if a.tx, err = a.conn.BeginTx(bounded, nil); err != nil {
		return e.of.on.forgive(e.of.on.mine(ctx, err))
	}
	defer func() { _ = a.tx.Rollback() }() // a no-op after its end
	e.begun++
	a.number = e.begun
	e.record(history.Begin, a, "", nil)
	err = a.tx.QueryRowContext(bounded, `INSERT INTO sim_enqueuers (name, number) VALUES ($1::text, $2::bigint) RETURNING pg_current_xact_id()::text`, e.name, a.number).Scan(&a.xid)
	const often, seldom = 0.3, 0.07 // of the transactions
	switch {
	case err != nil:
	case chance(e.dice, seldom):
		err = e.startFlow(bounded, a)
	case len(e.of.emitting) > 0 && chance(e.dice, often):
		err = e.ask(bounded, a)
	default:
		err = e.enqueue(bounded, a)
	}
	if err == nil {
		err = e.chooseEnd(a).run(e, bounded, intake, a)
	}
	return e.excuse(ctx, a, err)
}

// chooseEnd draws how the transaction ends. One with an event or a run of a flow is
// seldom left to end plainly: it may come late.
func (e *enqueuer) chooseEnd(a *enqueueAttempt) jobEnd {
	at := e.dice.Float64()
	if a.event != "" {
		at /= 2
	}
	for _, x := range e.ends {
		if at -= x.weight; at < 0 {
			return x.what
		}
	}
	return jobEnd{run: (*enqueuer).commit}
}

// excuse writes off a transaction that was refused for a reason that enqueuers meet
// in normal life.
func (e *enqueuer) excuse(ctx context.Context, a *enqueueAttempt, err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jobs.ErrUniqueBusy), errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01"): // lock time-out, deadlock
		e.of.tally.add(conflicts, 1)
	case e.of.on.forgive(err) != nil:
		return err
	case a.sent:
		e.of.tally.add(transactionsBrokenOff, 1)
		return e.learn(ctx, a)
	default:
		e.of.tally.add(transactionsBrokenOff, 1)
	}
	e.keep(a, history.EnqueueRolledBack, err)
	return nil
}

// keep takes down what became of the transaction.
func (e *enqueuer) keep(a *enqueueAttempt, outcome string, why error) {
	for i := range a.entries {
		a.entries[i].Outcome = outcome
	}
	e.of.book.enqueue(a.entries)
	if outcome != history.EnqueueCommitted {
		e.record(history.RolledBack, a, outcome, why)
		return
	}
	e.of.tally.add(enqueuesCommitted, 1)
	if e.async {
		e.of.tally.add(asyncCommits, 1)
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
	t := history.Transaction{Tx: a.number, Error: textOf(why)}
	if kind == history.Committed {
		t.Positions = history.Spans(ids)
	} else if kind == history.RolledBack {
		t.Abandoned = history.Spans(ids)
	}
	e.of.history.Add(e.name, "", kind, t)
}

func (e *enqueuer) commit(ctx, _ context.Context, a *enqueueAttempt) error {
	a.sent = true
	if err := a.tx.Commit(); err != nil {
		return err
	}
	e.keep(a, history.EnqueueCommitted, nil)
	if x := a.entries[0]; x.Kind == "plain" && !x.Far && !x.Existing && !x.Asked && chance(e.dice, 0.4) {
		e.of.book.awaitResult(ctx, x.Token, func(ctx context.Context) (string, error) {
			return jobs.Wait[string](ctx, e.of.client, x.ID)
		})
	}
	return nil
}

func (e *enqueuer) rollback(_, _ context.Context, a *enqueueAttempt) error {
	e.keep(a, history.EnqueueRolledBack, nil)
	e.of.tally.add(enqueuesRolledBack, 1)
	return a.tx.Rollback()
}

// delay waits, meanwhile later jobs are committed and claimed.
func (e *enqueuer) delay(ctx, intake context.Context, a *enqueueAttempt) error {
	backoff.Sleep(intake, between(e.dice, 50*time.Millisecond, e.knobs.LongestTx))
	e.of.tally.add(enqueuesDelayed, 1)
	return e.commit(ctx, intake, a)
}

// lose commits over a connection that breaks at that moment.
func (e *enqueuer) lose(ctx, _ context.Context, a *enqueueAttempt) error {
	wire, err := failpointConnOf(a.conn)
	if err != nil {
		return err
	}
	wire.atCommit(e.dice.IntN(2) == 0, e.net.cut)
	a.sent = true
	if err := a.tx.Commit(); err == nil {
		return errors.New("a commit succeeded whose connection was to break")
	}
	e.of.tally.add(enqueuesLost, 1)
	return e.learn(ctx, a)
}

// quit breaks the connection before the COMMIT is sent: the process is gone.
func (e *enqueuer) quit(_, _ context.Context, a *enqueueAttempt) error {
	e.net.cut()
	e.of.tally.add(enqueuersQuit, 1)
	e.keep(a, history.EnqueueRolledBack, nil)
	return nil
}

// learn asks what became of a transaction whose COMMIT got no answer. The ids of its jobs
// do not tell: after a crash others may have them.
func (e *enqueuer) learn(ctx context.Context, a *enqueueAttempt) error {
	var there bool
	on := e.of.on
	err := on.insist(ctx, func(ctx context.Context) (known bool, err error) {
		known, err = on.over(ctx, a.xid)
		if err == nil && known {
			err = on.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM sim_enqueuers WHERE name = $1::text AND number = $2::bigint)`, e.name, a.number).Scan(&there)
		}
		return known, err
	})
	switch {
	case err != nil:
		return err
	case there:
		e.keep(a, history.EnqueueCommitted, nil)
	default:
		e.keep(a, history.EnqueueRolledBack, nil)
	}
	return nil
}
