package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// An ending is a way in which a handler may end its transaction.
type ending struct {
	end     func(ctx context.Context, tx *sql.Tx) error
	commits bool
	shows   bool // with any driver
	chains  bool // another transaction follows
}

func statements(all ...string) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range all {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
}

var endings = map[string]ending{
	"tx.Commit":          {end: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, commits: true, shows: true},
	"tx.Rollback":        {end: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }, shows: true},
	"COMMIT":             {end: statements(`COMMIT`), commits: true},
	"ROLLBACK":           {end: statements(`ROLLBACK`)},
	"COMMIT AND CHAIN":   {end: statements(`COMMIT AND CHAIN`), commits: true, chains: true},
	"ROLLBACK AND CHAIN": {end: statements(`ROLLBACK AND CHAIN`), chains: true},
	"COMMIT, BEGIN":      {end: statements(`COMMIT`, `BEGIN`), commits: true, chains: true},
	"ROLLBACK, BEGIN":    {end: statements(`ROLLBACK`, `BEGIN`), chains: true},
}

// sequels are what a handler does afterwards. They return whether it writes.
var sequels = map[string]func() error{
	"returns nil":      func() error { return errNotWritten },
	"returns an error": func() error { return errRefused },
	"panics":           func() error { panic(errRefused) },
}

// ender is a ledger whose handler writes event 3 down and then ends the
// transaction.
func ender(e ending, sequel func() error) *ledger {
	return &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
		if event.GlobalPosition != 3 {
			return nil
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ('c', 3)`); err != nil {
			return err
		}
		if err := e.end(ctx, tx); err != nil {
			return err
		}
		return sequel()
	}}
}

// reportsMarks reports whether the driver and the server show the end of a
// transaction that another follows at once.
func reportsMarks(t *testing.T, driver string, d *pgtest.Database) bool {
	t.Helper()
	var version int
	if err := d.DB.QueryRow(`SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	return driver == "pgx" && version >= 140000
}

// Whatever a handler does to its transaction: after a restart with a mended
// one, no event is missing, and the error has said what may be applied twice.
func TestHandlerThatEndsItsTransaction(t *testing.T) {
	for how, e := range endings {
		for then, sequel := range sequels {
			for _, driver := range []string{"pgx", "lib/pq"} {
				t.Run(driver+" "+how+", "+then, func(t *testing.T) {
					d := newLog(t)
					db := d.DB
					if driver == "lib/pq" {
						db = d.OpenPQ(t)
					}
					appendN(t, d.DB, "Order", "1", 6)
					w := start(t, db, []consumer.Consumer{ender(e, sequel)}, worker.WithMaxConsecutiveFailures(1))
					shown := e.shows || reportsMarks(t, driver, d) || driver == "pgx" && !e.chains
					failed := then != "returns nil"
					var want expectation
					switch {
					case shown && e.commits:
						want = expectation{checkpoint: 2, position: 3, says: "committed at position 3, and the checkpoint is set back from 6 to 2: nothing is lost, but the event at position 3 may be applied twice"}
					case shown:
						want = expectation{position: 3, says: "rolled back at position 3, and the checkpoint stays at 0: nothing is lost"}
					case e.commits && (failed || !e.chains):
						want = expectation{says: "set back from 6 to 0: nothing is lost, but the 6 events from position 1 to 6 may be applied twice"}
					case e.commits: // and all went well: it is not seen, and nothing is lost
						await(t, "all to be handled", func() bool { return checkpoint(t, d.DB, "c") == 6 })
						return
					case failed: // and nothing has happened
						if err := w.result(t); !errors.Is(err, worker.ErrConsecutiveFailures) || checkpoint(t, d.DB, "c") != 0 {
							t.Fatalf("Start returned %v, the checkpoint is at %d", err, checkpoint(t, d.DB, "c"))
						}
						expectRest(t, d, 0)
						return
					case e.chains:
						await(t, "the rest to be committed without the checkpoint", func() bool { return len(handled(t, d.DB, "c")) > 0 })
						appendN(t, d.DB, "Order", "1", 1) // the next batch finds the checkpoint where it was
						want = expectation{says: "followed by another transaction, which was committed: the checkpoint stays at 0 and nothing is lost, but events up to position 6 may be applied twice"}
					default:
						want = expectation{says: "rolled back, and the checkpoint stays at 0: nothing is lost"}
					}
					want.check(t, d, w.result(t))
					expectRest(t, d, want.checkpoint)
				})
			}
		}
	}
}

// expectation is what a handler's breach leads to.
type expectation struct {
	checkpoint int64
	position   int64 // of the error
	says       string
}

func (x expectation) check(t *testing.T, d *pgtest.Database, err error) {
	t.Helper()
	var ce *worker.ConsumerError
	if !errors.Is(err, worker.ErrTransactionEnded) || !errors.As(err, &ce) || ce.Position != x.position || !strings.Contains(err.Error(), x.says) {
		t.Errorf("Start returned %v\nwant ErrTransactionEnded at position %d, and %q", err, x.position, x.says)
	}
	if at := checkpoint(t, d.DB, "c"); at != x.checkpoint {
		t.Errorf("the checkpoint is at %d, want %d", at, x.checkpoint)
	}
	expectNoTrace(t, d)
}

// expectNoTrace checks that the audit fits the checkpoint.
func expectNoTrace(t *testing.T, d *pgtest.Database) {
	t.Helper()
	var above, void int
	if err := d.DB.QueryRow(`
SELECT count(*) FILTER (WHERE s.state = 'open' AND s.gap_end > c.last_position),
	count(*) FILTER (WHERE s.state = 'void' AND s.missing = s.gap_end - s.gap_position + 1 AND EXISTS (
		SELECT FROM events AS e WHERE e.global_position BETWEEN s.gap_position AND s.gap_end))
FROM consumer_gap_skips AS s JOIN consumer_checkpoints AS c USING (consumer_name)`).Scan(&above, &void); err != nil {
		t.Fatal(err)
	}
	if above > 0 || void > 0 {
		t.Errorf("%d ranges are open above the checkpoint, %d are void and have events", above, void)
	}
}

// expectRest starts a worker with a mended handler and checks that all events
// are handled then, those up to through once.
func expectRest(t *testing.T, d *pgtest.Database, through int64, opts ...worker.Option) {
	t.Helper()
	appendN(t, d.DB, "Order", "1", 1)
	var head int64
	if err := d.DB.QueryRow(`SELECT max(global_position) FROM events`).Scan(&head); err != nil {
		t.Fatal(err)
	}
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, opts...)
	await(t, "the rest to be handled", func() bool {
		return checkpoint(t, d.DB, "c") == head && len(audit(t, d.DB, "open")) == 0
	})
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	got := handled(t, d.DB, "c")
	for _, p := range positions(t, d.DB) {
		n := 0
		for _, g := range got {
			if g == p {
				n++
			}
		}
		if n == 0 || p <= through && n != 1 {
			t.Errorf("event %d was handled %d times: %v", p, n, got)
		}
	}
	expectNoTrace(t, d)
}

