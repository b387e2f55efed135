package worker

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// guarded is a database with one consumer, assigned to one worker, and that
// worker's view of it.
type guarded struct {
	*pgtest.Database
	c     checkpoints
	token string
}

func newGuarded(t *testing.T) guarded {
	d := pgtest.New(t)
	names, err := DefaultConfig().tables()
	if err != nil {
		t.Fatal(err)
	}
	g := guarded{Database: d, c: newCheckpoints(names, uuid.New(), time.Minute, guardedServer(names))}
	d.Exec(t, `DELETE FROM consumer_checkpoints_token`)
	d.Exec(t, `INSERT INTO consumer_checkpoints_token (token, database) SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`)
	d.Exec(t, `SELECT setval('events_global_position_seq', 30)`)
	if g.token, err = g.c.Incarnation(t.Context(), d.DB); err != nil || g.token == "" {
		t.Fatalf("the incarnation is %q: %v", g.token, err)
	}
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 10)`)
	g.assign(t, g.c.worker)
	return g
}

func guardedServer(names tables.Tables) server {
	const sequence = `"public"."events_global_position_seq"`
	return server{
		incarnation: incarnation.Of(names.Token, `"public"."events"`, sequence, `(SELECT oid FROM pg_database WHERE datname = current_database())`),
		sequence:    sequence,
	}
}

func (g guarded) assign(t *testing.T, worker uuid.UUID) {
	g.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', $1::uuid)
		ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id`, worker.String())
}

func (g guarded) load(t *testing.T) *progress {
	p, err := g.c.Load(t.Context(), g.DB, "c")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (g guarded) begin(t *testing.T) *sql.Tx {
	tx, err := g.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func TestGuardLetsThroughOnlyWhatIsUnchanged(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, g guarded) // after the load
		to     int64
		token  string
		want   bool
	}{
		"nothing changed":            {to: 12, want: true},
		"the position alone is kept": {to: 10, want: true}, // a late event
		"backwards":                  {to: 9},
		"another position": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 11, revision = revision + 1`)
		}},
		// A late event delivered by another worker leaves the position as it was.
		"only the revision": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		}},
		// A process of another library knows no revision.
		"only the position": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 11`)
		}},
		"assigned elsewhere": {to: 12, change: func(t *testing.T, g guarded) { g.assign(t, uuid.New()) }},
		"assigned to nobody": {to: 12, change: func(t *testing.T, g guarded) { g.Exec(t, `DELETE FROM consumer_assignments`) }},
		"another life":       {to: 12, token: uuid.NewString()},
		"never issued":       {to: 31},
		"another token": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
		}},
		"the token of another database": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints_token SET database = 1`)
		}},
		"the sequence restarted": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `ALTER SEQUENCE events_global_position_seq RESTART`)
			g.Exec(t, `SELECT setval('events_global_position_seq', 12)`)
		}},
		"the sequence set back": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `SELECT setval('events_global_position_seq', 11)`)
		}},
		"no token": {to: 12, change: func(t *testing.T, g guarded) {
			g.Exec(t, `DELETE FROM consumer_checkpoints_token`)
		}},
		"row gone": {to: 12, change: func(t *testing.T, g guarded) { g.Exec(t, `DELETE FROM consumer_checkpoints`) }},
	} {
		for _, audited := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newGuarded(t)
				from := g.load(t)
				if test.change != nil {
					test.change(t, g)
					// Room of removed versions is used again: where the row is
					// proves nothing.
					_ = g.DB.QueryRow(`SELECT ctid::text FROM consumer_checkpoints`).Scan(&from.row)
				}
				a := advance{to: test.to, head: 99, token: g.token}
				if test.token != "" {
					a.token = test.token
				}
				if audited {
					a.marks = []mark{{Range: store.Range{First: 11, Last: 12}, Missing: 2, State: SkipVoid}}
				}
				tx := g.begin(t)
				moved, ok, err := g.c.Guard(t.Context(), tx, "c", from, a)
				if err != nil || ok != test.want {
					t.Fatalf("the guard said %v, %v; want %v", ok, err, test.want)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				var marks int
				if err := g.DB.QueryRow(`SELECT count(*) FROM consumer_gap_skips`).Scan(&marks); err != nil {
					t.Fatal(err)
				}
				if want := audited && test.want; (marks == 1) != want {
					t.Errorf("%d audit rows, want one: %v", marks, want)
				}
				if !test.want {
					return
				}
				if p := g.load(t); p.position != test.to || p.revision != from.revision+1 || p.rowState != moved.rowState {
					t.Errorf("afterwards the progress is %+v, the guard said %+v", p, moved)
				}
			})
		}
	}
}

// A row that was moved by a VACUUM FULL, say, is loaded again, by its name.
func TestGuardOfARowThatWasMoved(t *testing.T) {
	g := newGuarded(t)
	for _, want := range []bool{true, false} {
		from := g.load(t)
		if !want {
			g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) SELECT 'other' || n FROM generate_series(1, 9) AS n`)
			g.Exec(t, `UPDATE consumer_checkpoints SET updated_at = clock_timestamp() WHERE consumer_name = 'c'`)
		}
		tx := g.begin(t)
		if _, ok, err := g.c.Guard(t.Context(), tx, "c", from, advance{to: 12, token: g.token}); err != nil || ok != want {
			t.Fatalf("the guard said %v, %v; want %v", ok, err, want)
		}
		_ = tx.Rollback()
	}
	if p := g.load(t); p.position != 10 || p.revision != 0 {
		t.Fatalf("the progress is %+v", p)
	}
}

