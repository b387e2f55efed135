package consume

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
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
	return h.rescaleUpper(ctx, func(ctx context.Context, c *consumerLoop, tx *sql.Tx) (*progress.Rescaled, error) {
		return c.merge(ctx, tx, "all", partition.All, []string{"all#000-7ff", "all#800-fff"}, 1)
	})
}

// split splits the upper half into two units.
func (h *stepper) split(ctx context.Context) (*progress.Rescaled, error) {
	return h.rescaleUpper(ctx, func(ctx context.Context, c *consumerLoop, tx *sql.Tx) (*progress.Rescaled, error) {
		return c.split(ctx, tx, c.unit.slots.Children(4), 4)
	})
}

// rescaleUpper lets the loop of the upper half, which has loaded it at position 1, split or
// merge.
func (h *stepper) rescaleUpper(ctx context.Context, replace func(ctx context.Context, c *consumerLoop, tx *sql.Tx) (*progress.Rescaled, error)) (r *progress.Rescaled, err error) {
	loop := h.newLoop(h.unit("all#800-fff"))
	defer loop.reader.Close()
	loop.progress = &progress.State{Position: 1, Token: h.frontier.Value().Token}
	err = loop.inTransaction(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = replace(ctx, loop, tx)
		return err
	})
	return r, err
}

// Units are merged if they cover the target's slots, are at one position, belong to this
// worker, and run.
func TestCanMerge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(parts []progress.Part) []progress.Part
		want   bool
	}{
		"all of it":         {func(parts []progress.Part) []progress.Part { return parts }, true},
		"none":              {func([]progress.Part) []progress.Part { return nil }, false},
		"one is missing":    {func(parts []progress.Part) []progress.Part { return parts[1:] }, false},
		"one is paused":     {func(parts []progress.Part) []progress.Part { parts[2].Paused = true; return parts }, false},
		"one is another's":  {func(parts []progress.Part) []progress.Part { parts[0].Mine = false; return parts }, false},
		"one is behind":     {func(parts []progress.Part) []progress.Part { parts[1].Position--; return parts }, false},
		"one selects more":  {func(parts []progress.Part) []progress.Part { parts[2].Scope = `{}`; return parts }, false},
		"one is further":    {func(parts []progress.Part) []progress.Part { parts[2].Position++; return parts }, false},
		"one is no unit":    {func(parts []progress.Part) []progress.Part { parts[1].Unit = "c#5"; return parts }, false},
		"one is there more": {func(parts []progress.Part) []progress.Part { return append(parts, parts[2]) }, false},
	} {
		var parts []progress.Part
		for _, r := range partition.Cut(3) {
			parts = append(parts, progress.Part{Unit: partition.Name("c", r), Position: 9, Mine: true})
		}
		if got := canMerge(partition.All, c.change(parts)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
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

// keyed is a consumer with a key of its own.
type keyed struct{ steppedConsumer }

func (keyed) Partitions() consumer.Partitions {
	return consumer.Partitions{Count: 1, Key: consumer.ByKey("owner", func(e store.PersistedEvent) string { return "owner of " + e.AggregateID })}
}

// A dead letter goes with the key of its event. If the event is gone, it goes with the
// aggregate, and not with the next event.
func TestSlotOfADeadLetter(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	h := newStepper(t, d.DB, storepostgres.NewStore(nil), keyed{steppedConsumer{"all", nil, new(atomic.Bool)}})
	for _, aggregate := range []string{"a", "b", "c"} {
		appendOne(t, d.DB, aggregate)
	}
	d.Exec(t, `DELETE FROM events WHERE global_position <> 2`)
	h.stepFrontierTo(t, 2)
	slotOf := func(position int64, want int) {
		t.Helper()
		key := string(rune('a' + position - 1))
		if slot, err := h.loop.slotOfDeadLetter(t.Context(), d.DB, h.frontier.Value().Token, progress.KeyedDeadLetter{Position: position, Key: key}); err != nil || slot != want {
			t.Errorf("position %d is in slot %03x, %v; want %03x", position, slot, err, want)
		}
	}
	slotOf(1, partition.Slot("a"))
	slotOf(2, partition.Slot("owner of b"))
	slotOf(3, partition.Slot("c"))
	h.loop.unit.slots = partition.Range{First: 7, Last: 7}
	slotOf(1, 7) // of a unit that lacks the slot of its key
}

// A failed split is neither retried nor waited for when no partitions are wanted any more.
func TestRescaleForgetsFailuresWithoutDemand(t *testing.T) {
	c := &consumerLoop{w: &Worker{observers: &runtime.Observers{}, coord: coord.New(coord.Config{})}, unit: &unit{name: "c"}}
	c.rescaling = rescaling{wanted: 4, failures: 1, due: time.Now().Add(-time.Second)}
	if c.rescale(t.Context()) {
		t.Error("it goes on at once")
	}
	if at, ok := c.nextCheck(); ok {
		t.Errorf("the next check is at %v", at)
	}
}

// A page that was polled within a bound does not cover the positions beyond it.
func TestNewBoundPollsAgain(t *testing.T) {
	c := &consumerLoop{}
	for i, step := range []struct {
		bounded bool
		upTo    int64
		news    bool
	}{{true, 5, true}, {true, 5, false}, {true, 7, true}, {false, 0, true}, {false, 0, false}} {
		c.polled = &frontier.Value{}
		if news := c.bound(step.bounded, step.upTo); news != step.news || (c.polled == nil) != step.news {
			t.Errorf("step %d is new: %v, and polls again: %v; want %v", i, news, c.polled == nil, step.news)
		}
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
		c := &consumerLoop{progress: &progress.State{}}
		if c.unready() {
			t.Fatal("it is not ready without a failure")
		}
		if trouble(c); !c.unready() {
			t.Errorf("it is ready with %s", name)
		}
	}
}

// The pause after failures ends when another number of partitions is wanted.
func TestNewDemandEndsPause(t *testing.T) {
	due := time.Now().Add(time.Minute)
	r := rescaling{wanted: 8, failures: 7, due: due}
	if r.setWanted(8); r.failures != 7 || r.due != due {
		t.Errorf("the same number: %+v", r)
	}
	if r.setWanted(4); r.failures != 0 || !r.due.IsZero() {
		t.Errorf("another number: %+v", r)
	}
}