// The batch fails behind a commit that is not seen. The worker ends for that
// failure, and yet does not leave the checkpoint where it is.
func TestHandlerThatEndsItsTransactionAndFailsLater(t *testing.T) {
	for then, fail := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"a later event fails":    func(context.Context, *sql.Tx) error { return errRefused },
		"its own COMMIT refused": statements(`INSERT INTO child VALUES (1)`),
	} {
		for how, e := range endings {
			if !e.chains {
				continue
			}
			t.Run(how+", "+then, func(t *testing.T) {
				d := newLog(t)
				d.Exec(t, `CREATE TABLE parent (id INT PRIMARY KEY)`)
				d.Exec(t, `CREATE TABLE child (id INT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
				appendN(t, d.DB, "Order", "1", 6)
				c := ender(e, func() error { return errNotWritten })
				ends := c.before
				c.before = func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
					if event.GlobalPosition == 5 {
						return fail(ctx, tx)
					}
					return ends(ctx, tx, event)
				}
				err := start(t, d.OpenPQ(t), []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1)).result(t)
				if e.commits {
					expectation{says: "set back from 6 to 0"}.check(t, d, err)
				} else if !errors.Is(err, worker.ErrConsecutiveFailures) && !errors.Is(err, worker.ErrTransactionEnded) {
					t.Errorf("Start returned %v", err)
				}
				expectRest(t, d, 0)
			})
		}
	}
}

// A handler that never returns, since it ends its goroutine, has its commit
// undone all the same.
func TestHandlerThatCommitsAndCallsGoexit(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	err := start(t, d.DB, []consumer.Consumer{ender(endings["tx.Commit"], func() error { runtime.Goexit(); return nil })}).result(t)
	if err == nil || checkpoint(t, d.DB, "c") != 0 {
		t.Errorf("Start returned %v, the checkpoint is at %d", err, checkpoint(t, d.DB, "c"))
	}
	expectRest(t, d, 0)
}

// A connection that is lost in a handler is no end of the transaction by it.
func TestHandlerThatLosesItsConnection(t *testing.T) {
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := d.DB
			if driver == "lib/pq" {
				db = d.OpenPQ(t)
			}
			appendN(t, d.DB, "Order", "1", 6)
			var lost atomic.Bool
			start(t, db, []consumer.Consumer{&ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition == 3 && lost.CompareAndSwap(false, true) {
					return statements(`SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx)
				}
				return nil
			}}})
			awaitHandled(t, d.DB, "c", upTo(6)...)
		})
	}
}

