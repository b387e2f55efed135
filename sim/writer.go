package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/postgres"
)

// channel is what the store notifies and the workers listen to.
const channel = "sim_events"

// waitBound bounds a wait of the harness for something that must come.
const waitBound = 30 * time.Second

// book is what a writer remembers for the oracle.
type book struct {
	committed []done
	abandoned []history.Event
	misled    []string
	refused   int
	sightings []history.Sighting
}

// done is a transaction that was committed.
type done struct {
	begun, ended int64 // lives of the server
	async        bool  // it was acknowledged before it was safe
	events       []history.Event
}

// gone reports whether a copy was made before the transaction began, and put
// back after it had ended.
func (t done) gone(restores []history.Restore) bool {
	return slices.ContainsFunc(restores, func(r history.Restore) bool { return t.begun > r.Copied && t.ended < r.Restored })
}

// uncertain reports whether only the log can tell if a copy that was put back
// has the transaction.
func (t done) uncertain(restores []history.Restore) bool {
	return slices.ContainsFunc(restores, func(r history.Restore) bool { return t.ended >= r.Copied && t.begun <= r.Restored })
}

// writer appends events in all the ways in which applications do, and writes
// down what became of them.
type writer struct {
	name  string
	dice  *rand.Rand
	knobs Knobs
	on    *database
	net   *network
	db    *sql.DB
	tally *tally
	async bool // it does not wait for its commits to be safe

	history *history.History
	begun   int // transactions

	loud, quiet *postgres.Store // with and without a notification
	operations  []operation
	versions    map[aggregate]int64 // as this writer last saw them
	born        int                 // new aggregates
	prepared    []preparedTx
	news        news
	next        *aggregate // to be appended to without a pause
	book        book
}

type aggregate struct{ kind, id string }

// attempt is a transaction under way.
type attempt struct {
	number int           // among the writer's
	life   int64         // of the server, when it began
	counts history.Fault // what it is counted as, beside a transaction; empty: nothing
	conn   *sql.Conn
	tx     *sql.Tx
	store  *postgres.Store
	drawn  []history.Event // to be committed
	given  []history.Event // given up by a savepoint
	xid    string          // as the server knows it
	sent   bool            // its COMMIT
	lost   bool            // the answer to that
}

// preparedTx is a transaction that was prepared and is to be decided.
type preparedTx struct {
	number int   // of the transaction
	life   int64 // of the server, when it began
	gid    string
	drawn  []history.Event
	keep   bool // commit it in the end
	due    time.Time
}

func newWriter(n int, s Scenario, on *database, t *tally, h *history.History) *writer {
	w := &writer{
		name: fmt.Sprintf("writer %d", n), dice: fault.Dice(s.Seed, fmt.Sprintf("writer %d", n)), knobs: s.Knobs,
		on: on, net: newNetwork(nil), tally: t, history: h, async: s.Faults[asyncWritersOn] > 0,
		quiet:      postgres.NewStore(postgres.NewStoreConfig()),
		loud:       postgres.NewStore(postgres.NewStoreConfig(postgres.WithNotifyChannel(channel))),
		operations: operations(s.Faults),
		versions:   map[aggregate]int64{},
	}
	for i := range w.operations { // each writer has its own habits
		w.operations[i].weight *= 0.5 + w.dice.Float64()
	}
	config := on.config(w.name)
	config.RuntimeParams["lock_timeout"] = "150ms" // for an aggregate that another transaction holds
	config.DefaultQueryExecMode = execModes[w.dice.IntN(len(execModes))]
	if w.async {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	w.net.carry(config)
	w.db = stdlib.OpenDB(*config)
	w.db.SetMaxOpenConns(1) // what breaks is then the one in use
	return w
}

// run appends until intake ends, then settles what it has prepared. It returns
// an error if something happens that is none of the faults.
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
	d := time.Duration(w.dice.ExpFloat64() * float64(w.knobs.Pause) * w.tally.slowdown())
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
	bounded, cancel := w.on.bounded(ctx, 2*waitBound)
	defer cancel()
	life := w.on.life()
	conn, err := w.db.Conn(bounded)
	if err != nil {
		return w.on.forgive(w.on.mine(ctx, err))
	}
	defer func() { _ = conn.Close() }() // back to the pool
	tx, err := conn.BeginTx(bounded, nil)
	if err != nil {
		return w.on.forgive(w.on.mine(ctx, err))
	}
	defer func() { _ = tx.Rollback() }() // a no-op after its end
	w.begun++
	a := &attempt{number: w.begun, life: life, counts: o.counts, conn: conn, tx: tx, store: w.loud}
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
		w.tally.add(o.counts, 1)
	}
	return nil
}

