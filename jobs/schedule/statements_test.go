package schedule

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
)

// A schedule moves on from the tick, and with the times, that a process has read: else
// another process was faster, or another program has given it other times.
func TestAdvance(t *testing.T) {
	d := pgtest.Empty(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	names, err := tables.ParseJobs("", "")
	if err != nil {
		t.Fatal(err)
	}
	tick := time.Date(2026, 1, 1, 0, 0, 0, 1_000, time.UTC)
	after := tick.Add(time.Hour)
	if err := place(t.Context(), d.DB, names.Schedules, "s", "h", tick); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		about string
		read  row
		moves bool
	}{
		{"another tick", row{name: "s", hash: "h", next: tick.Add(time.Microsecond)}, false},
		{"other times", row{name: "s", hash: "i", next: tick}, false},
		{"another name", row{name: "t", hash: "h", next: tick}, false},
		{"what there is", row{name: "s", hash: "h", next: tick}, true},
		{"the same once more", row{name: "s", hash: "h", next: tick}, false},
	} {
		if _, moved, err := advance(t.Context(), d.DB, names.Schedules, c.read, tick, after); err != nil || moved != c.moves {
			t.Errorf("%s: moved %t, %v", c.about, moved, err)
		}
	}
	rows, _, err := look(t.Context(), d.DB, names.Schedules, []string{"s"})
	if err != nil || len(rows) != 1 || !rows[0].next.Equal(after) {
		t.Errorf("it is at %+v, %v, want %v", rows, err, after)
	}
}
