package consume

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// door is a proxy to a server that refuses connections while it is closed.
type door struct {
	driver.Connector
	closed atomic.Bool
	turned atomic.Int32 // number of refused connections
}

func (g *door) Connect(ctx context.Context) (driver.Conn, error) {
	if g.closed.Load() {
		g.turned.Add(1)
		return nil, errors.New("the door is closed")
	}
	return g.Connector.Connect(ctx)
}

// committedUnseen makes a batch that its handler has committed in the database, and that
// has failed for the worker.
func committedUnseen(t *testing.T) (h *stepper, d *pgtest.Database, g *door) {
	t.Helper()
	d = pgtest.New(t)
	d.Exec(t, createLedger)
	connector, err := stdlib.GetDefaultDriver().(driver.DriverContext).OpenConnector(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	g = &door{Connector: connector}
	db := sql.OpenDB(g)
	t.Cleanup(func() { _ = db.Close() })
	h = newStepper(t, db, storepostgres.NewStore(nil), steppedConsumer{"all", nil, new(atomic.Bool)})
	h.loop.stop = t.Context()
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.handle(t)
	b := h.loop.check.Last
	b.End, b.Intact, b.Err = txcheck.Abandoned, false, driver.ErrBadConn
	return h, d, g
}

func (h *stepper) position(t *testing.T, d *pgtest.Database) int64 {
	t.Helper()
	p, err := h.checkpoints.Load(t.Context(), d.DB, "all")
	if err != nil {
		t.Fatal(err)
	}
	return p.Position
}

// An outcome lookup has a connection of its own, even while handlers hold every connection
// of the loops.
func TestOutcomeLookupDoesNotWaitForHandlers(t *testing.T) {
	h, d, _ := committedUnseen(t)
	h.loopConns, h.lookupConns = make(budget, 1), make(budget, 1)
	h.loopConns <- struct{}{}
	if err := h.loop.check.Close(t.Context(), nil); !errors.Is(err, ErrTransactionEnded) || h.position(t, d) != 0 {
		t.Errorf("the loop ended with %v, the checkpoint is at %d", err, h.position(t, d))
	}
	if n := len(h.lookupConns); n != 0 {
		t.Errorf("%d inquiries are still counted", n)
	}
}

// An outcome lookup after a failed batch returns its connection: one connection serves all
// loops.
func TestOutcomeLookupReturnsConnection(t *testing.T) {
	h, _, _ := committedUnseen(t)
	h.lookupConns = make(budget, 1)
	inUse := h.db.Stats().InUse
	if !h.loop.check.Mismatch(t.Context(), driver.ErrBadConn) {
		t.Error("the row does not tell that the handler has committed")
	}
	if n := len(h.lookupConns); n != 0 || h.db.Stats().InUse != inUse {
		t.Errorf("%d lookups are still counted, %d connections are in use, %d were before", n, h.db.Stats().InUse, inUse)
	}
}

// A repair whose answer was lost is neither repeated nor unknown.
func TestRepairAfterLostAnswer(t *testing.T) {
	h, d, _ := committedUnseen(t)
	if ok, err := h.checkpoints.Repair(t.Context(), d.DB, "all", h.loop.check.Last.Left(), h.loop.check.Last.Undo.Repair(0)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	err := h.loop.check.Close(t.Context(), nil)
	if !errors.Is(err, ErrTransactionEnded) || !strings.Contains(err.Error(), "is set back from 1 to 0") {
		t.Errorf("the loop ended with %v", err)
	}
	var repairs int
	if err := d.DB.QueryRow(`SELECT count(*) FROM consumer_operations`).Scan(&repairs); err != nil || repairs != 1 {
		t.Errorf("%d repairs, %v", repairs, err)
	}
}

// Only the loop whose consumer goes to another worker knows its last batch. It keeps asking
// while the database is away, longer than a stop may take.
func TestOutcomeLookupOutlastsReassignment(t *testing.T) {
	t.Parallel()
	h, d, g := committedUnseen(t)
	last := h.loop.check.Last
	h.limits.leave = time.Second
	h.loop.check = txcheck.New(checkedUnit(h.loop))
	h.loop.check.Last = last
	g.closed.Store(true)
	h.db.SetMaxIdleConns(-1)
	closing, began := make(chan error, 1), time.Now()
	go func() { closing <- h.loop.check.Close(context.Background(), nil) }()
	await(t, "the outage to last longer than a stop", func() bool { return time.Since(began) > h.limits.leave+time.Second })
	g.closed.Store(false)
	if err := <-closing; !errors.Is(err, ErrTransactionEnded) || h.position(t, d) != 0 {
		t.Errorf("the loop ended with %v, the checkpoint is at %d", err, h.position(t, d))
	}
	if n := g.turned.Load(); n > 50 {
		t.Errorf("it asked %d times", n)
	}
}

// The transaction's status shows the outcome of a batch, even after others have moved the
// consumer.
func TestTransactionVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		commit, seen bool
		want         string // of the error; empty: none
	}{
		"committed":                  {true, false, "the batch was committed, and the consumer was moved since"},
		"committed, and seen":        {true, true, "the batch was committed, and the consumer was moved since"},
		"rolled back":                {false, false, ""},
		"rolled back by its handler": {false, true, "the batch was rolled back"},
	} {
		t.Run(name, func(t *testing.T) {
			g := progresstest.New(t)
			from, tx := g.Loaded(t), g.Begin(t)
			a := progress.Advance{To: 20, Token: g.Token}
			moved, ok, err := g.Guard(t.Context(), tx, "c", from, a)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if c.commit {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				t.Fatal(err)
			}
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
			check := txcheck.New(txcheck.Unit{
				Name: "c", Checkpoints: &g.Checkpoints, Plans: pgdriver.NewPool(g.DB).Plans, Leave: pgtest.Patience,
				Connect: func(ctx context.Context) (*sql.Conn, func(bool), error) {
					conn, err := g.DB.Conn(ctx)
					return conn, func(bool) { _ = conn.Close() }, err
				},
				Load:        func(ctx context.Context, q store.Querier) (*progress.State, error) { return g.Load(ctx, q, "c") },
				Incarnation: func() string { return g.Token },
				Back:        func() <-chan struct{} { return nil },
				Stop:        t.Context,
				Explain:     func(err error) error { return err },
				Ended:       func(f txcheck.Fatal) error { return f.Err },
			})
			check.Last = &txcheck.Batch{Work: txcheck.Work{Before: from.Version, To: a.To, Token: a.Token}, After: moved.Version, Transaction: moved.Transaction, Seen: c.seen}
			if err := check.Close(t.Context(), nil); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the batch ended with %v, want %q", err, c.want)
			}
		})
	}
}