// excuse writes off a transaction that the server refused for a reason that
// writers meet in normal life. A COMMIT may be refused, too: it waits for the
// other notifying ones.
func (w *writer) excuse(ctx context.Context, a *attempt, err error) error {
	var pg *pgconn.PgError
	expected := errors.Is(err, store.ErrOptimisticConcurrency) ||
		errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01") // lock time-out, deadlock
	if !expected {
		return w.brokenOff(ctx, a, err)
	}
	w.abandon(a, err)
	w.tally.add(conflicts, 1)
	return nil
}

// end commits, rolls back or prepares the transaction.
func (w *writer) end(ctx context.Context, a *attempt, how ending) error {
	if how == toss {
		how = oneOf(w.dice, commit, commit, rollback)
	}
	if how != rollback && chance(w.dice, 0.15) {
		if err := w.look(ctx, a); err != nil {
			return err
		}
	}
	if how == lose || w.on.mortal {
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

// keep writes down that a transaction was committed. What it appended to may
// be appended to again at once.
func (w *writer) keep(a *attempt) {
	w.record(history.Committed, a, nil)
	async := w.async && a.counts != transactionsPrepared // those are always safe
	if async {
		w.tally.add(asyncCommits, 1)
	}
	w.book.committed = append(w.book.committed, done{a.life, w.on.life(), async, a.drawn})
	w.book.abandoned = append(w.book.abandoned, a.given...)
	for _, e := range a.drawn {
		w.versions[aggregate{e.Type, e.ID}] = e.Version
	}
	w.tally.committed(a.drawn)
	w.news.tell(a.drawn[len(a.drawn)-1], a.counts)
	if w.dice.IntN(2) == 0 {
		w.next = &aggregate{a.drawn[0].Type, a.drawn[0].ID}
	}
}

// abandon writes down that a transaction was rolled back, and why if that was
// not the writer's wish.
func (w *writer) abandon(a *attempt, why error) {
	w.record(history.RolledBack, a, why)
	w.book.abandoned = append(w.book.abandoned, a.given...)
	w.book.abandoned = append(w.book.abandoned, a.drawn...)
	for _, e := range a.drawn {
		delete(w.versions, aggregate{e.Type, e.ID})
	}
}

// record tells the history of a transaction.
func (w *writer) record(kind history.Kind, a *attempt, err error) {
	w.history.Add(w.name, "", kind, history.Transaction{
		Tx: a.number, Positions: history.Spans(history.PositionsOf(a.drawn)), Abandoned: history.Spans(history.PositionsOf(a.given)),
		Fault: a.counts, Unanswered: a.lost, Error: textOf(err),
	})
}

// look takes down where the consumers stand while the transaction that owns
// its events cannot have been committed.
func (w *writer) look(ctx context.Context, a *attempt) error {
	standings, err := w.on.standings(ctx)
	if err == nil && w.on.mortal {
		_, err = a.tx.ExecContext(ctx, `SELECT 1`) // it was open all the time, if it still is
	}
	if err == nil {
		w.sight(a.drawn, standings)
	}
	return err
}

func (w *writer) sight(drawn []history.Event, standings []history.Standing) {
	w.book.sightings = append(w.book.sightings, history.Sighting{Positions: history.PositionsOf(drawn), Standings: standings})
}

// prepare leaves the transaction to be decided later. The tx's own end does
// nothing any more, then.
func (w *writer) prepare(ctx context.Context, a *attempt) error {
	gid := fmt.Sprintf("%s %s %s", w.on.name, w.name, w.uuid())
	if _, err := a.tx.ExecContext(ctx, "PREPARE TRANSACTION "+ident.Literal(gid)); err != nil {
		if err = w.on.forgive(err); err != nil {
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
			w.tally.add(preparedRolledBack, 1)
			continue
		}
		standings, err := w.on.standings(ctx)
		if err == nil && !w.on.restoredSince(p.life) {
			w.sight(p.drawn, standings)
		} else if err = w.on.forgive(err); err != nil {
			return err
		}
		if err := w.decide(ctx, "COMMIT PREPARED "+ident.Literal(p.gid), p.life); err != nil {
			return err
		}
		w.keep(&attempt{number: p.number, life: p.life, counts: transactionsPrepared, drawn: p.drawn})
	}
	return nil
}
