package sim

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/postgres"
)

// channel is what the store notifies and the workers listen to.
const channel = "sim_events"

// patience bounds a wait for something that must come.
const patience = 30 * time.Second

// book is what a writer remembers for the oracle.
type book struct {
	committed []Event
	abandoned []int64
	misled    []string
	refused   int
	sightings []Sighting
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

	loud, quiet *postgres.Store // with and without a notification
	plays       []play
	versions    map[aggregate]int64 // as this writer last saw them
	born        int                 // new aggregates
	promises    []promise
	next        *aggregate // to be appended to without a pause
	book        book
}

type aggregate struct{ kind, id string }

// attempt is a transaction under way.
type attempt struct {
	conn  *sql.Conn
	tx    *sql.Tx
	store *postgres.Store
	drawn []Event // to be committed
	given []int64 // given up by a savepoint
}

// promise is a prepared transaction.
type promise struct {
	gid   string
	drawn []Event
	keep  bool // commit it in the end
	due   time.Time
}

// play is one way to use a transaction, and how often it is chosen. It
// appends; the ending is what becomes of it.
type play struct {
	fault  Fault
	weight float64
	ending ending
	run    func(*writer, context.Context, context.Context, *attempt) error
}

type ending int

const (
	commit ending = iota
	rollback
	toss // either
	prepare
	lose // the answer to the commit
)

func plays(k Knobs, canPrepare bool) []play {
	all := []play{
		{"", 58, commit, (*writer).appendOnce},
		{Rollbacks, 14, rollback, (*writer).appendOnce},
		{Delays, 3 * k.Slow, toss, (*writer).appendAndWait},
		{LateDraws, 1.5 * k.Slow, commit, (*writer).appendTwice},
		{Idlers, 1.5 * k.Slow, commit, (*writer).waitAndAppend},
		{Savepoints, 6, commit, (*writer).appendAround},
		{Several, 6, commit, (*writer).appendSeveral},
		{StaleVersions, 5, rollback, (*writer).appendStale},
		{LostCommits, 2, lose, (*writer).appendOnce},
	}
	if canPrepare {
		all = append(all, play{Prepared, 3 * k.Prepared, prepare, (*writer).appendQuietly})
	}
	return all
}

func newWriter(n int, s Scenario, on *database, t *tally) *writer {
	w := &writer{
		name: fmt.Sprintf("w%d", n), dice: dice(s.Seed, fmt.Sprintf("writer %d", n)), knobs: s.Knobs,
		on: on, net: newNetwork(nil), tally: t,
		quiet:    postgres.NewStore(postgres.NewStoreConfig()),
		loud:     postgres.NewStore(postgres.NewStoreConfig(postgres.WithNotifyChannel(channel))),
		plays:    plays(s.Knobs, on.canPrepare),
		versions: map[aggregate]int64{},
	}
	for i := range w.plays { // each writer has its own habits
		w.plays[i].weight *= 0.5 + w.dice.Float64()
	}
	config := on.config(w.name)
	config.RuntimeParams["lock_timeout"] = "150ms" // for an aggregate that another transaction holds
	config.DefaultQueryExecMode = execModes[w.dice.IntN(len(execModes))]
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
			return fmt.Errorf("sim: writer %s: %w", w.name, err)
		}
		if err := w.settle(ctx, time.Now()); err != nil {
			return fmt.Errorf("sim: writer %s: %w", w.name, err)
		}
	}
	if ctx.Err() != nil {
		return nil // interrupted
	}
	return w.settle(ctx, time.Now().Add(time.Hour))
}

// pause draws the time to the next transaction. It is longer while the
// consumers cannot keep up, so that they come to rest in the end.
func (w *writer) pause() time.Duration {
	d := time.Duration(w.dice.ExpFloat64() * float64(w.knobs.Pause))
	switch {
	case w.next != nil:
		return 0
	case w.tally.crowded():
		return 10 * d
	}
	return d
}

func (w *writer) choose() play {
	sum := 0.0
	for _, p := range w.plays {
		sum += p.weight
	}
	at := w.dice.Float64() * sum
	for _, p := range w.plays {
		if at -= p.weight; at < 0 {
			return p
		}
	}
	return w.plays[0]
}

// act makes one transaction.
func (w *writer) act(ctx, intake context.Context, p play) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // back to the pool
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after its end
	a := &attempt{conn: conn, tx: tx, store: w.loud}
	if p.ending == prepare || w.dice.IntN(10) == 0 {
		a.store = w.quiet
	}
	if err = p.run(w, ctx, intake, a); err == nil {
		err = w.end(ctx, a, p.ending)
	}
	if err != nil {
		return w.excuse(a, err)
	}
	if p.fault != "" {
		w.tally.add(p.fault, 1)
	}
	return nil
}

