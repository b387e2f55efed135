package e2e

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
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

// inQuick reports whether the quick tier has a case. Over pgx the outcome depends on the
// ending alone, so an error follows one that commits and one that does not. Over lib/pq
// COMMIT, BEGIN shows as little as COMMIT AND CHAIN, and tx.Commit shows in database/sql.
func inQuick(driver, how, then string) bool {
	switch {
	case driver == "lib/pq":
		return then == "returns nil" && slices.Contains([]string{"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"}, how)
	case then == "returns an error":
		return slices.Contains([]string{"tx.Commit", "ROLLBACK AND CHAIN"}, how)
	}
	return then == "returns nil" || how == "tx.Commit"
}

// Whatever a handler does to its transaction: after a restart with a mended
// one, no event is missing, and the error has said what may be applied twice.
func TestHandlerThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d := newLog(t) // of all cases, one after the other
			db := open(t, d, driver)
			for how, e := range endings {
				for then, sequel := range sequels {
					t.Run(how+", "+then, func(t *testing.T) {
						if !inQuick(driver, how, then) {
							tier.Long(t, "TestHandlerThatEndsItsTransaction, which has each ending over pgx, and each kind that follows")
						}
						empty(t, d)
						endsItsTransaction(t, d, db, driver, e, sequel, then != "returns nil")
					})
				}
			}
		})
	}
}

// empty makes the log, the ledger and the progress as they were at the beginning.
func empty(t *testing.T, d *pgtest.Database) {
	t.Helper()
	d.Exec(t, `DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(oid::regclass::text, ', ') || ' RESTART IDENTITY' FROM pg_class
		WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname NOT LIKE '%\_schema'); END $$`)
}

func endsItsTransaction(t *testing.T, d *pgtest.Database, db *sql.DB, driver string, e ending, sequel func() error, failed bool) {
	appendN(t, d.DB, "Order", "1", 6)
	w := start(t, db, []consumer.Consumer{ender(e, sequel)}, worker.WithMaxConsecutiveFailures(1))
	shown := e.shows || reportsMarks(t, driver, d) || driver == "pgx" && !e.chains
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
	t.Parallel()
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

// RESET ALL takes away the mark by which the end of a transaction shows, and is
// no handler's fault.
func TestHandlerMayResetAllSettings(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	w := start(t, d.DB, []consumer.Consumer{ender(endings["tx.Commit"], sequels["returns nil"])})
	if err := w.result(t); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Fatal(err)
	}
	all, err := operator(t, d).Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 10)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if op := all[0]; op.Kind != ops.KindRepair || !strings.HasPrefix(op.By.Operator, "worker ") || !strings.Contains(op.By.Reason, "position 3") ||
		!strings.Contains(string(op.Detail), `"from": 6`) || !strings.Contains(string(op.Detail), `"to": 2`) {
		t.Errorf("the operation is %+v with %s", op, op.Detail)
	}
}

// A repair writes the row of the void positions below the event at fault again,
// as a batch does that ends there: with one time, by which compaction knows it.
func TestRepairKeepsTheVoidPositionsBelow(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	if err := beginAppend(t, d.DB, "Order", "void", 1).Rollback(); err != nil { // 2
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "2", 4)
	w := start(t, d.DB, []consumer.Consumer{ender(endings["tx.Commit"], sequels["returns nil"])})
	if err := w.result(t); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Fatal(err)
	}
	var row string
	if err := d.DB.QueryRow(`
SELECT format('%s-%s %s %s %s', gap_position, gap_end, missing, state, created_at = first_seen_at AND closed_at = first_seen_at)
FROM consumer_gap_skips`).Scan(&row); err != nil || row != "2-2 1 void t" {
		t.Errorf("the audit has %q, %v", row, err)
	}
}
