package progress_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

func TestGuardPassesOnlyUnchangedProgress(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, g progresstest.Guarded) // after the load
		to     int64
		token  string
		want   bool
	}{
		"nothing changed":            {to: 12, want: true},
		"the position alone is kept": {to: 10, want: true}, // a late event
		"backwards":                  {to: 9},
		"another position": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 11, revision = revision + 1`)
		}},
		// A late event that another worker delivered leaves the position as it was.
		"only the revision": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		}},
		// A process of another library does not change the revision.
		"only the position": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 11`)
		}},
		"assigned to another worker": {to: 12, change: func(t *testing.T, g progresstest.Guarded) { g.Assign(t, uuid.New()) }},
		"not assigned":               {to: 12, change: func(t *testing.T, g progresstest.Guarded) { g.Exec(t, `DELETE FROM consumer_assignments`) }},
		"another incarnation":        {to: 12, token: uuid.NewString()},
		"never issued":               {to: 31},
		"another token": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
		}},
		"the token of another database": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints_token SET database = 1`)
		}},
		"the sequence restarted": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `ALTER SEQUENCE events_global_position_seq RESTART`)
			g.Exec(t, `SELECT setval('events_global_position_seq', 12)`)
		}},
		"the sequence set back": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `SELECT setval('events_global_position_seq', 11)`)
		}},
		"no token": {to: 12, change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `DELETE FROM consumer_checkpoints_token`)
		}},
		"row deleted": {to: 12, change: func(t *testing.T, g progresstest.Guarded) { g.Exec(t, `DELETE FROM consumer_checkpoints`) }},
	} {
		for _, audited := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := progresstest.New(t)
				from := g.Loaded(t)
				if test.change != nil {
					test.change(t, g)
					// Space of removed versions is reused, so the ctid of the row proves
					// nothing.
					_ = g.DB.QueryRow(`SELECT ctid::text FROM consumer_checkpoints`).Scan(&from.Row)
				}
				a := progress.Advance{To: test.to, Head: 99, Token: g.Token}
				if test.token != "" {
					a.Token = test.token
				}
				if audited {
					a.Marks = []progress.Mark{{Range: store.Range{First: 11, Last: 12}, Missing: 2, State: progress.Void}}
				}
				tx := g.Begin(t)
				moved, ok, err := g.Guard(t.Context(), tx, "c", from, a)
				if err != nil || ok != test.want {
					t.Fatalf("the guard returned %v, %v; want %v", ok, err, test.want)
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
				if p := g.Loaded(t); p.Position != test.to || p.Revision != from.Revision+1 || p.Version != moved.Version {
					t.Errorf("afterwards the progress is %+v, the guard returned %+v", p, moved)
				}
			})
		}
	}
}

// A row that was moved, for example by VACUUM FULL, is loaded again by its name.
func TestGuardOfAMovedRow(t *testing.T) {
	g := progresstest.New(t)
	for _, want := range []bool{true, false} {
		from := g.Loaded(t)
		if !want {
			g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) SELECT 'other' || n FROM generate_series(1, 9) AS n`)
			g.Exec(t, `UPDATE consumer_checkpoints SET updated_at = clock_timestamp() WHERE consumer_name = 'c'`)
		}
		tx := g.Begin(t)
		if _, ok, err := g.Guard(t.Context(), tx, "c", from, progress.Advance{To: 12, Token: g.Token}); err != nil || ok != want {
			t.Fatalf("the guard returned %v, %v; want %v", ok, err, want)
		}
		_ = tx.Rollback()
	}
	if p := g.Loaded(t); p.Position != 10 || p.Revision != 0 {
		t.Fatalf("the progress is %+v", p)
	}
}

