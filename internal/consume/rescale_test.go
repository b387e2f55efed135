package consume

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// One part has handled an event, and another part at the same position still watches the
// event's position. They cannot be merged. Merged, they would handle the event again.
func TestMergeRefusesAppearedEvent(t *testing.T) {
	t.Parallel()
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "a")
	h.stepFrontierTo(t, 1)
	halve(t, d, 1)
	d.Exec(t, openRange, "all#000-7ff", 1)
	if r, err := h.merge(t.Context()); r != nil || err != nil {
		t.Fatalf("they are merged: %+v, %v", r, err)
	}
	d.Exec(t, `UPDATE consumer_gap_skips SET state = 'late', closed_at = now()`) // the late event was read
	if r, err := h.merge(t.Context()); r == nil || err != nil {
		t.Errorf("they are not merged: %v", err)
	}
}

// A batch of an earlier owner may be in flight when its unit is to be replaced. The split
// or merge waits for the batch, and uses the row that it left.
func TestRescalingWaitsForABatch(t *testing.T) {
	t.Parallel()
	// beside runs a split or a merge while a batch is in flight.
	beside := func(t *testing.T, d *pgtest.Database, batch []string, rescale func(ctx context.Context) (*progress.Rescaled, error)) (r *progress.Rescaled) {
		t.Helper()
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range batch {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() {
			var err error
			r, err = rescale(context.WithoutCancel(t.Context()))
			done <- err
		}()
		pgtest.AwaitBlocked(t, d.DB)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return r
	}
	t.Run("split", func(t *testing.T) {
		t.Parallel()
		d, h := newLedgerStepper(t)
		halve(t, d, 4)
		r := beside(t, d, []string{
			`UPDATE consumer_checkpoints SET last_position = 3, revision = revision + 1 WHERE consumer_name = 'all#800-fff'`,
			`INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
			SELECT consumer_name, worker_id, 2, 2, 1, 'open', 3, 3 FROM consumer_assignments WHERE consumer_name = 'all#800-fff'`,
			`INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
			VALUES ('all#800-fff', 3, 'A', 'a', gen_random_uuid(), 'E', 1)`, // in slot ca9
		}, h.split)
		if r == nil {
			t.Fatal("it is not split")
		}
		for query, want := range map[string]string{
			`SELECT string_agg(consumer_name || ' ' || last_position || ' ' || revision, ', ' ORDER BY consumer_name COLLATE "C") FROM consumer_checkpoints WHERE split_at IS NULL`: "all#000-7ff 1 0, all#800-bff 3 2, all#c00-fff 3 2",
			`SELECT string_agg(consumer_name || ' ' || gap_position, ', ' ORDER BY consumer_name COLLATE "C") FROM consumer_gap_skips WHERE state = 'open'`:                         "all#800-bff 2, all#c00-fff 2",
			`SELECT string_agg(consumer_name || ' ' || global_position, ', ') FROM consumer_dead_letters`:                                                                           "all#c00-fff 3",
		} {
			var got string
			if err := d.DB.QueryRow(query).Scan(&got); err != nil || got != want {
				t.Errorf("%s\ngives %q, %v; want %q", query, got, err, want)
			}
		}
	})
	// The batch delivers an event that both parts watch. The other part has not read it.
	t.Run("merge", func(t *testing.T) {
		t.Parallel()
		d, h := newLedgerStepper(t)
		appendOne(t, d.DB, "a")
		h.stepFrontierTo(t, 1)
		halve(t, d, 1)
		d.Exec(t, openRange, "all#000-7ff", 1)
		d.Exec(t, openRange, "all#800-fff", 1)
		r := beside(t, d, []string{
			`UPDATE consumer_checkpoints SET revision = revision + 1 WHERE consumer_name = 'all#800-fff'`,
			`UPDATE consumer_gap_skips SET state = 'late', closed_at = now() WHERE consumer_name = 'all#800-fff'`,
		}, h.merge)
		if r != nil {
			t.Errorf("they are merged: %+v", r)
		}
	})
}

// halve splits the consumer "all" into two units at position 1. wanted is its wanted number
// of units.
func halve(t *testing.T, d *pgtest.Database, wanted int) {
	t.Helper()
	d.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('all#000-7ff', 1), ('all#800-fff', 1)`)
	d.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id, partitions) SELECT unnest(ARRAY['all#000-7ff', 'all#800-fff']), worker_id, $1::int FROM consumer_assignments`, wanted)
}

// openRange makes a unit watch a position.
const openRange = `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
	SELECT consumer_name, worker_id, $2::bigint, $2::bigint, 1, 'open', 1, 1 FROM consumer_assignments WHERE consumer_name = $1::text`

// merge merges the halves into one unit.
func (h *stepper) merge(ctx context.Context) (*progress.Rescaled, error) {
	return h.rescaleUpper(ctx, func(ctx context.Context, u partitions.Unit, tx *sql.Tx, token string) (*progress.Rescaled, error) {
		return u.Merge(ctx, tx, token, partition.All, []string{"all#000-7ff", "all#800-fff"}, 1)
	})
}

// split splits the upper half into two units.
func (h *stepper) split(ctx context.Context) (*progress.Rescaled, error) {
	return h.rescaleUpper(ctx, func(ctx context.Context, u partitions.Unit, tx *sql.Tx, token string) (*progress.Rescaled, error) {
		return u.Split(ctx, tx, token, u.Slots.Children(4), 4)
	})
}

