package e2e

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// cutter breaks a connection on either side of a COMMIT: before the server
// gets it, or after it got it and before the answer comes back.
type cutter struct {
	statement     string       // to cut at in place of a COMMIT; sent in one go with its values
	before, after atomic.Int32 // how often still
}

func (c *cutter) open(t *testing.T, d *pgtest.Database) *sql.DB {
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &cutConn{Conn: conn, c: c}, err
	}
	if c.statement != "" {
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { db.Close() })
	return db
}

// cutsAt reports whether b is what to cut at.
func (c *cutter) cutsAt(b []byte) bool {
	return bytes.Contains(b, []byte(cmp.Or(c.statement, "commit\x00")))
}

type cutConn struct {
	net.Conn
	c    *cutter
	fate fate   // of the next COMMIT; nil: as the cutter says
	held []byte // a COMMIT that is still under way
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.held != nil {
		return len(b), nil // the goodbye
	}
	if !c.c.cutsAt(b) {
		return c.Conn.Write(b)
	}
	switch {
	case c.fate != nil:
		return c.fate(c, b)
	case c.c.before.Add(-1) >= 0:
		return neverArrives(c, b)
	case c.c.after.Add(-1) >= 0:
		return losesItsAnswer(c, b)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.held != nil {
		return 0, net.ErrClosed
	}
	return c.Conn.Read(b)
}

// Close lets a COMMIT that is under way go on.
func (c *cutConn) Close() error {
	if c.held != nil {
		return nil
	}
	return c.Conn.Close()
}

// fate is what becomes of a COMMIT.
type fate func(c *cutConn, commit []byte) (int, error)

func neverArrives(c *cutConn, _ []byte) (int, error) {
	c.Close()
	return 0, net.ErrClosed
}

func losesItsAnswer(c *cutConn, commit []byte) (int, error) {
	n, err := c.Conn.Write(commit)
	// Wait for the answer, so that the COMMIT has happened, and drop it.
	_, _ = c.Conn.Read(make([]byte, 1))
	c.Close()
	return n, err
}

func TestCommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, arm := range map[string]func(*cutter){
		"never reached the server":         func(c *cutter) { c.before.Store(2) },
		"happened, but the answer is lost": func(c *cutter) { c.after.Store(2) },
		"both":                             func(c *cutter) { c.before.Store(1); c.after.Store(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 40)
			var c cutter
			arm(&c)
			w := start(t, c.open(t, d), []consumer.Consumer{&ledger{name: "all"}})
			awaitHandled(t, d.DB, "all", upTo(40)...)
			appendN(t, d.DB, "Order", "1", 10)
			awaitHandled(t, d.DB, "all", upTo(50)...)
			if c.before.Load() > 0 || c.after.Load() > 0 {
				t.Fatal("no COMMIT was cut")
			}
			noFailures(t, w, 50)
		})
	}
}

// The batch that delivers a late event leaves the position where it was, also
// when it commits: here too it is not the position that tells whether it did.
func TestCommitOfUnknownOutcomeOfALateDelivery(t *testing.T) {
	t.Parallel()
	underWay := make(chan *cutConn, 1)
	arrivesLater := func(c *cutConn, commit []byte) (int, error) {
		c.held = bytes.Clone(commit)
		underWay <- c
		return 0, net.ErrClosed
	}
	for name, test := range map[string]struct {
		fates []fate // of the batches in turn
		calls int32  // of the handler, with the late event
		held  chan *cutConn
	}{
		"never reached the server":              {[]fate{neverArrives, neverArrives}, 3, nil},
		"happened, but the answer is lost":      {[]fate{losesItsAnswer}, 1, nil},
		"both":                                  {[]fate{neverArrives, losesItsAnswer}, 2, nil},
		"happens when the next batch has begun": {[]fate{arrivesLater}, 1, underWay},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			late := beginAppend(t, d.DB, "Order", "late", 1) // 1
			appendN(t, d.DB, "Order", "other", 1)            // 2
			var calls atomic.Int32
			all := &ledger{name: "all", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
				if info, _ := consumer.Info(ctx); info.Late {
					if n := int(calls.Add(1)); n <= len(test.fates) {
						return decide(ctx, test.fates[n-1])
					}
				}
				return nil
			}}
			var c cutter
			w := start(t, c.open(t, d), []consumer.Consumer{all}, worker.WithStaleGapThreshold(stale))
			awaitHandled(t, d.DB, "all", 2)
			if err := late.Commit(); err != nil {
				t.Fatal(err)
			}
			if test.held != nil {
				c := <-test.held
				await(t, "the next batch to wait for the one that is not committed yet", func() bool { return waiting(t, d.DB) > 0 })
				c.arrive(t)
			}
			awaitHandled(t, d.DB, "all", 2, 1)
			appendN(t, d.DB, "Order", "other", 1) // 3
			awaitHandled(t, d.DB, "all", 2, 1, 3)
			if n := calls.Load(); n != test.calls {
				t.Errorf("the handler was given the late event %d times, want %d", n, test.calls)
			}
			if open, late := audit(t, d.DB, "open")["all"], audit(t, d.DB, "late")["all"]; open != 0 || late != 1 {
				t.Errorf("%d positions are audited as open and %d as late, want 0 and 1", open, late)
			}
			noFailures(t, w, 3)
		})
	}
}

// noFailures demands that none is counted against the handler when the worker has the answer of
// the batch that ends at a position.
func noFailures(t *testing.T, w *running, position int64) {
	t.Helper()
	s := func() observe.ConsumerStatus { return w.Status().Consumers[0] }
	await(t, "the answer of the last COMMIT", func() bool { return s().Position == position })
	if n := s().Failures; n != 0 {
		t.Errorf("%d failures were counted against the handler", n)
	}
}

// decide decides the fate of the batch in which a handler is called.
func decide(ctx context.Context, f fate) error {
	conn, _ := consumer.Conn(ctx)
	return conn.Raw(func(driverConn any) error {
		driverConn.(*stdlib.Conn).Conn().PgConn().Conn().(*cutConn).fate = f
		return nil
	})
}

// arrive lets a COMMIT that is under way reach the server.
func (c *cutConn) arrive(t *testing.T) {
	t.Helper()
	if _, err := c.Conn.Write(c.held); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Conn.Read(make([]byte, 1)) // when the answer comes, it has happened
	c.Conn.Close()
}

// waiting counts those who wait for a lock.
func waiting(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT count(*) FROM pg_locks WHERE ` + pgtest.Here + ` AND NOT granted`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