// Two workers both believe that they own the consumer. The second guard waits for the first
// batch, and then finds that the progress has changed.
func TestSecondGuardWaitsAndFails(t *testing.T) {
	for _, position := range []int64{10, 12} { // 10: only a late event, the position stays
		g := progresstest.New(t)
		from := g.Loaded(t)
		a := progress.Advance{To: position, Token: g.Token}
		first := g.Begin(t)
		if _, ok, err := g.Guard(t.Context(), first, "c", from, a); err != nil || !ok {
			t.Fatal(ok, err)
		}
		second := g.Begin(t)
		type verdict struct {
			ok  bool
			err error
		}
		done := make(chan verdict, 1)
		go func() {
			_, ok, err := g.Guard(context.Background(), second, "c", from, a)
			done <- verdict{ok, err}
		}()
		pgtest.AwaitBlocked(t, g.DB)
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		if v := <-done; v.ok || v.err != nil {
			t.Fatalf("position %d: the second guard returned %+v", position, v)
		}
	}
}

// A worker whose process hangs in a batch does not hold the consumer for longer than a batch
// may take.
func TestServerEndsAnIdleBatch(t *testing.T) {
	g := progresstest.New(t)
	g.Checkpoints = g.As(t, g.Worker, 50*time.Millisecond)
	from := g.Loaded(t)
	hung := g.Begin(t)
	if _, ok, err := g.Guard(t.Context(), hung, "c", from, progress.Advance{To: 12, Token: g.Token}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	next := g.Begin(t)
	_, ok, err := g.Guard(t.Context(), next, "c", from, progress.Advance{To: 12, Token: g.Token})
	if err != nil || !ok {
		t.Fatalf("the next batch's guard returned %v, %v", ok, err)
	}
	_, err = hung.Exec(`SELECT 1`)
	if err == nil {
		t.Fatal("the session of the hung batch still exists")
	}
}

// A guard that waits for another batch and then fails keeps the row's lock until its
// transaction ends. If its connection is dead, the worker never learns of the failure. The
// server then ends the transaction.
func TestServerEndsAnIdleFailedGuard(t *testing.T) {
	g := progresstest.New(t)
	from := g.Loaded(t)
	a := progress.Advance{To: 12, Token: g.Token}
	first := g.Begin(t)
	if _, ok, err := g.Guard(t.Context(), first, "c", from, a); err != nil || !ok {
		t.Fatal(ok, err)
	}
	brief, refused := g.As(t, g.Worker, 50*time.Millisecond), g.Begin(t)
	done := make(chan error, 1)
	go func() {
		_, ok, err := brief.Guard(context.Background(), refused, "c", from, a)
		if ok {
			err = errors.New("the guard passed")
		}
		done <- err
	}()
	pgtest.AwaitBlocked(t, g.DB)
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if _, ok, err := g.Guard(ctx, g.Begin(t), "c", g.Loaded(t), progress.Advance{To: 15, Token: g.Token}); err != nil || !ok {
		t.Fatalf("the next batch's guard returned %v, %v", ok, err)
	}
}

func TestLoadWithoutACheckpointFails(t *testing.T) {
	g := progresstest.New(t)
	g.Exec(t, `DELETE FROM consumer_checkpoints`)
	if p, err := g.Load(t.Context(), g.DB, "c"); err == nil {
		t.Fatalf("loaded %+v without a row", p)
	}
}

func TestLoadAndReplaceOpenRanges(t *testing.T) {
	g := progresstest.New(t)
	commit := func(from *progress.State, a progress.Advance) {
		t.Helper()
		a.Token = g.Token
		tx := g.Begin(t)
		if _, ok, err := g.Guard(t.Context(), tx, "c", from, a); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	commit(g.Loaded(t), progress.Advance{To: 30, Marks: []progress.Mark{{Range: store.Range{First: 11, Last: 15}, Missing: 5, State: progress.Open}, {Range: store.Range{First: 20, Last: 20}, Missing: 1, State: progress.Open}}})
	p := g.Loaded(t)
	if len(p.Open) != 2 || p.Open[0].First != 11 || p.Open[0].Last != 15 || p.Open[1].First != 20 {
		t.Fatalf("open ranges %+v", p.Open)
	}
	seen := p.Open[0].Seen
	commit(p, progress.Advance{To: 30, Gone: []int64{p.Open[0].ID}, Marks: []progress.Mark{
		{Range: store.Range{First: 11, Last: 12}, Missing: 2, State: progress.Open, Seen: &seen},
		{Range: store.Range{First: 13, Last: 13}, Missing: 1, State: progress.Late, Seen: &seen},
		{Range: store.Range{First: 14, Last: 15}, Missing: 2, State: progress.Void, Seen: &seen},
	}})
	p = g.Loaded(t)
	if len(p.Open) != 2 || p.Open[0].Last != 12 || !p.Open[0].Seen.Equal(seen) || p.Open[1].First != 20 {
		t.Fatalf("open ranges %+v", p.Open)
	}
	var rows, closed int
	if err := g.DB.QueryRow(`SELECT count(*), count(closed_at) FROM consumer_gap_skips`).Scan(&rows, &closed); err != nil || rows != 4 || closed != 2 {
		t.Fatalf("%d audit rows, %d closed, %v", rows, closed, err)
	}
}

// A worker pauses a consumer only if the consumer's progress is unchanged and the consumer is
// assigned to the worker. Otherwise the reason may be outdated.
func TestPauseNeedsUnchangedProgress(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, g progresstest.Guarded) // after the load
		want   bool
	}{
		"nothing changed": {change: func(*testing.T, progresstest.Guarded) {}, want: true},
		"moved since": {change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		}},
		"assigned to another worker": {change: func(t *testing.T, g progresstest.Guarded) { g.Assign(t, uuid.New()) }},
		"not assigned":               {change: func(t *testing.T, g progresstest.Guarded) { g.Exec(t, `DELETE FROM consumer_assignments`) }},
		"paused already": {change: func(t *testing.T, g progresstest.Guarded) {
			g.Exec(t, `UPDATE consumer_checkpoints SET paused_at = clock_timestamp()`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := progresstest.New(t)
			from := g.Loaded(t)
			test.change(t, g)
			if ok, err := g.Pause(t.Context(), g.DB, "c", from, "why"); err != nil || ok != test.want {
				t.Errorf("paused: %v, %v; want %v", ok, err, test.want)
			}
			var operations int
			if err := g.DB.QueryRow(`SELECT count(*) FROM consumer_operations`).Scan(&operations); err != nil || (operations == 1) != test.want {
				t.Errorf("%d operations, %v", operations, err)
			}
			if p := g.Loaded(t); test.want && (p.Paused == nil || p.Paused.Reason != "why" || p.Revision != from.Revision+1) {
				t.Errorf("afterwards the progress is %+v", p)
			}
		})
	}
}

// The role's lock_timeout does not end a guard that waits for the row, and applies to the
// handlers' statements.
func TestGuardWaitsBeyondLockTimeout(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	holder := g.Begin(t)
	if _, err := holder.Exec(`SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	tx, err := g.OpenSet(t, "lock_timeout", "100").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	from := g.Loaded(t)
	guarded := make(chan error, 1)
	go func() {
		_, ok, err := g.Guard(t.Context(), tx, "c", from, progress.Advance{To: 11, Token: g.Token})
		if err == nil && !ok {
			err = errors.New("the guard failed")
		}
		guarded <- err
	}()
	pgtest.AwaitBlockedFor(t, g.DB, 300*time.Millisecond)
	_ = holder.Rollback()
	if err := <-guarded; err != nil {
		t.Fatal(err)
	}
	var limit string
	if err := tx.QueryRow(`SHOW lock_timeout`).Scan(&limit); err != nil || limit != "100ms" {
		t.Errorf("after the guard lock_timeout is %q, %v", limit, err)
	}
}
