package frontier

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

func TestFollowsCommitsInOrder(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	f, _ := run(t, testConfig(t, d.DB))
	for range 20 {
		position := appendEvent(t, d.DB)
		f.Wake()
		awaitSettled(t, f, position)
	}
}

func TestCommitsInOrderNeedNoScan(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	for position := range int64(3) {
		appendEvent(t, d.DB)
		s.step(readTail)
		s.published(position+1, position+1)
	}
}

// drivers returns all drivers and modes in which statements reach the server.
func drivers(t *testing.T, d *pgtest.Database) map[string]*sql.DB {
	all := map[string]*sql.DB{"lib/pq": d.OpenPQ(t)}
	for _, mode := range pgtest.Modes() {
		all["pgx "+mode.String()] = d.OpenMode(t, mode)
	}
	return all
}

// TestEveryDriver runs every statement for a log whose sequence is known.
func TestEveryDriver(t *testing.T) {
	t.Parallel()
	eachDriver(t, events(), pgtest.New)
}

// TestEveryDriverOfAnUnnamedLog runs every statement for a log that does not name its
// sequence. A scan counts a session that is just starting in another database as a holder. So
// no other parallel test uses databases of pgtest.Alone, and this test uses one at a time.
func TestEveryDriverOfAnUnnamedLog(t *testing.T) {
	t.Parallel()
	eachDriver(t, eventLog{}, pgtest.Alone)
}

func eachDriver(t *testing.T, log store.Log, database func(testing.TB) *pgtest.Database) {
	for name := range drivers(t, database(t)) {
		t.Run(name, func(t *testing.T) {
			d := database(t)
			cfg := testConfig(t, drivers(t, d)[name])
			cfg.Log, cfg.Strict = log, true
			everyStatement(t, d, cfg)
		})
	}
}