// Two workers that both believe they own the consumer: the second waits for
// the first batch and then finds that the progress is not what it was.
func TestGuardOfASecondBatchWaitsAndGivesUp(t *testing.T) {
	for _, position := range []int64{10, 12} { // 10: only a late event, the position stays
		g := newGuarded(t)
		from := g.load(t)
		a := advance{to: position, token: g.token}
		first := g.begin(t)
		if _, ok, err := g.c.Guard(t.Context(), first, "c", from, a); err != nil || !ok {
			t.Fatal(ok, err)
		}
		second := g.begin(t)
		type verdict struct {
			ok  bool
			err error
		}
		done := make(chan verdict, 1)
		go func() {
			_, ok, err := g.c.Guard(context.Background(), second, "c", from, a)
			done <- verdict{ok, err}
		}()
		awaitBlocked(t, g.DB)
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		if v := <-done; v.ok || v.err != nil {
			t.Fatalf("position %d: the second guard said %+v", position, v)
		}
	}
}

// awaitBlocked waits until somebody waits for a lock.
func awaitBlocked(t *testing.T, db *sql.DB) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		var blocked int
		if err := db.QueryRow(`SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&blocked); err != nil {
			t.Fatal(err)
		}
		if blocked > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for a guard to wait for another")
		}
	}
}

// A worker whose process hangs in the middle of a batch does not hold the
// consumer for longer than a batch may take.
func TestServerEndsABatchThatStaysIdle(t *testing.T) {
	g := newGuarded(t)
	names, _ := DefaultConfig().tables()
	g.c = newCheckpoints(names, g.c.worker, 50*time.Millisecond, guardedServer(names))
	from := g.load(t)
	hung := g.begin(t)
	if _, ok, err := g.c.Guard(t.Context(), hung, "c", from, advance{to: 12, token: g.token}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	next := g.begin(t)
	_, ok, err := g.c.Guard(t.Context(), next, "c", from, advance{to: 12, token: g.token})
	if err != nil || !ok {
		t.Fatalf("the next batch's guard said %v, %v", ok, err)
	}
	_, err = hung.Exec(`SELECT 1`)
	if err == nil {
		t.Fatal("the hung batch is still alive")
	}
}

func TestLoadNeverInventsACheckpoint(t *testing.T) {
	g := newGuarded(t)
	g.Exec(t, `DELETE FROM consumer_checkpoints`)
	if p, err := g.c.Load(t.Context(), g.DB, "c"); err == nil {
		t.Fatalf("loaded %+v from no row", p)
	}
}

func TestLoadAndReplaceOpenRanges(t *testing.T) {
	g := newGuarded(t)
	commit := func(from *progress, a advance) {
		t.Helper()
		a.token = g.token
		tx := g.begin(t)
		if _, ok, err := g.c.Guard(t.Context(), tx, "c", from, a); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	commit(g.load(t), advance{to: 30, marks: []mark{{Range: store.Range{First: 11, Last: 15}, Missing: 5, State: SkipOpen}, {Range: store.Range{First: 20, Last: 20}, Missing: 1, State: SkipOpen}}})
	p := g.load(t)
	if len(p.open) != 2 || p.open[0].First != 11 || p.open[0].Last != 15 || p.open[1].First != 20 {
		t.Fatalf("open ranges %+v", p.open)
	}
	seen := p.open[0].Seen
	commit(p, advance{to: 30, gone: []int64{p.open[0].ID}, marks: []mark{
		{Range: store.Range{First: 11, Last: 12}, Missing: 2, State: SkipOpen, Seen: &seen},
		{Range: store.Range{First: 13, Last: 13}, Missing: 1, State: SkipLate, Seen: &seen},
		{Range: store.Range{First: 14, Last: 15}, Missing: 2, State: SkipVoid, Seen: &seen},
	}})
	p = g.load(t)
	if len(p.open) != 2 || p.open[0].Last != 12 || !p.open[0].Seen.Equal(seen) || p.open[1].First != 20 {
		t.Fatalf("open ranges %+v", p.open)
	}
	var rows, closed int
	if err := g.DB.QueryRow(`SELECT count(*), count(closed_at) FROM consumer_gap_skips`).Scan(&rows, &closed); err != nil || rows != 4 || closed != 2 {
		t.Fatalf("%d audit rows, %d closed, %v", rows, closed, err)
	}
}

// A worker pauses the consumer that it has loaded and owns, and no other: its
// reason may be over, or somebody else's affair.
func TestWorkerPausesOnlyWhatIsUnchanged(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, g guarded) // after the load
		want   bool
	}{
		"nothing changed": {change: func(*testing.T, guarded) {}, want: true},
		"moved since": {change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		}},
		"assigned elsewhere": {change: func(t *testing.T, g guarded) { g.assign(t, uuid.New()) }},
		"assigned to nobody": {change: func(t *testing.T, g guarded) { g.Exec(t, `DELETE FROM consumer_assignments`) }},
		"paused already": {change: func(t *testing.T, g guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET paused_at = clock_timestamp()`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			from := g.load(t)
			test.change(t, g)
			if ok, err := g.c.Pause(t.Context(), g.DB, "c", from, "why"); err != nil || ok != test.want {
				t.Errorf("paused: %v, %v; want %v", ok, err, test.want)
			}
			var operations int
			if err := g.DB.QueryRow(`SELECT count(*) FROM consumer_operations`).Scan(&operations); err != nil || (operations == 1) != test.want {
				t.Errorf("%d operations, %v", operations, err)
			}
			if p := g.load(t); test.want && (p.paused == nil || p.paused.Reason != "why" || p.revision != from.revision+1) {
				t.Errorf("afterwards the progress is %+v", p)
			}
		})
	}
}