// A handler's commit is found also where its connection dies with it.
func TestHandlerThatCommitsAndLosesItsConnection(t *testing.T) {
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := d.DB
			want := expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}
			if driver == "lib/pq" {
				db = d.OpenPQ(t)
			}
			if !reportsMarks(t, driver, d) {
				want = expectation{says: "set back from 6 to 0"}
			}
			appendN(t, d.DB, "Order", "1", 6)
			c := ender(endings["COMMIT AND CHAIN"], nil)
			c.before = func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
				if event.GlobalPosition != 3 {
					return nil
				}
				return statements(`INSERT INTO ledger (consumer, position) VALUES ('c', 3)`, `COMMIT AND CHAIN`, `SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx)
			}
			want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
			expectRest(t, d, want.checkpoint)
		})
	}
}

// Late events that were not handled, or not known to be, are late again.
func TestLateEventsOfAHandlerThatCommits(t *testing.T) {
	for at, want := range map[int64]expectation{
		3: {checkpoint: 6, position: 3, says: "6: nothing is lost"},
		4: {checkpoint: 6, position: 4, says: "6: nothing is lost"},
		7: {checkpoint: 6, position: 7, says: "6: nothing is lost"},
		0: {checkpoint: 6, says: "6: nothing is lost"}, // not shown
	} {
		t.Run(fmt.Sprint("at position ", at), func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 2)
			late := beginAppend(t, d.DB, "Order", "late", 2)
			appendN(t, d.DB, "Order", "1", 2)
			opts := []worker.Option{worker.WithStaleGapThreshold(stale)}
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, opts...)
			awaitHandled(t, d.DB, "c", 1, 2, 5, 6)
			w.Stop()
			if err := w.result(t); err != nil {
				t.Fatal(err)
			}
			if err := late.Commit(); err != nil {
				t.Fatal(err)
			}
			appendN(t, d.DB, "Order", "1", 1) // 7
			db, end := d.DB, endings["tx.Commit"].end
			if at == 0 {
				db, end = d.OpenPQ(t), endings["COMMIT"].end
			}
			c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition == at || at == 0 && e.GlobalPosition == 4 {
					return end(ctx, tx)
				}
				return nil
			}}
			want.check(t, d, start(t, db, []consumer.Consumer{c}, opts...).result(t))
			through := want.checkpoint
			if at < 7 {
				through = max(at-1, 2)
			}
			expectRest(t, d, through, opts...)
			if n := audit(t, d.DB, "late")["c"]; n != 2 {
				t.Errorf("%d positions are audited as late, want 2", n)
			}
		})
	}
}

// What a batch did to the dead letters is undone with it: one that it tried
// again is back, one that it added is not there.
func TestDeadLettersOfAHandlerThatCommits(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "a", 1) // 1, fails
	appendN(t, d.DB, "Order", "b", 1) // 2
	opts := []worker.Option{worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1)}
	refusing := &ledger{name: "c", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 1 {
			return errRefused
		}
		return nil
	}}
	w := start(t, d.DB, []consumer.Consumer{refusing}, opts...)
	awaitHandled(t, d.DB, "c", 2)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	o := operator(t, d)
	letters := func() (positions []int64) {
		t.Helper()
		all, err := o.DeadLetters(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			positions = append(positions, l.Position)
		}
		return positions
	}

	appendN(t, d.DB, "Order", "b", 1) // 3, at fault
	appendN(t, d.DB, "Order", "a", 1) // 4, follows 1 into the dead letters
	endsAt := func(at int64) *ledger {
		return &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if e.GlobalPosition == at {
				return tx.Commit()
			}
			return nil
		}}
	}
	err := start(t, d.DB, []consumer.Consumer{endsAt(3)}, opts...).result(t)
	expectation{checkpoint: 2, position: 3, says: "set back from 4 to 2"}.check(t, d, err)
	if got := letters(); !slices.Equal(got, []int64{1}) {
		t.Errorf("the dead letters are %v, want that of event 1 only", got)
	}

	if err := o.RetryDeadLetters(t.Context(), "c", 1, ops.By{Operator: "ann", Reason: "mended"}); err != nil {
		t.Fatal(err)
	}
	err = start(t, d.DB, []consumer.Consumer{endsAt(1)}, opts...).result(t)
	if !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), "the dead letter at position 1, which is back, may be applied twice") {
		t.Errorf("Start returned %v", err)
	}
	if got := letters(); len(got) == 0 || got[0] != 1 {
		t.Errorf("the dead letters are %v, want that of event 1 among them", got)
	}
	expectRest(t, d, 0, opts...)
	await(t, "the dead letters to be handled", func() bool { return len(letters()) == 0 })
}

// A batch consumer's call is at fault as a whole.
func TestBatchConsumerThatCommits(t *testing.T) {
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := d.DB
			if driver == "lib/pq" {
				db = d.OpenPQ(t)
			}
			appendN(t, d.DB, "Order", "1", 6)
			c := &bulkEnder{bulkLedger{name: "c"}}
			want := expectation{says: "set back from 6 to 0: nothing is lost, but the 6 events from position 1 to 6 may be applied twice"}
			want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
			expectRest(t, d, 0)
		})
	}
}

type bulkEnder struct{ bulkLedger }

func (b *bulkEnder) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if err := b.bulkLedger.HandleBatch(ctx, tx, events[:3]); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `COMMIT`)
	return err
}

// RESET ALL takes away the mark by which the end of a transaction shows, and is
// no handler's fault.
func TestHandlerMayResetAllSettings(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		return statements(`RESET ALL`, `SAVEPOINT s`, `ROLLBACK TO s`)(ctx, tx)
	}}
	start(t, d.DB, []consumer.Consumer{c})
	awaitHandled(t, d.DB, "c", upTo(3)...)
}

// A repair is in the table of operations, with who, what and why.
func TestOperatorSeesARepair(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	w := start(t, d.DB, []consumer.Consumer{ender(endings["tx.Commit"], sequels["returns nil"])})
	if err := w.result(t); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Fatal(err)
	}
	all, err := operator(t, d).Operations(t.Context(), "c", 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if op := all[0]; op.Kind != ops.KindRepair || !strings.HasPrefix(op.By.Operator, "worker ") || !strings.Contains(op.By.Reason, "position 3") ||
		!strings.Contains(string(op.Detail), `"from": 6`) || !strings.Contains(string(op.Detail), `"to": 2`) {
		t.Errorf("the operation is %+v with %s", op, op.Detail)
	}
}

// A middleware that ends its goroutine after the batch was committed does not
// make that commit the handler's.
func TestMiddlewareThatCallsGoexitAfterTheCommit(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	exits := worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		return func(ctx context.Context, b worker.Batch) error {
			defer runtime.Goexit()
			return next(ctx, b)
		}
	})
	err := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, exits).result(t)
	if err == nil || errors.Is(err, worker.ErrTransactionEnded) || checkpoint(t, d.DB, "c") != 6 {
		t.Errorf("Start returned %v, the checkpoint is at %d", err, checkpoint(t, d.DB, "c"))
	}
	expectRest(t, d, 6)
}

// The session ends behind the handler's commit, and nobody has noticed when the
// handler returns. The event that it lost is the one to come again, not the
// next.
func TestHandlerThatCommitsAndWhoseSessionEnds(t *testing.T) {
	for how, e := range endings {
		if !e.commits || !e.chains {
			continue
		}
		for _, driver := range []string{"pgx", "lib/pq"} {
			t.Run(driver+" "+how, func(t *testing.T) {
				d := newLog(t)
				db := d.DB
				if driver == "lib/pq" {
					db = d.OpenPQ(t)
				}
				want := expectation{says: "set back from 6 to 0"}
				if reportsMarks(t, driver, d) {
					want = expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}
				}
				appendN(t, d.DB, "Order", "1", 6)
				c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
					if event.GlobalPosition != 3 {
						return nil
					}
					var pid int
					if err := e.end(ctx, tx); err != nil {
						return err
					}
					if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
						return err
					}
					d.Exec(t, fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, pid))
					await(t, "the session to end", func() (gone bool) {
						_ = d.DB.QueryRow(`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&gone)
						return gone
					})
					return errNotWritten
				}}
				want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
				expectRest(t, d, want.checkpoint)
			})
		}
	}
}
