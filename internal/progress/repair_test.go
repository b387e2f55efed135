package progress_test

import (
	"database/sql"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// committedByHandler commits a batch to position 20 with further writes, as a handler would.
func committedByHandler(t *testing.T, g progresstest.Guarded, more ...func(tx *sql.Tx)) progress.Committed {
	t.Helper()
	a := progress.Advance{To: 20, Head: 30, Token: g.Token}
	a.Marks = []progress.Mark{{Range: store.Range{First: 15, Last: 15}, Missing: 1, State: progress.Void}}
	tx := g.Begin(t)
	moved, ok, err := g.Guard(t.Context(), tx, "c", g.Loaded(t), a)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	b := progress.Committed{After: moved.Version, To: a.To, Head: a.Head, Token: a.Token}
	for _, write := range more {
		write(tx)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRepairNeedsTheRowOfTheBatch(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, g progresstest.Guarded, b *progress.Committed)
		want   bool
	}{
		"as the batch left it": {func(*testing.T, progresstest.Guarded, *progress.Committed) {}, true},
		"the answer to the repair was lost": {func(t *testing.T, g progresstest.Guarded, b *progress.Committed) {
			if ok, err := g.Repair(t.Context(), g.DB, "c", *b, progress.Repair{SetBack: progress.SetBack{To: 12}}); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}, true},
		"another worker went on": {func(t *testing.T, g progresstest.Guarded, b *progress.Committed) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
			_ = g.DB.QueryRow(`SELECT ctid::text, xmin::text FROM consumer_checkpoints`).Scan(&b.After.Row, &b.After.Author)
		}, false},
		"another worker's batch has the same revision and place": {func(t *testing.T, g progresstest.Guarded, b *progress.Committed) {
			b.After.Author = "1"
		}, false},
		"in another incarnation": {func(t *testing.T, g progresstest.Guarded, b *progress.Committed) { b.Token = uuid.NewString() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := progresstest.New(t)
			b := committedByHandler(t, g)
			c.change(t, g, &b)
			seen := time.Unix(1, 0)
			m := progress.Repair{SetBack: progress.SetBack{To: 12, Through: 12, Marks: []progress.Mark{{Range: store.Range{First: 11, Last: 11}, Missing: 1, State: progress.Open, Seen: &seen}}}}
			ok, err := g.Repair(t.Context(), g.DB, "c", b, m)
			if err != nil || ok != c.want {
				t.Fatalf("repaired: %v, %v; want %v", ok, err, c.want)
			}
			p := g.Loaded(t)
			if at := map[bool]int64{true: 12, false: 20}[c.want]; p.Position != at {
				t.Errorf("the checkpoint is at %d, want %d", p.Position, at)
			}
			var operations, void int
			if err := g.DB.QueryRow(`SELECT (SELECT count(*) FROM consumer_operations), (SELECT count(*) FROM consumer_gap_skips WHERE state = 'void')`).Scan(&operations, &void); err != nil {
				t.Fatal(err)
			}
			if once := map[bool]int{true: 1}[c.want]; operations != once || void != 1-once {
				t.Errorf("%d operations and %d rows of void positions", operations, void)
			}
			if name == "as the batch left it" && (len(p.Open) != 1 || !p.Open[0].Seen.Equal(seen) || p.Revision != b.After.Revision+1) {
				t.Errorf("afterwards the progress is %+v", p)
			}
		})
	}
}

// A batch that ends early reverts its progress in its own transaction only. The handler may
// have ended that transaction, and then nothing may be written.
func TestShortenWritesInTheBatchsTransactionOnly(t *testing.T) {
	t.Parallel()
	at := func(g progresstest.Guarded, q store.Querier) (position int64, row string) {
		if err := q.QueryRowContext(t.Context(), `SELECT last_position, ctid::text FROM consumer_checkpoints`).Scan(&position, &row); err != nil {
			t.Fatal(err)
		}
		return position, row
	}
	m := progress.SetBack{To: 12, Through: 12}
	g := progresstest.New(t)
	committedByHandler(t, g, func(tx *sql.Tx) {
		_, row := at(g, tx)
		b := progress.Committed{To: 20, Head: 30, Token: g.Token}
		if err := tx.QueryRow(`SELECT revision, xmin::text FROM consumer_checkpoints`).Scan(&b.After.Revision, &b.After.Author); err != nil {
			t.Fatal(err)
		}
		b.After.Row = row
		shortened, ok, err := g.Shorten(t.Context(), tx, "c", b, m)
		if position, row := at(g, tx); err != nil || !ok || position != 12 || shortened.Row != row || shortened.Revision != b.After.Revision {
			t.Errorf("in the transaction: %+v, %v, %v; the checkpoint is at %d in %s", shortened, ok, err, position, row)
		}
	})
	g = progresstest.New(t)
	b := committedByHandler(t, g)
	another := g.Begin(t)
	defer func() { _ = another.Rollback() }()
	for name, q := range map[string]store.Querier{"no transaction": g.DB, "another": another} {
		_, ok, err := g.Shorten(t.Context(), q, "c", b, m)
		if position, _ := at(g, q); err != nil || ok || position != 20 {
			t.Errorf("%s: %v, %v; the checkpoint is at %d", name, ok, err, position)
		}
	}
}

// A repair removes the dead letters that the batch added for events that it did not handle. A
// batch of late events or of a dead letter fails far below older dead deadLetters, which stay.
func TestRepairKeepsOtherDeadLetters(t *testing.T) {
	g := progresstest.New(t)
	add := func(tx *sql.Tx, positions ...int64) {
		t.Helper()
		var deadLetters []progress.DeadLetter
		for _, p := range positions {
			deadLetters = append(deadLetters, progress.DeadLetter{Order: progress.Order{Type: "Order", ID: strconv.FormatInt(p, 10)}, Type: "Order", ID: strconv.FormatInt(p, 10), Position: p, EventID: uuid.New(), Error: "refused"})
		}
		if err := g.AddDeadLetters(t.Context(), tx, "c", deadLetters); err != nil {
			t.Fatal(err)
		}
	}
	earlier := g.Begin(t)
	add(earlier, 5, 9)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('d', 18, 'Order', 'd', gen_random_uuid(), '', 1)`)
	if err := earlier.Commit(); err != nil {
		t.Fatal(err)
	}
	b := committedByHandler(t, g, func(tx *sql.Tx) { add(tx, 6, 12, 18) })
	if ok, err := g.Repair(t.Context(), g.DB, "c", b, progress.Repair{SetBack: progress.SetBack{To: 10, Through: 7}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	var left string
	if err := g.DB.QueryRow(`SELECT string_agg(consumer_name || global_position, ' ' ORDER BY global_position) FROM consumer_dead_letters`).Scan(&left); err != nil || left != "c5 c6 c9 d18" {
		t.Errorf("the dead letters %s are left, want c5 c6 c9 d18; %v", left, err)
	}
}
