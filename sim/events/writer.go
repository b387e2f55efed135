package events

import (
	"context"
	"database/sql"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
	"github.com/pgfrontier/worker/store/postgres"
)

// Channel is what the store notifies and the workers listen to.
const Channel = "sim_events"

// ledger is what a writer remembers for the oracle.
type ledger struct {
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
	name   string
	dice   *rand.Rand
	native *rand.Rand // draws the transactions that are of pgx
	knobs  Knobs
	on     *Database
	net    *network.Network
	db     *sql.DB
	tally  *stage.Tally
	output *output
	async  bool // it does not wait for its commits to be safe

	history *history.History
	begun   int // transactions

	loud, quiet *postgres.Store // with and without a notification
	operations  []operation
	versions    map[aggregate]int64 // as this writer last saw them
	born        int                 // new aggregates
	prepared    []preparedTx
	news        news
	next        *aggregate // to be appended to without a pause
	ledger      ledger
}

type aggregate struct{ kind, id string }

// attempt is a transaction under way.
type attempt struct {
	number int           // among the writer's
	life   int64         // of the server, when it began
	counts history.Fault // what it is counted as, beside a transaction; empty: nothing
	conn   *sql.Conn
	tx     either.Tx
	store  *postgres.Store
	drawn  []history.Event // to be committed
	given  []history.Event // given up by a savepoint
	xid    string          // as the server knows it
	sent   bool            // its COMMIT
	lost   bool            // the answer to the COMMIT
	late   bool            // others may have passed its events
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

// keep records that a transaction was committed. The next one may append to its aggregate at once.
func (w *writer) keep(a *attempt) {
	w.record(history.Committed, a, nil)
	async := w.async && a.counts != transactionsPrepared // those are always safe
	if async {
		w.tally.Add(stage.AsyncCommits, 1)
	}
	w.ledger.committed = append(w.ledger.committed, done{a.life, w.on.Life(), async, a.drawn})
	w.ledger.abandoned = append(w.ledger.abandoned, a.given...)
	for _, e := range a.drawn {
		w.versions[aggregate{e.Type, e.ID}] = e.Version
	}
	w.tally.Add(transactionsCommitted, 1)
	w.output.committed(a.drawn)
	w.news.tell(a.drawn[len(a.drawn)-1], a.late)
	if w.dice.IntN(2) == 0 {
		w.next = &aggregate{a.drawn[0].Type, a.drawn[0].ID}
	}
}

// abandon records that a transaction was rolled back, and why if that was
// not the writer's decision.
func (w *writer) abandon(a *attempt, why error) {
	w.record(history.RolledBack, a, why)
	w.ledger.abandoned = append(w.ledger.abandoned, a.given...)
	w.ledger.abandoned = append(w.ledger.abandoned, a.drawn...)
	for _, e := range a.drawn {
		delete(w.versions, aggregate{e.Type, e.ID})
	}
}

// record adds a record of the transaction to the history.
func (w *writer) record(kind history.Kind, a *attempt, err error) {
	w.history.Add(w.name, "", kind, history.Transaction{
		Tx: a.number, Positions: history.Spans(history.PositionsOf(a.drawn)), Abandoned: history.Spans(history.PositionsOf(a.given)),
		Fault: a.counts, Native: either.Native(a.tx), Unanswered: a.lost, Error: history.TextOf(err),
	})
}

// look records the consumers' positions while the transaction that owns the attempt's events cannot
// have been committed.
func (w *writer) look(ctx context.Context, a *attempt) error {
	standings, err := w.on.Standings(ctx)
	if err == nil && w.on.Mortal {
		err = a.tx.Exec(ctx, `SELECT 1`) // it was open all the time, if it still is
	}
	if err == nil {
		w.sight(a.drawn, standings)
	}
	return err
}

func (w *writer) sight(drawn []history.Event, standings []history.Standing) {
	w.ledger.sightings = append(w.ledger.sightings, history.Sighting{Positions: history.PositionsOf(drawn), Standings: standings})
}

// news has the events that were just committed, for the readers. Events for which the readers have
// no time are dropped. Events that others may have passed come first.
type news struct{ late, other chan history.Event }

func newNews() news { return news{make(chan history.Event, 8), make(chan history.Event, 8)} }

// tell passes on an event that others may have passed (late), or another.
func (n news) tell(e history.Event, late bool) {
	to := n.other
	if late {
		to = n.late
	}
	select {
	case to <- e:
	default:
	}
}

// next waits for an event. It returns false if ctx ends first.
func (n news) next(ctx context.Context) (e history.Event, ok bool) {
	select {
	case e = <-n.late:
		return e, true
	default:
	}
	select {
	case e = <-n.late:
	case e = <-n.other:
	case <-ctx.Done():
		return e, false
	}
	return e, true
}

const (
	transactionsPrepared history.Fault = "transactions prepared"
	preparedRolledBack   history.Fault = "prepared transactions rolled back"
)

// operation is one way to use a transaction, and how often a writer chooses it. run appends. ending
// is how the transaction ends.
type operation struct {
	weight float64
	ending ending
	late   bool // others may pass its events
	run    func(*writer, context.Context, context.Context, *attempt) error
	counts history.Fault // that a row of writerFaults is counted as, or severalAggregates; empty: nothing
}

type ending int

const (
	commit ending = iota
	rollback
	toss // either
	prepare
	lose // the answer to the commit
)

// uuid is a random UUID of the seed.
func (w *writer) uuid() uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], w.dice.Uint64())
	binary.BigEndian.PutUint64(id[8:], w.dice.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id
}

// wait draws how long a transaction stays open: mostly short, up to LongestTx.
func (w *writer) wait() time.Duration {
	const shortest = 50 * time.Millisecond
	u := w.dice.Float64()
	return shortest + time.Duration(u*u*float64(w.knobs.LongestTx-shortest))
}

// What a run of events counts beside faults.
const (
	transactionsCommitted history.Fault = "transactions committed"
	severalAggregates     history.Fault = "transactions over several aggregates"
)

// output is what writers have committed.
type output struct {
	mu     sync.Mutex
	events map[string]int64 // by aggregate type
}

func (o *output) committed(events []history.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.events == nil {
		o.events = map[string]int64{}
	}
	for _, e := range events {
		o.events[e.Type]++
	}
}

// wanted counts the committed events that a consumer wants.
func (o *output) wanted(by history.Scope) (n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for aggregateType, events := range o.events {
		if by.Wants(aggregateType) {
			n += events
		}
	}
	return n
}
