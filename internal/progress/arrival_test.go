package progress_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/internal/scope"
)

// A split consumer has the position of its last unit. Its own row keeps the position of the
// split: ahead of units that were reset, and behind units that went on.
func TestArrivalOfASplitConsumer(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`) // at 10
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c#000-7ff', 4), ('c#800-fff', 20)`)
	arrived := func(position int64, want bool) {
		t.Helper()
		if a, _, err := g.Arrived(t.Context(), g.DB, "c", position); err != nil || a.Handled != want || a.Paused {
			t.Errorf("at position %d: %+v, %v; want it handled: %v", position, a, err, want)
		}
	}
	arrived(4, true)
	arrived(5, false)
	g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 15 WHERE consumer_name = 'c#000-7ff'`)
	arrived(15, true)
	arrived(16, false)
}

// If a unit has not handled an event, neither has its consumer. Units of another consumer do
// not count, whatever its name is.
func TestArrivalNeedsEveryUnit(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, split_at, paused_at) VALUES ('a_c', 0, now(), now()), ('abc', 0, now(), now())`)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('a_c#000-7ff', 20), ('a_c#800-fff', 20), ('abc#000-7ff', 1), ('abc#800-fff', 1)`)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, replay)
		SELECT unit, p, 'T', 'a', gen_random_uuid(), 'E', 1, p = 6 FROM (VALUES ('a_c#800-fff', 5), ('a_c#800-fff', 6), ('abc#800-fff', 7), ('a_c', 7)) AS l(unit, p)`)
	g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT unit, gen_random_uuid(), p, p, 1, 'open', 20, 20 FROM (VALUES ('a_c#000-7ff', 8), ('abc#000-7ff', 9), ('a_c', 9)) AS s(unit, p)`)
	for position, want := range map[int64]progress.Arrival{
		4: {Handled: true}, 5: {DeadLetter: true}, 6: {Replayed: true}, 7: {Handled: true}, 8: {Open: true}, 9: {Handled: true}, 20: {Handled: true}, 21: {},
	} {
		want.Consumer, want.Position, want.Split = "a_c", 20, true
		if a, _, err := g.Arrived(t.Context(), g.DB, "a_c", position); err != nil || a != want {
			t.Errorf("at position %d: %+v, %v; want %+v", position, a, err, want)
		}
	}
}

// The name of a projection stands for the version that is no shadow, also if a version or the rest of
// a renamed consumer has that name. A consumer of no projection keeps its name.
func TestArrivalOfAProjection(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	const live, shadow = "[]", `[{"first": 0, "last": 4095, "after": 9223372036854775807}]`
	place := func(name, projection, effects string, position int64) {
		g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, scope, effects) VALUES ($1, $2, $3, $4)
			ON CONFLICT (consumer_name) DO UPDATE SET last_position = excluded.last_position, scope = excluded.scope, effects = excluded.effects`,
			name, position, `{"projection": "`+projection+`"}`, effects)
	}
	stands := func(name, want string) {
		t.Helper()
		a, _, err := g.Arrived(t.Context(), g.DB, name, 5)
		if err != nil || a.Consumer != want || a.Handled != (want == "v1" || want == "c") {
			t.Errorf("%s stands for %+v, %v; want %s", name, a, err, want)
		}
	}
	place("v1", "p", live, 5)
	place("v2", "p", shadow, 3)
	place("q1", "q", live, 5)
	stands("p", "v1")
	stands("v2", "v2")
	stands("c", "c")
	stands("r", "r")
	place("p", "", live, 9223372036854775807)
	stands("p", "v1")
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, paused_at, paused_by, paused_reason) VALUES ('gone', 9223372036854775807, now(), 'ann', 'renamed to v1: r')`)
	if a, _, err := g.Arrived(t.Context(), g.DB, "gone", 5); err != nil || !a.Unknown || a.Handled || a.Why().Error() != `it was renamed by "ann", because "renamed to v1: r": wait for the new name` {
		t.Errorf("a renamed one: %+v, %v", a, err)
	}
	place("p", "p", shadow, 1)
	stands("p", "v1")
	place("v1", "p", shadow, 5)
	place("p", "p", live, 4)
	stands("p", "p")
	place("p", "", live, 4)
	stands("p", "p")
	g.Exec(t, `DELETE FROM consumer_checkpoints WHERE consumer_name = 'p'`)
	g.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now(), effects = '[]' WHERE consumer_name = 'v2'`)
	place("v2#000-7ff", "p", live, 4)
	place("v2#800-fff", "p", live, 9)
	stands("p", "v2")
	place("v1", "p", live, 5)
	if _, _, err := g.Arrived(t.Context(), g.DB, "p", 5); err == nil || !strings.Contains(err.Error(), `"v1" and "v2"`) {
		t.Errorf("two versions that are no shadows: %v", err)
	}
}

