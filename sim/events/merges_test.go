package events

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// A merge is refused that is rolled back although nothing has failed. Whether it had
// read what its parts watch says why. Nothing else is written down.
func TestRefusedMergesAreWrittenDown(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('parts-1', 10), ('parts-1#000-7ff', 10), ('parts-1#800-fff', 10)`)
	units := []string{"parts-1#000-7ff", "parts-1#800-fff"}
	lockParts := func(r *progress.Rescale) []progress.Part {
		parts, err := r.LockParts(t.Context(), units, 1)
		if err != nil || len(parts) != 2 {
			t.Fatalf("the parts are %v: %v", parts, err)
		}
		return parts
	}
	refused := map[string]struct {
		do   func(tx *sql.Tx, r *progress.Rescale)
		want []string
	}{
		"before it has locked a part": {func(*sql.Tx, *progress.Rescale) {}, nil},
		"a split": {func(tx *sql.Tx, r *progress.Rescale) {
			if _, _, ok, err := r.LockUnit(t.Context(), "parts-1#000-3ff", 2); ok || err != nil {
				t.Fatal(ok, err)
			}
		}, nil},
		"a part is unfit": {func(_ *sql.Tx, r *progress.Rescale) { lockParts(r) }, []string{history.RefusedParts}},
		"an event has appeared": {func(_ *sql.Tx, r *progress.Rescale) {
			lockParts(r)
			if _, _, err := r.Open(t.Context(), units); err != nil {
				t.Fatal(err)
			}
		}, []string{history.RefusedEvent}},
		"it fails": {func(tx *sql.Tx, r *progress.Rescale) {
			lockParts(r)
			if _, err := tx.ExecContext(t.Context(), `SELECT 1 / 0`); err == nil {
				t.Fatal("1 / 0 is a number")
			}
		}, nil},
		"it happens": {func(tx *sql.Tx, r *progress.Rescale) {
			if err := r.Merge(t.Context(), lockParts(r), "parts-1", nil, "", 1); err != nil {
				t.Fatal(err)
			}
			if err := r.Record(t.Context(), "merge", progress.Rescaled{From: units, To: []string{"parts-1"}}); err != nil {
				t.Fatal(err)
			}
			g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('parts-1#000-7ff', 10), ('parts-1#800-fff', 10)`)
		}, nil},
	}
	for _, mode := range network.ExecModes {
		for name, c := range refused {
			t.Run(name+", "+mode.String(), func(t *testing.T) {
				config, err := pgx.ParseConfig(g.URL)
				if err != nil {
					t.Fatal(err)
				}
				config.DefaultQueryExecMode = mode
				h := history.New(time.Now())
				network.New(nil).Carry(config)
				Scenario{Scope: []history.Scope{{Name: "other-1", Partitioned: true}, {Name: "parts-1", Partitioned: true}, {Name: "all"}}}.watchMerges(config, h, "worker 1.1")
				db := stage.OpenPool(config, 1)
				defer func() { _ = db.Close() }()
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				r, ok, err := g.Rescale(t.Context(), tx, "parts-1", g.Token)
				if !ok || err != nil {
					t.Fatalf("%v, %v", ok, err)
				}
				c.do(tx, r)
				_ = tx.Rollback() // unless it was committed
				var why []string
				for _, x := range h.Records() {
					why = append(why, x.About.(history.Refusal).Why)
					if x.Kind != history.MergeRefused || x.Who != "worker 1.1" || x.Consumer != "parts-1" {
						t.Errorf("written down is %+v", x)
					}
				}
				if !slices.Equal(why, c.want) {
					t.Errorf("written down is %q, want %q", why, c.want)
				}
			})
		}
	}
}
