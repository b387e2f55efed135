package partitions

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

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
	u := Unit{Slots: partition.All, Log: g.Bind(t, log), Key: Key{consumer.ByKey("owner", func(e store.PersistedEvent) string { return "owner of " + e.AggregateID })}}
	slotOf := func(key string, position int64, want int) {
		t.Helper()
		if slot, err := u.slotOfDeadLetter(t.Context(), g.DB, g.Token, progress.KeyedDeadLetter{Position: position, Key: key}); err != nil || slot != want {
			t.Errorf("position %d is in slot %03x, %v; want %03x", position, slot, err, want)
		}
	}
	slotOf("a", b-1, partition.Slot("a"))
	slotOf("b", b, partition.Slot("owner of b"))
	slotOf("c", b+1, partition.Slot("c"))
	u.Slots = partition.Range{First: 7, Last: 7}
	slotOf("a", b-1, 7) // of a unit that lacks the slot of its key
}
