package frontier

import (
	"context"
	"database/sql"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// A Frontier that does not run has a Value, and can be woken several times.
func TestFrontierBeforeItRuns(t *testing.T) {
	f := New(Config{})
	f.Wake()
	f.Wake()
	if v := f.Value(); v == nil || v.Safe != 0 || len(f.wake) != 1 {
		t.Errorf("the Value is %+v, %d wakeups", v, len(f.wake))
	}
}

// poolNamed opens a pool whose sessions have an application name.
func poolNamed(t testing.TB, url, application string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = application
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// awaitQuery waits until a query that returns one bool returns true.
func awaitQuery(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	var ok bool
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := db.QueryRowContext(t.Context(), query, args...).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		exec(t, db, `SELECT pg_sleep(0.005)`)
	}
	t.Fatalf("the query never returned true: %s", query)
}

func TestRunReturnsItsConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, poolNamed(t, d.URL, "frontier"))
	cfg.DB.SetMaxOpenConns(1)
	f, stop := run(t, cfg)
	awaitSettled(t, f, 0)
	if n := cfg.DB.Stats().InUse; n != 1 {
		t.Fatalf("%d connections in use, want 1", n)
	}
	stop()
	if n := cfg.DB.Stats().InUse; n != 0 {
		t.Fatalf("%d connections in use after Run, want 0", n)
	}
	exec(t, cfg.DB, `SELECT 1`)
}

// Run returns also while one of its statements waits in the server.
func TestRunEndsDuringAStatement(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	f, stop := run(t, testConfig(t, poolNamed(t, d.URL, "frontier")))
	awaitSettled(t, f, 0)
	exec(t, begin(t, d.DB), `LOCK TABLE events IN ACCESS EXCLUSIVE MODE`)
	awaitQuery(t, d.DB, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'frontier' AND wait_event_type = 'Lock'`)
	stop()
}

func TestRunWithoutServerEnds(t *testing.T) {
	db, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	f, stop := run(t, testConfig(t, db))
	if v := f.Value(); v.Token != "" {
		t.Fatalf("published %+v without a server", *v)
	}
	stop()
}

func TestRunRejectsAnInvalidConfig(t *testing.T) {
	if err := New(Config{}).Run(t.Context()); err == nil {
		t.Fatal("Run accepted an empty Config")
	}
}

func TestReconnects(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	f, _ := run(t, testConfig(t, poolNamed(t, d.URL, "frontier")))
	awaitSettled(t, f, 0)
	token := f.Value().Token
	for range 2 {
		position := appendEvent(t, d.DB)
		awaitSettled(t, f, position)
		back := f.Back()
		awaitQuery(t, d.DB, `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'frontier'`)
		rollBackEvent(t, d.DB)
		awaitSettled(t, f, appendEvent(t, d.DB))
		select {
		case <-back:
		case <-time.After(patience):
			t.Fatalf("OnBack was not called within %v", patience)
		}
	}
	if f.Value().Token != token {
		t.Fatal("the token changed with the connection, in the same incarnation of the server")
	}
}

// The frontier that comes second uses the token of the first.
func TestFrontiersAgreeOnTheToken(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	one, two := open(t, testConfig(t, d.DB)), open(t, testConfig(t, d.DB))
	one.step(readStart) // there is no token yet
	two.start()
	one.step(insertToken, readStart)
	appendEvent(t, d.DB)
	one.step(readTail)
	one.published(1, 1)
	two.step(readTail)
	two.published(1, 1)
	if a, b := one.f.Value(), two.f.Value(); a.Token != b.Token {
		t.Fatalf("%+v and %+v do not agree", *a, *b)
	}
}

// A dump copies the token, but the restored database has another oid.
func TestTokenOfAnotherDatabaseIsReplaced(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const copied = "11111111-1111-1111-1111-111111111111"
	d.Exec(t, `INSERT INTO consumer_checkpoints_token (token, database) VALUES ('`+copied+`', 1)`)
	f, _ := run(t, testConfig(t, d.DB))
	awaitSettled(t, f, 0)
	if f.Value().Token == copied {
		t.Fatal("the frontier used the token of another database")
	}
}

// crashServer returns a server of this test's own, with all tables.
func crashServer(t *testing.T) (*embedded.Server, *sql.DB) {
	t.Helper()
	server := pgtest.OwnServer(t, nil)
	db := poolNamed(t, server.URL("postgres"), "test")
	cfg := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), db, &cfg); err != nil {
		t.Fatal(err)
	}
	return server, db
}

// awaitServer waits until the server accepts connections again.
func awaitServer(t testing.TB, db *sql.DB) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = db.ExecContext(ctx, `SELECT pg_sleep(0.001)`)
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatalf("the server does not accept connections: %v", err)
}

// A killed backend restarts the server without a new start time. Positions may then be issued
// again. The frontier must have another token and an empty memory.
func TestCrashChangesTheToken(t *testing.T) {
	t.Parallel()
	server, db := crashServer(t)
	f, _ := run(t, testConfig(t, poolNamed(t, server.URL("postgres"), "frontier")))
	appendEvent(t, db)
	appendEvent(t, db)
	awaitSettled(t, f, 2)
	before := f.Value().Token

	var pid int
	victim := begin(t, db)
	if err := victim.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, victim)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = victim.Rollback()
	awaitServer(t, db)

	after := await(t, f, "another token", func(v *Value) bool { return v.Token != before })
	if after.Safe > 2 {
		t.Fatalf("the frontier kept more than the visible positions: %+v", *after)
	}
	awaitSettled(t, f, appendEvent(t, db))
}

// The settled row survives a crash, so history is not fenced again.
func TestCrashKeepsTheSettledRow(t *testing.T) {
	t.Parallel()
	server, db := crashServer(t)
	cfg := testConfig(t, db)
	s := open(t, cfg)
	s.start()
	rollBackEvent(t, db)
	appendEvent(t, db)
	s.step(readTail, scanLocks)
	s.raise()
	before := s.f.Value().Token

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.s.step(t.Context()); err == nil {
		t.Fatal("a session outlived the server")
	}
	awaitServer(t, db)
	s = open(t, cfg)
	s.step(readStart, insertToken, readStart)
	s.published(2, 2)
	if s.f.Value().Token == before {
		t.Fatal("the token survived the crash")
	}
}

// A session does not raise the settled row under another token, since its results are no
// longer valid.
func TestSettledRowIsRaisedUnderItsTokenOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	appendEvent(t, d.DB)
	s.step(readTail)
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	s.raise()
	awaitQuery(t, d.DB, `SELECT settled = 0 FROM consumer_checkpoints_settled`)
	s.step(readTail, readStart)
	s.published(0, 0)
}

func TestSettledRowOfAnotherLogIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled) VALUES (1, 0)`)
	s := open(t, testConfig(t, d.DB))
	s.start()
	appendEvent(t, d.DB)
	s.step(readTail)
	s.raise()
	awaitQuery(t, d.DB, `SELECT array_agg(settled ORDER BY log) = '{0,1}' FROM consumer_checkpoints_settled`)
}