// rescaleUpper lets the upper half, whose progress was loaded at position 1, split or merge.
func (h *stepper) rescaleUpper(ctx context.Context, replace func(ctx context.Context, u partitions.Unit, tx *sql.Tx, token string) (*progress.Rescaled, error)) (r *progress.Rescaled, err error) {
	u := h.unit("all#800-fff").rescaling(&h.shared)
	err = h.inTransaction(ctx, h.limits.quick, h.limits.quick, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = replace(ctx, u, tx, h.frontier.Value().Token)
		return err
	})
	return r, err
}

// A unit whose dead letter has a key of another unit is not split. In a child, the dead
// letter would never be found again.
func TestNoSplitWithADeadLetterOfAnotherKey(t *testing.T) {
	t.Parallel()
	d, h := newLedgerStepper(t)
	halve(t, d, 4)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		VALUES ('all#800-fff', 1, 'A', 'order-1', gen_random_uuid(), 'E', 1)`) // in slot 0ba
	if r, err := h.split(t.Context()); r != nil || err == nil || !strings.Contains(err.Error(), "position 1 has a key of another unit") {
		t.Errorf("%+v, %v", r, err)
	}
	var units, deadLetters int
	if err := d.DB.QueryRow(`SELECT count(*), (SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'all#800-fff')
		FROM consumer_checkpoints WHERE split_at IS NULL`).Scan(&units, &deadLetters); err != nil || units != 2 || deadLetters != 1 {
		t.Errorf("%d units, and %d dead letters of the lower one: %v", units, deadLetters, err)
	}
}

// No part waits for a part that is paused or does not progress.
func TestUnready(t *testing.T) {
	for name, trouble := range map[string]func(c *consumerLoop){
		"a pause":               func(c *consumerLoop) { c.progress.Paused = &progress.Pause{} },
		"a handler that fails":  func(c *consumerLoop) { c.tally.Failures = 1 },
		"a database that fails": func(c *consumerLoop) { c.tally.Disturbed = 1 },
		"a failing event":       func(c *consumerLoop) { c.tally.Bisection.Until = 12 },
		"a poison event":        func(c *consumerLoop) { c.poison = &poison{} },
		"too many doubts":       func(c *consumerLoop) { c.atOpenRangeLimit = true },
	} {
		c := &consumerLoop{agenda: agenda{progress: &progress.State{}}}
		if c.unready() {
			t.Fatal("it is not ready without a failure")
		}
		if trouble(c); !c.unready() {
			t.Errorf("it is ready with %s", name)
		}
	}
}

// A dead letter goes with the key of its event. If the event is gone, it goes with the
// aggregate, and not with the next event.
func TestSlotOfADeadLetter(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	log := storepostgres.NewStore(nil)
	tx := g.Begin(t)
	for _, aggregate := range []string{"a", "b", "c"} {
		event := store.Event{AggregateType: "A", AggregateID: aggregate, EventType: "happened", EventID: uuid.New()}
		if _, err := log.Append(t.Context(), tx, store.Any(), []store.Event{event}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	g.Exec(t, `DELETE FROM events WHERE aggregate_id <> 'b'`)
	var b int64
	if err := g.DB.QueryRow(`SELECT global_position FROM events`).Scan(&b); err != nil {
		t.Fatal(err)
	}
	u := partitions.Unit{Slots: partition.All, Log: g.Bind(t, log), Key: partitions.Key{Key: consumer.ByKey("owner", func(e store.PersistedEvent) string { return "owner of " + e.AggregateID })}}
	slotOf := func(key string, position int64, want int) {
		t.Helper()
		if slot, err := u.SlotOfDeadLetter(t.Context(), g.DB, g.Token, progress.KeyedDeadLetter{Position: position, Key: key}); err != nil || slot != want {
			t.Errorf("position %d is in slot %03x, %v; want %03x", position, slot, err, want)
		}
	}
	slotOf("a", b-1, partition.Slot("a"))
	slotOf("b", b, partition.Slot("owner of b"))
	slotOf("c", b+1, partition.Slot("c"))
	u.Slots = partition.Range{First: 7, Last: 7}
	slotOf("a", b-1, 7) // of a unit that lacks the slot of its key
}

// A part that leaves a merge barrier polls at once. Its last page ended at the barrier, and
// the frontier may not move again.
func TestLeavingABarrierPollsAgain(t *testing.T) {
	parts := partition.Cut(2)
	w := &shared{env: env{reports: reports{observers: &runtime.Observers{}}}, coord: coord.New(coord.Config{})}
	unit := (&spec{consumerName: "c"}).unit(parts[0])
	c := &consumerLoop{w: w, unit: unit, agenda: agenda{unit: unit, progress: &progress.State{Position: 10}}}
	other := partitions.New((&spec{consumerName: "c"}).unit(parts[1]).rescaling(w))
	for range 2 {
		arriveAtBarrier(w, &c.agenda)
		other.Next(1, partitions.Arrival{Position: 10}, time.Now())
	}
	if _, bounded := c.rescaling.Bound(); !bounded {
		t.Fatal("the barrier is closed")
	}
	for _, again := range []bool{true, false} {
		c.polled = &frontier.Value{}
		if got := c.rescale(t.Context()); got != again || (c.polled == nil) != again {
			t.Errorf("it continues at once: %v, and polls again: %v; want %v", got, c.polled == nil, again)
		}
	}
}

// arriveAtBarrier makes a unit wait at a merge barrier.
func arriveAtBarrier(w *shared, a *agenda) {
	if !a.rescaling.Merges() {
		a.rescaling = partitions.New(a.unit.rescaling(w))
	}
	a.rescaling.Next(1, partitions.Arrival{Position: a.progress.Position}, time.Now())
}
