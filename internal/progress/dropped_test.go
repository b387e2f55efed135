package progress_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// A write of a batch of which a trigger drops rows is an error that names the table. Otherwise a late
// event or a dead letter would be lost, or an event would be handled twice.
func TestDroppedRowsOfABatch(t *testing.T) {
	t.Parallel()
	open := progress.Mark{Range: store.Range{First: 11, Last: 11}, Missing: 1, State: progress.Open}
	letter := progress.DeadLetter{Type: "T", ID: "a", Order: progress.Order{Type: "T", ID: "a"}, Position: 5, EventID: uuid.New(), EventType: "E", Error: "no", Attempts: 1}
	for _, c := range []struct {
		on, table string
		write     func(g progresstest.Guarded, from *progress.State) error
	}{
		{"INSERT", "consumer_gap_skips", func(g progresstest.Guarded, from *progress.State) error {
			_, _, err := g.Guard(t.Context(), g.Begin(t), "c", from, progress.Advance{To: 12, Token: g.Token, Marks: []progress.Mark{open}})
			return err
		}},
		{"DELETE", "consumer_gap_skips", func(g progresstest.Guarded, from *progress.State) error {
			open.State = progress.Late
			_, _, err := g.Guard(t.Context(), g.Begin(t), "c", from, progress.Advance{To: 12, Token: g.Token, Gone: []int64{from.Open[0].ID}, Marks: []progress.Mark{open}})
			return err
		}},
		{"UPDATE", "consumer_checkpoints", func(g progresstest.Guarded, from *progress.State) error {
			tx, advance := g.Begin(t), progress.Advance{To: 12, Token: g.Token}
			_, ok, err := g.Guard(t.Context(), tx, "c", from, advance)
			if ok || err != nil {
				t.Errorf("the guard returns %v, %v", ok, err)
			}
			return g.Refused(t.Context(), tx, "c", from, advance)
		}},
		{"INSERT", "consumer_dead_letters", func(g progresstest.Guarded, _ *progress.State) error {
			letter.Position = 6
			return g.AddDeadLetters(t.Context(), g.Begin(t), "c", []progress.DeadLetter{letter})
		}},
		{"DELETE", "consumer_dead_letters", func(g progresstest.Guarded, _ *progress.State) error {
			return g.Retried(t.Context(), g.Begin(t), "c", &progress.Retry{Position: 5}, "")
		}},
		{"DELETE", "consumer_dead_letters", func(g progresstest.Guarded, _ *progress.State) error {
			return g.Retried(t.Context(), g.Begin(t), "c", &progress.Retry{Position: 5, Forget: true}, "")
		}},
		{"UPDATE", "consumer_dead_letters", func(g progresstest.Guarded, _ *progress.State) error {
			return g.Retried(t.Context(), g.Begin(t), "c", &progress.Retry{Position: 5, Err: errors.New("no")}, "no")
		}},
		{"INSERT", "consumer_receipts", func(g progresstest.Guarded, from *progress.State) error {
			_, _, err := g.Guard(t.Context(), g.Begin(t), "c", from, progress.Advance{To: 12, Token: g.Token, Receipt: receiptTo(12)})
			return err
		}},
	} {
		t.Run(c.on+" "+c.table, func(t *testing.T) {
			g := progresstest.New(t)
			g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('c', gen_random_uuid(), 11, 11, 1, 'open', 12, 12)`)
			if err := g.AddDeadLetters(t.Context(), g.DB, "c", []progress.DeadLetter{letter}); err != nil {
				t.Fatal(err)
			}
			g.DropRows(t, c.on, c.table)
			err := c.write(g, g.Loaded(t))
			names := c.table
			if strings.HasSuffix(names, "gap_skips") || strings.HasSuffix(names, "receipts") {
				names = "consumer_gap_skips or consumer_receipts" // one statement writes both
			}
			if want := "leaves out rows of " + names + " without an error: a BEFORE trigger"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %s", err, want)
			}
		})
	}
}

// A guard is refused without an error if the progress or the assignment has changed.
func TestRefusedWithoutATrigger(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]error{
		`UPDATE consumer_checkpoints SET revision = revision + 1`:         nil,
		`DELETE FROM consumer_checkpoints`:                                nil,
		`DELETE FROM consumer_assignments`:                                nil,
		`SELECT setval('events_global_position_seq', 11)`:                 nil,
		`UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`: store.ErrIncarnation,
	} {
		g := progresstest.New(t)
		from := g.Loaded(t)
		g.Exec(t, change)
		if err := g.Refused(t.Context(), g.Begin(t), "c", from, progress.Advance{To: 12, Token: g.Token}); !errors.Is(err, want) {
			t.Errorf("after %s: %v, want %v", change, err, want)
		}
	}
}