// A version that begins while another one has the effects is a shadow.
func TestPlaceOfAVersion(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('renamed', 9223372036854775807)`)
	for _, c := range []struct {
		name, projection string
		versions         []string
	}{{"v1", "p", nil}, {"v2", "p", nil}, {"v3", "p", []string{"v2"}}, {"q1", "q", []string{"q2"}}, {"d", "", nil}, {"e", "", nil}, {"d2", "r", []string{"d"}}, {"s1", "s", []string{"renamed"}}} {
		if err := g.Place(t.Context(), pgdriver.NewPool(g.DB), c.name, 0, "", scope.Of(nil, 0, "", c.projection), c.versions); err != nil {
			t.Fatal(err)
		}
	}
	var shadows string
	if err := g.DB.QueryRow(`SELECT string_agg(consumer_name, ' ' ORDER BY consumer_name) FROM consumer_checkpoints WHERE effects = $1::jsonb`, delivered.Shadow().String()).Scan(&shadows); err != nil || shadows != "d2 v2 v3" {
		t.Errorf("the shadows are %s, %v", shadows, err)
	}
}

// Versions of a projection that begin at the same time see each other: one has the effects. So it is
// if an operator has let them begin.
func TestVersionsBeginAtOnce(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	const versions = 8
	g.DB.SetMaxOpenConns(versions)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, effects) SELECT 'begun' || p || 'v' || v, 0, $1::jsonb FROM generate_series(0, 19) AS p, generate_series(0, 7) AS v`, delivered.Begun().String())
	for p := range 20 {
		for _, kind := range []string{"new", "begun"} {
			projection := fmt.Sprint(kind, p)
			of := scope.Of(nil, 0, "", projection)
			var all sync.WaitGroup
			for v := range versions {
				name := fmt.Sprint(projection, "v", v)
				all.Go(func() {
					var err error
					if kind == "new" {
						err = g.Place(t.Context(), pgdriver.NewPool(g.DB), name, 0, "", of, nil)
					} else {
						_, _, err = g.Rescope(t.Context(), g.DB, progress.Recorded{Unit: name}, of, "", "r")
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
	}
	rows, err := pgdriver.QueryAll(t.Context(), g.DB, pgdriver.Columns(func(s *string) []any { return []any{s} }), `SELECT scope->>'projection' || ': ' || count(*)
		FROM consumer_checkpoints GROUP BY scope->>'projection' HAVING count(*) FILTER (WHERE effects <> $1::jsonb) <> 1`, delivered.Shadow().String())
	var begun int
	if err == nil {
		err = g.DB.QueryRow(`SELECT count(*) FROM consumer_checkpoints WHERE scope->>'projection' <> ''`).Scan(&begun)
	}
	if err != nil || len(rows) > 0 || begun != 2*20*versions {
		t.Errorf("%d versions, and projections without exactly one version with the effects: %q, %v", begun, rows, err)
	}
}