// excuse writes off a transaction that the server refused for a reason that
// writers meet in normal life. A COMMIT may be refused, too: it waits for the
// other notifying ones.
func (w *writer) excuse(a *attempt, err error) error {
	var pg *pgconn.PgError
	expected := errors.Is(err, store.ErrOptimisticConcurrency) ||
		errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01") // lock time-out, deadlock
	if !expected {
		return err
	}
	w.abandon(a)
	w.tally.add(Conflicts, 1)
	return nil
}

// end commits, rolls back or prepares the transaction.
func (w *writer) end(ctx context.Context, a *attempt, how ending) error {
	if how == toss {
		how = oneOf(w.dice, commit, commit, rollback)
	}
	if how != rollback && chance(w.dice, 0.15) {
		if err := w.look(ctx, a.drawn); err != nil {
			return err
		}
	}
	switch how {
	case commit:
		if err := a.tx.Commit(); err != nil {
			return err
		}
		w.keep(a)
	case rollback:
		w.abandon(a)
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
	w.book.committed = append(w.book.committed, a.drawn...)
	w.book.abandoned = append(w.book.abandoned, a.given...)
	for _, e := range a.drawn {
		w.versions[aggregate{e.Type, e.ID}] = e.Version
	}
	w.tally.committed(a.drawn)
	if w.dice.IntN(2) == 0 {
		w.next = &aggregate{a.drawn[0].Type, a.drawn[0].ID}
	}
}

// abandon writes down that a transaction was rolled back.
func (w *writer) abandon(a *attempt) {
	w.book.abandoned = append(w.book.abandoned, a.given...)
	for _, e := range a.drawn {
		w.book.abandoned = append(w.book.abandoned, e.Position)
		delete(w.versions, aggregate{e.Type, e.ID})
	}
}

// look takes down where the consumers stand while the transaction that owns
// these events cannot have been committed.
func (w *writer) look(ctx context.Context, drawn []Event) error {
	standings, err := w.on.standings(ctx)
	if err != nil {
		return err
	}
	s := Sighting{Standings: standings}
	for _, e := range drawn {
		s.Positions = append(s.Positions, e.Position)
	}
	w.book.sightings = append(w.book.sightings, s)
	return nil
}

// prepare leaves the transaction to be decided later. The tx's own end does
// nothing any more, then.
func (w *writer) prepare(ctx context.Context, a *attempt) error {
	gid := fmt.Sprintf("%s %s %s", w.on.name, w.name, w.uuid())
	if _, err := a.tx.ExecContext(ctx, "PREPARE TRANSACTION "+quoteText(gid)); err != nil {
		return err
	}
	w.promises = append(w.promises, promise{
		gid: gid, drawn: a.drawn, keep: w.dice.IntN(3) > 0,
		due: time.Now().Add(w.wait()),
	})
	return nil
}

// settle decides the prepared transactions that are due.
func (w *writer) settle(ctx context.Context, now time.Time) error {
	for i := 0; i < len(w.promises); {
		p := w.promises[i]
		if p.due.After(now) {
			i++
			continue
		}
		w.promises = slices.Delete(w.promises, i, i+1)
		if !p.keep {
			if _, err := w.db.ExecContext(ctx, "ROLLBACK PREPARED "+quoteText(p.gid)); err != nil {
				return err
			}
			w.abandon(&attempt{drawn: p.drawn})
			w.tally.add(PreparedUndone, 1)
			continue
		}
		if err := w.look(ctx, p.drawn); err != nil {
			return err
		}
		if _, err := w.db.ExecContext(ctx, "COMMIT PREPARED "+quoteText(p.gid)); err != nil {
			return err
		}
		w.keep(&attempt{drawn: p.drawn})
	}
	return nil
}

// lose commits over a connection that breaks at that moment, and asks the
// server afterwards what happened.
func (w *writer) lose(ctx context.Context, a *attempt) error {
	var xid string
	if err := a.tx.QueryRowContext(ctx, `SELECT pg_current_xact_id()::text`).Scan(&xid); err != nil {
		return err
	}
	wire, err := commitConnOf(a.conn)
	if err != nil {
		return err
	}
	wire.atCommit(w.dice.IntN(2) == 0, w.net.cut)
	if err := a.tx.Commit(); err == nil {
		return errors.New("a commit succeeded whose connection was to break")
	}
	happened, err := w.inquire(ctx, xid, a.drawn[0].EventID)
	switch {
	case err != nil:
		return err
	case happened:
		w.keep(a)
	default:
		w.abandon(a)
	}
	return nil
}

// inquire tells whether a transaction was committed. The event alone would not
// tell: the server may not have noticed yet that the connection is gone, and
// commit a moment later.
func (w *writer) inquire(ctx context.Context, xid string, event uuid.UUID) (happened bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var status string
		err := w.on.db.QueryRowContext(ctx, `SELECT pg_xact_status($1::text::xid8)`, xid).Scan(&status)
		if err != nil {
			return false, fmt.Errorf("the outcome of a commit: %w", err)
		}
		if status != "in progress" {
			break
		}
		backoff.Sleep(ctx, 5*time.Millisecond)
	}
	err = w.on.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM events WHERE event_id = $1::uuid)`, event.String()).Scan(&happened)
	return happened, err
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
	result, err := a.store.Append(ctx, a.tx, expected, events)
	if err != nil {
		return err
	}
	for _, e := range result.Events {
		a.drawn = append(a.drawn, Event{e.GlobalPosition, e.AggregateType, e.AggregateID, e.AggregateVersion, e.EventID})
	}
	return nil
}

// uuid is a random UUID of the seed.
func (w *writer) uuid() uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], w.dice.Uint64())
	binary.BigEndian.PutUint64(id[8:], w.dice.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id
}

// someAggregate prefers a few of them, as life does.
func (w *writer) someAggregate() aggregate {
	u := w.dice.Float64()
	return w.aggregateAt(int(u * u * float64(w.knobs.Aggregates)))
}

// quietAggregate is none of the few that everybody wants: what holds it for
// long holds up few others.
func (w *writer) quietAggregate() aggregate {
	return w.aggregateAt(w.knobs.Aggregates/4 + w.dice.IntN(w.knobs.Aggregates))
}

func (w *writer) aggregateAt(n int) aggregate {
	kind := aggregateTypes[[]int{0, 0, 0, 0, 1, 1, 1, 2, 2, 3}[w.dice.IntN(10)]]
	return aggregate{kind, fmt.Sprintf("%d", n)}
}

// expectation is what a careful or a careless application demands.
func (w *writer) expectation(of aggregate) store.ExpectedVersion {
	if v := w.versions[of]; v > 0 && w.dice.IntN(2) == 0 {
		return store.Exact(v)
	}
	return store.Any()
}

// wait draws for how long a transaction stays open: mostly short, up to
// LongestTx.
func (w *writer) wait() time.Duration {
	const shortest = 50 * time.Millisecond
	u := w.dice.Float64()
	return shortest + time.Duration(u*u*float64(w.knobs.LongestTx-shortest))
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

// appendAndWait draws positions and lets the others pass.
func (w *writer) appendAndWait(ctx, intake context.Context, a *attempt) error {
	if err := w.appendQuietly(ctx, intake, a); err != nil {
		return err
	}
	backoff.Sleep(intake, w.wait())
	return w.look(ctx, a.drawn)
}

// appendTwice draws again when the others have begun to pass, and lets them
// pass for longer than most of them need.
func (w *writer) appendTwice(ctx, intake context.Context, a *attempt) error {
	if err := w.appendQuietly(ctx, intake, a); err != nil {
		return err
	}
	backoff.Sleep(intake, w.knobs.StaleGapThreshold+w.wait()/4)
	if err := w.appendQuietly(ctx, intake, a); err != nil {
		return err
	}
	backoff.Sleep(intake, (w.wait()+w.knobs.LongestTx)/2)
	return w.look(ctx, a.drawn)
}

// waitAndAppend is open for long without a position, then draws one.
func (w *writer) waitAndAppend(ctx, intake context.Context, a *attempt) error {
	if _, err := a.tx.ExecContext(ctx, `SELECT 1`); err != nil {
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
	if _, err := a.tx.ExecContext(ctx, `SAVEPOINT before`); err != nil {
		return err
	}
	before := len(a.drawn)
	if err := w.appendOnce(ctx, intake, a); err != nil {
		return err
	}
	if _, err := a.tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT before`); err != nil {
		return err
	}
	for _, e := range a.drawn[before:] {
		a.given = append(a.given, e.Position)
	}
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
		w.book.refused++
	case err != nil:
		return err
	default:
		w.book.misled = append(w.book.misled, fmt.Sprintf("an append to %s/%s that expected version %d succeeded at version %d",
			to.kind, to.id, seen, a.drawn[len(a.drawn)-1].Version-1))
	}
	return nil
}