func everyStatement(t *testing.T, d *pgtest.Database, cfg Config) {
	s := open(t, cfg)
	if s.s.origin.named {
		s.start()
	} else {
		s.step(readStart, insertToken, readStart)
	}
	appendEvent(t, d.DB)
	tx := begin(t, d.DB)
	appendEvent(t, tx)
	rollBackEvent(t, d.DB)
	d.Exec(t, `SELECT setval('events_global_position_seq', 1000)`)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	s.published(1, 1)
	if b := s.f.Blocked(); len(b) != 1 || b[0].PID == 0 || b[0].State != "idle in transaction" || b[0].Age <= 0 || b[0].VirtualTransaction == "" {
		t.Fatalf("want the one open transaction: %+v", b)
	}
	commit(t, tx)
	s.rescan()
	s.published(1001, 1001)
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT 't', i::text, 1, gen_random_uuid(), 'e', '' FROM generate_series(1, 2000) AS i`)
	s.pass(time.Second / 2)
	s.step(readTail, readHead, scanLocks)
	s.published(3001, 3001)
	s.step(readTail) // checks for more rows
	s.f.Follow()
	appendEvent(t, d.DB)
	s.wake()
	s.step(readRows)
	s.published(3002, 3002)
	if events, ok := s.f.Value().Since(3001); !ok || len(events) != 1 || events[0].GlobalPosition != 3002 {
		t.Fatalf("the tail cache has %v (%v), want position 3002", events, ok)
	}
	if !s.s.origin.named {
		return
	}
	s.raise()
	var settled int64
	if err := d.DB.QueryRowContext(t.Context(), `SELECT settled FROM consumer_checkpoints_settled`).Scan(&settled); err != nil || settled != 3002 {
		t.Fatalf("the settled row has %d, %v; want 3002", settled, err)
	}
}

func TestRolledBackAppendIsSettledAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	rollBackEvent(t, d.DB)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	s.published(2, 2)
}

func TestSavepointRolledBackIsHeldUntilTheTransactionEnds(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	tx := begin(t, d.DB)
	exec(t, tx, `SAVEPOINT s`)
	appendEvent(t, tx)
	exec(t, tx, `ROLLBACK TO SAVEPOINT s`)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	s.published(0, 0)
	commit(t, tx)
	s.rescan()
	s.published(2, 2)
}

func TestOpenTransactionBlocksThenIsSettled(t *testing.T) {
	for name, log := range map[string]store.Log{"named": events(), "unnamed": eventLog{}} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.Alone(t)
			cfg := testConfig(t, d.DB)
			cfg.Log = log
			f, _ := run(t, cfg)
			tx := begin(t, d.DB)
			appendEvent(t, tx)
			appendEvent(t, d.DB)
			f.Wake()
			awaitBlocked(t, f)
			if v := f.Value(); v.Safe != 0 {
				t.Fatalf("the frontier passed an open transaction: %+v", *v)
			}
			commit(t, tx)
			f.Wake()
			awaitSettled(t, f, 2)
		})
	}
}

// awaitBlocked waits until a transaction blocks the frontier.
func awaitBlocked(t testing.TB, f *Frontier) []Holder {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if b := f.Blocked(); len(b) > 0 {
			return b
		}
		pause := time.NewTimer(time.Millisecond)
		<-pause.C
	}
	t.Fatalf("no transaction blocks, the value is %+v", *f.Value())
	return nil
}

func TestPreparedTransaction(t *testing.T) {
	for name, log := range map[string]store.Log{"named": events(), "unnamed": eventLog{}} {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(name+" "+end, func(t *testing.T) {
				d := pgtest.Alone(t)
				cfg := testConfig(t, d.DB)
				cfg.Log, cfg.Strict = log, true
				s := open(t, cfg)
				if s.s.origin.named {
					s.start()
					prepare(t, d.DB, "unrelated", `SELECT txid_current()`)
					t.Cleanup(func() { _, _ = d.DB.Exec(`ROLLBACK PREPARED 'unrelated'`) })
				} else {
					s.step(readStart, insertToken, readStart)
				}
				gid := strings.ReplaceAll(t.Name(), "'", "")
				prepareEvent(t, d.DB, gid)
				t.Cleanup(func() { _, _ = d.DB.Exec(`ROLLBACK PREPARED '` + gid + `'`) })
				appendEvent(t, d.DB)
				s.step(readTail, scanLocks)
				s.published(0, 0)
				if b := s.f.Blocked(); len(b) != 1 || b[0].PID != 0 || b[0].GID != gid || b[0].Age <= 0 || !strings.Contains(b[0].Remedy(), gid) {
					t.Fatalf("want the prepared transaction: %+v", b)
				}
				d.Exec(t, end+` PREPARED '`+gid+`'`)
				if end == "COMMIT" {
					s.step(readTail)
				} else {
					s.rescan()
				}
				s.published(2, 2)
			})
		}
	}
}

// prepareEvent appends an event in a transaction that it leaves prepared.
func prepareEvent(t testing.TB, db *sql.DB, gid string) {
	t.Helper()
	prepare(t, db, gid, insertEvent)
}

func prepare(t testing.TB, db *sql.DB, gid, statement string) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	exec(t, conn, `BEGIN`)
	exec(t, conn, statement)
	exec(t, conn, `PREPARE TRANSACTION '`+gid+`'`)
}

// A fence waits for a transaction that is prepared meanwhile, even if the server renames the
// transaction.
func TestPreparedWhileAFenceWaits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	exec(t, conn, `BEGIN`)
	appendEvent(t, conn)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	exec(t, conn, `PREPARE TRANSACTION 'awaited'`)
	t.Cleanup(func() { _, _ = d.DB.Exec(`ROLLBACK PREPARED 'awaited'`) })
	s.rescan()
	s.published(0, 0)
	d.Exec(t, `COMMIT PREPARED 'awaited'`)
	s.step(readTail)
	s.published(2, 2)
}

// A transaction that was old before the session began does not block the session. A strict
// frontier waits for it.
func TestOldTransactionAtTheStart(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		for _, prepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("strict %v prepared %v", strict, prepared), func(t *testing.T) {
				d := pgtest.New(t)
				if prepared {
					prepareEvent(t, d.DB, "old")
					t.Cleanup(func() { _, _ = d.DB.Exec(`ROLLBACK PREPARED 'old'`) })
				} else {
					appendEvent(t, begin(t, d.DB))
				}
				appendEvent(t, d.DB)
				d.Exec(t, `SELECT pg_sleep(0.2)`)
				cfg := testConfig(t, d.DB)
				cfg.Strict, cfg.StaleAfter = strict, 100*time.Millisecond
				s := open(t, cfg)
				s.start()
				s.step(readTail, scanLocks, readTail)
				if strict {
					s.published(0, 0)
				} else {
					s.published(0, 2, store.Range{First: 1, Last: 1})
				}
			})
		}
	}
}

func TestUnnamedLogDoubts(t *testing.T) {
	d := pgtest.Alone(t)
	cfg := testConfig(t, d.DB)
	cfg.Log, cfg.StaleAfter = eventLog{}, time.Nanosecond
	s := open(t, cfg)
	s.step(readStart, insertToken, readStart)
	tx := begin(t, d.DB)
	appendEvent(t, tx)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks, readTail)
	s.published(0, 2, store.Range{First: 1, Last: 1})
	commit(t, tx)
	s.rescan()
	s.published(2, 2)
}

// A transaction may draw a position before it has a transaction id.
func TestUnnamedLogWaitsForTransactionsWithoutID(t *testing.T) {
	d := pgtest.Alone(t)
	cfg := testConfig(t, d.DB)
	cfg.Log = eventLog{}
	s := open(t, cfg)
	s.step(readStart, insertToken, readStart)
	appendEvent(t, d.DB)
	tx := begin(t, d.DB)
	exec(t, tx, `SELECT nextval('events_global_position_seq')`) // 2
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	s.published(1, 1)
	commit(t, tx)
	s.rescan()
	s.published(3, 3)
}

// Transactions of other databases are ignored, also if every transaction is a holder.
func TestTransactionsOfOtherDatabasesAreIgnored(t *testing.T) {
	t.Parallel()
	other := pgtest.New(t)
	appendEvent(t, begin(t, other.DB))
	prepareEvent(t, other.DB, "other")
	t.Cleanup(func() { _, _ = other.DB.Exec(`ROLLBACK PREPARED 'other'`) })
	for name, log := range map[string]store.Log{"named": events(), "unnamed": eventLog{}} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, d.DB)
			cfg.Log = log
			f, _ := run(t, cfg)
			rollBackEvent(t, d.DB)
			appendEvent(t, d.DB)
			awaitSettled(t, f, 2)
		})
	}
}
