package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

var errBoom = errors.New("boom")

// endings are the ways in which a handler may end its transaction, with the expected errors.
var endings = map[string]struct {
	statements []string
	method     func(tx *sql.Tx) error
	says       string
}{
	"tx.Commit":                       {method: (*sql.Tx).Commit, says: ": it was committed"},
	"tx.Rollback":                     {method: (*sql.Tx).Rollback, says: ": it was rolled back"},
	"COMMIT":                          {statements: []string{`COMMIT`}, says: ": it was committed"},
	"ROLLBACK":                        {statements: []string{`ROLLBACK`}, says: ": it was rolled back"},
	"COMMIT AND CHAIN":                {statements: []string{`COMMIT AND CHAIN`}, says: ": it was committed, and another was begun"},
	"ROLLBACK AND CHAIN":              {statements: []string{`ROLLBACK AND CHAIN`}, says: ": it was rolled back, and another was begun"},
	"COMMIT, BEGIN":                   {statements: []string{`COMMIT`, `BEGIN`}, says: ": it was committed, and another was begun"},
	"commits, then fails a statement": {statements: []string{`COMMIT AND CHAIN`, `SELECT 1/0`}, says: ": it was committed"},
}

// ender ends the transaction of the event of aggregate "end".
func ender(name string, sequel func() error) *counter {
	e := endings[name]
	return &counter{name: "c", before: func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
		if event.AggregateID != "end" {
			return nil
		}
		if e.method != nil {
			if err := e.method(tx); err != nil {
				return err
			}
		}
		for _, s := range e.statements {
			_, _ = tx.ExecContext(ctx, s)
		}
		return sequel()
	}}
}

var sequels = map[string]func() error{
	"returns nil":      func() error { return errSwallowed },
	"returns an error": func() error { return errBoom },
	"panics":           func() error { panic(errBoom) },
}

// forEachEnding runs a test for the named ways of ending a transaction, with every later
// behaviour of the handler and both drivers.
func forEachEnding(t *testing.T, names []string, test func(t *testing.T, d *pgtest.Database, db *sql.DB, c consumer.Consumer) error) {
	for _, how := range names {
		e := endings[how]
		for then, sequel := range sequels {
			t.Run(how+", "+then, func(t *testing.T) {
				for driver, open := range map[string]func(d *pgtest.Database) *sql.DB{
					"pgx":    func(d *pgtest.Database) *sql.DB { return d.DB },
					"lib/pq": func(d *pgtest.Database) *sql.DB { return d.OpenPQ(t) },
				} {
					d := newDatabase(t)
					err := test(t, d, open(d), swallowing{ender(how, sequel)})
					if !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), e.says) || !strings.Contains(err.Error(), "position 2") {
						t.Errorf("%s: got %v\nwant ErrTransactionEnded at position 2, and %q", driver, err, e.says)
					}
					if then != "returns nil" && !errors.Is(err, errBoom) {
						t.Errorf("%s: %v does not wrap what the handler said", driver, err)
					}
				}
			})
		}
	}
}

func TestHandleReportsEndedTransaction(t *testing.T) {
	t.Parallel()
	forEachEnding(t, slices.Collect(maps.Keys(endings)), func(t *testing.T, d *pgtest.Database, db *sql.DB, c consumer.Consumer) error {
		db.SetMaxOpenConns(1) // Handle needs no second connection
		return workertest.Handle(t.Context(), db, c, []store.Event{event("Order", "a"), event("Order", "end"), event("Order", "b")}, nil)
	})
}

func TestCatchUpReportsEndedTransaction(t *testing.T) {
	t.Parallel()
	forEachEnding(t, []string{"COMMIT AND CHAIN", "ROLLBACK AND CHAIN"}, func(t *testing.T, d *pgtest.Database, db *sql.DB, c consumer.Consumer) error {
		for _, id := range []string{"a", "end", "b"} {
			appendEvents(t, d.DB, event("Order", id))
		}
		return catchUp(t, db, []consumer.Consumer{c})
	})
}

// The calls of a batch consumer are checked, and remain calls of HandleBatch.
func TestCatchUpChecksABatchConsumer(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, e := range []store.Event{event("User", "u"), event("Order", "a"), event("Order", "b")} {
		appendEvents(t, d.DB, e)
	}
	c := &bulk{counter: &counter{name: "c", types: []string{"Order"}}}
	if err := catchUp(t, d.DB, []consumer.Consumer{c}); err != nil || c.calls == 0 || counts(t, d.DB) != "c a 1, c b 1" {
		t.Fatalf("%v after %d calls, counted %s", err, c.calls, counts(t, d.DB))
	}
	c.before = func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `COMMIT AND CHAIN`)
		return err
	}
	appendEvents(t, d.DB, event("Order", "a"))
	if err := catchUp(t, d.OpenPQ(t), []consumer.Consumer{c}); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Errorf("a commit: %v", err)
	}
}
