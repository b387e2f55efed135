package frontier

import (
	"errors"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// Settled reads the row that a frontier wrote, also within a transaction. Settled returns 0
// after the sequence was restarted or set back.
func TestSettledReadsTheRaisedRow(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]string{
		"truncated":                 `TRUNCATE events RESTART IDENTITY`,
		"truncated, and used again": `DO $$ BEGIN TRUNCATE events RESTART IDENTITY; PERFORM setval('events_global_position_seq', 50); END $$`,
		"set back":                  `SELECT setval('events_global_position_seq', 2)`,
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, d.DB)
			tx := begin(t, d.DB)
			defer func() { _ = tx.Rollback() }()
			expect := func(want int64) {
				t.Helper()
				if got, err := Settled(t.Context(), tx, events(), cfg.Settled); err != nil || got != want {
					t.Fatalf("settled is %d (%v), want %d", got, err, want)
				}
			}
			expect(0)
			appendEvent(t, d.DB)
			rollBackEvent(t, d.DB)
			appendEvent(t, d.DB)
			s := open(t, cfg)
			s.start()
			s.step(readTail, scanLocks, readTail)
			s.raise()
			s.s.close()
			expect(3)
			var locks int
			if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'events_global_position_seq'::regclass AND mode <> 'AccessShareLock'`).Scan(&locks); err != nil || locks > 0 {
				t.Fatalf("%d locks on the sequence for which a frontier would wait (%v)", locks, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			exec(t, d.DB, restart)
			tx = begin(t, d.DB)
			expect(0)
		})
	}
}

func TestSettledRejectsAnUnsupportedLog(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, d.DB)
	exec(t, d.DB, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	if _, err := Settled(t.Context(), d.DB, events(), cfg.Settled); !errors.Is(err, errSequenceCache) {
		t.Errorf("a cache: %v", err)
	}
	exec(t, d.DB, `DROP TABLE events`)
	if _, err := Settled(t.Context(), d.DB, events(), cfg.Settled); !errors.Is(err, errTableNotFound) {
		t.Errorf("no table: %v", err)
	}
}