// A transaction that locks the settled row does not hold up the frontier.
func TestLockedSettledRowIsSkipped(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	appendEvent(t, d.DB)
	s.step(readTail)
	exec(t, begin(t, d.DB), `UPDATE consumer_checkpoints_settled SET settled = 0`)
	s.raise()
	s.step(readTail)
}

func TestStartsFromTheSettledRow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	rollBackEvent(t, d.DB)
	appendEvent(t, d.DB)
	s.step(readTail, scanLocks)
	s.raise()

	next := open(t, testConfig(t, d.DB))
	next.step(readStart)
	next.published(2, 2)
}

// Positions are issued again after a restart of the sequence. The frontier drops what it knew
// of the old positions, in memory and in the settled row.
func TestRestartedSequence(t *testing.T) {
	t.Parallel()
	for _, restart := range []string{
		`TRUNCATE events RESTART IDENTITY`,
		`DELETE FROM events; ALTER SEQUENCE events_global_position_seq RESTART`,
		`DELETE FROM events; SELECT setval('events_global_position_seq', 1, false)`,
	} {
		t.Run(restart, func(t *testing.T) {
			d := pgtest.New(t)
			s := open(t, testConfig(t, d.DB))
			s.start()
			for range 3 {
				appendEvent(t, d.DB)
			}
			s.step(readTail)
			s.published(3, 3)
			s.raise()

			exec(t, d.OpenPQ(t), restart)
			tx := begin(t, d.DB)
			appendEvent(t, tx)
			appendEvent(t, d.DB)

			if err := s.s.step(t.Context()); err != nil && !errors.Is(err, errLogReplaced) {
				t.Fatal(err)
			} else if err != nil {
				s = open(t, testConfig(t, d.DB))
			}
			s.step(readStart, placeSettled, readStart)
			s.published(0, 0)
			s.step(readTail, scanLocks)
			s.published(0, 0)
			commit(t, tx)
			s.step(readTail)
			s.published(2, 2)
		})
	}
}

// The sequence issued more positions after the restart than before. Only the sequence's file
// shows the restart. The settled row of the old positions would hide the open transaction.
func TestRestartedSequenceThatCaughtUp(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	for range 3 {
		appendEvent(t, d.DB)
	}
	s.step(readTail)
	s.raise()

	d.Exec(t, `TRUNCATE events RESTART IDENTITY`)
	tx := begin(t, d.DB)
	appendEvent(t, tx)
	for range 5 {
		appendEvent(t, d.DB)
	}
	next := open(t, testConfig(t, d.DB))
	next.step(readStart, placeSettled, readStart, readTail, scanLocks)
	next.published(0, 0)
	if err := s.s.step(t.Context()); !errors.Is(err, errLogReplaced) {
		t.Fatalf("the session that read the old positions continues: %v", err)
	}
}

func TestTableIsReplaced(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	f, _ := run(t, testConfig(t, d.DB))
	for range 3 {
		appendEvent(t, d.DB)
	}
	awaitSettled(t, f, 3)
	d.Exec(t, `DROP TABLE events`)
	cfg := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), d.DB, &cfg); err != nil {
		t.Fatal(err)
	}
	appendEvent(t, d.DB)
	await(t, f, "the new table's first position", func(v *Value) bool { return v.Safe == 1 && v.Settled == 1 })
}
