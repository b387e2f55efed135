package frontier

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

// passed starts a session with a stale transaction that has drawn position 1, and passes the
// position. Position 2 is visible.
func passed(t *testing.T, d *pgtest.Database, q store.Querier) stepper {
	t.Helper()
	cfg := testConfig(t, d.DB)
	cfg.StaleAfter = time.Nanosecond
	s := open(t, cfg)
	s.start()
	appendEvent(t, q)    // 1
	appendEvent(t, d.DB) // 2
	s.step(readTail, scanLocks, readTail)
	s.published(0, 2, store.Range{First: 1, Last: 1})
	return s
}

func TestStaleTransactionIsPassedAndNarrowed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, d.DB)
	cfg.StaleAfter = time.Nanosecond
	var reported, freed []Holder
	cfg.OnStale, cfg.OnFree = func(h Holder) { reported = append(reported, h) }, func(h Holder) { freed = append(freed, h) }
	s := open(t, cfg)
	s.start()
	tx := begin(t, d.DB)
	appendEvent(t, tx) // 1
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks, readTail)
	s.published(0, 2, store.Range{First: 1, Last: 1})
	s.rescan() // shows the same rest as the scan before, so the transaction is narrowed

	rollBackEvent(t, d.DB) // 3
	appendEvent(t, d.DB)
	s.rescan()
	s.published(0, 4, store.Range{First: 1, Last: 1})

	exec(t, tx, `SELECT 1`)
	rollBackEvent(t, d.DB) // 5: as far as the scan shows, drawn by tx
	appendEvent(t, d.DB)
	s.rescan(readTail)
	s.published(0, 6, store.Range{First: 1, Last: 1}, store.Range{First: 5, Last: 5})

	appendEvent(t, tx) // 7
	commit(t, tx)
	s.rescan()
	s.published(7, 7)
	if len(reported) != 1 || !reported[0].Stale || reported[0].PID == 0 {
		t.Fatalf("want one report of the stale transaction: %+v", reported)
	}
	if len(freed) != 1 || freed[0].PID != reported[0].PID {
		t.Fatalf("want one report that it has ended: %+v", freed)
	}
}

// A transaction within a statement may draw at any time, even if its state has not changed for
// long.
func TestBusyTransactionIsNotNarrowed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, d.DB)
	cfg.StaleAfter = time.Nanosecond
	s := open(t, cfg)
	s.start()
	gate, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Close() }()
	exec(t, gate, `SELECT pg_advisory_lock(1), pg_advisory_lock(2)`)
	insert := strings.TrimSuffix(insertEvent, ` RETURNING global_position`)
	busy := make(chan error, 1)
	go func() {
		_, err := d.DB.ExecContext(t.Context(), `DO $$ BEGIN`+insert+`; PERFORM pg_advisory_xact_lock(1);`+insert+`; PERFORM pg_advisory_xact_lock(2); END $$`)
		busy <- err
	}()
	awaitAtLock(t, d.DB, 1)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks, readTail)
	s.published(0, 2, store.Range{First: 1, Last: 1})
	s.rescan()

	exec(t, gate, `SELECT pg_advisory_unlock(1)`)
	awaitAtLock(t, d.DB, 2) // the session has drawn 3
	appendEvent(t, d.DB)
	s.rescan(readTail)
	s.published(0, 4, store.Range{First: 1, Last: 1}, store.Range{First: 3, Last: 3})

	exec(t, gate, `SELECT pg_advisory_unlock(2)`)
	if err := <-busy; err != nil {
		t.Fatal(err)
	}
	s.rescan()
	s.published(4, 4)
}

// awaitAtLock waits until a session waits for an advisory lock.
func awaitAtLock(t testing.TB, db *sql.DB, key int) {
	t.Helper()
	waits := false
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !waits; {
		err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::int::oid AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, key).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	if !waits {
		t.Fatalf("no session waits for advisory lock %d", key)
	}
}

// A prepared transaction cannot draw. It owns nothing above a last value that was read after
// it was prepared. It still owns the positions that it drew before.
func TestPreparedTransactionIsNarrowed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	exec(t, conn, `BEGIN`)
	s := passed(t, d, conn)
	appendEvent(t, conn) // 3
	exec(t, conn, `PREPARE TRANSACTION 'narrowed'`)
	t.Cleanup(func() { _, _ = d.DB.Exec(`ROLLBACK PREPARED 'narrowed'`) })
	appendEvent(t, d.DB) // 4
	s.rescan(readTail)
	s.published(0, 4, store.Range{First: 1, Last: 1}, store.Range{First: 3, Last: 3})

	rollBackEvent(t, d.DB) // 5
	appendEvent(t, d.DB)   // 6
	s.rescan()
	s.published(0, 6, store.Range{First: 1, Last: 1}, store.Range{First: 3, Last: 3})

	d.Exec(t, `COMMIT PREPARED 'narrowed'`)
	s.rescan()
	s.published(6, 6)
}

// An aborted transaction draws nothing until it rolls back to a savepoint.
func TestAbortedTransactionIsNarrowedUntilRollbackToSavepoint(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.DB)
	abort := func() {
		t.Helper()
		exec(t, tx, `SAVEPOINT s`)
		if _, err := tx.ExecContext(t.Context(), `SELECT 1/0`); err == nil {
			t.Fatal("a division by zero succeeded")
		}
	}
	s := passed(t, d, tx)
	abort()
	s.rescan()             // shows the transaction aborted
	s.rescan()             // the same, after a tail read the last value 2
	rollBackEvent(t, d.DB) // 3
	appendEvent(t, d.DB)   // 4
	s.rescan()
	s.published(0, 4, store.Range{First: 1, Last: 1})

	exec(t, tx, `ROLLBACK TO SAVEPOINT s`)
	appendEvent(t, tx) // 5
	abort()
	appendEvent(t, d.DB) // 6
	s.rescan(readTail)
	s.published(0, 6, store.Range{First: 1, Last: 1}, store.Range{First: 5, Last: 5})

	exec(t, tx, `ROLLBACK TO SAVEPOINT s`)
	commit(t, tx)
	s.rescan()
	s.published(6, 6)
}
