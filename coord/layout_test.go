package coord

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

func asking(count int, key string) partition.Demand {
	return partition.Demand{Count: count, Key: key}
}

// able returns a live worker with code for "c" and two other units, and a demand for "c".
func able(w partition.Demand) member {
	return member{ID: uuid.New(), Units: []string{"a", "b", "c"}, Demands: map[string]partition.Demand{"c": w}}
}

// splitAt returns the rows of "c" in n partitions by a key.
func splitAt(n int, key string) []part {
	rows := []part{{Unit: "c", Split: true}}
	for _, r := range partition.Cut(n) {
		rows = append(rows, part{Unit: partition.Name("c", r), Key: key})
	}
	return rows
}

func TestWantedPartitions(t *testing.T) {
	old := member{ID: uuid.New(), Units: []string{"c"}}
	other := member{ID: uuid.New(), Units: []string{"a"}}
	fixed := func(n int, rows []part) []part {
		rows = slices.Clone(rows)
		rows[0].Fixed = n
		return rows
	}
	whole := []part{{Unit: "c"}}
	for what, c := range map[string]struct {
		alive []member
		parts []part
		count int
		able  []bool
	}{
		"all demand the same":                 {[]member{able(asking(4, "")), other, able(asking(4, ""))}, nil, 4, []bool{true, false, true}},
		"a deployment of another number":      {[]member{able(asking(4, "")), able(asking(8, ""))}, splitAt(4, ""), 0, []bool{true, true}},
		"a deployment of the first number":    {[]member{able(asking(4, "")), able(partition.Single)}, nil, 0, []bool{true, true}},
		"a build without partition support":   {[]member{able(asking(4, "")), old}, nil, 1, []bool{true, true}},
		"an old build joins a split consumer": {[]member{able(asking(4, "")), old}, splitAt(4, ""), 1, []bool{true, false}},
		"another library's":                   {[]member{able(asking(4, "")), {ID: uuid.New()}}, nil, 1, []bool{true, false}},
		"another library's, split":            {[]member{able(asking(4, "")), {ID: uuid.New()}}, splitAt(4, ""), 1, []bool{true, false}},
		"another library's, fixed":            {[]member{able(asking(4, "")), {ID: uuid.New()}}, fixed(3, whole), 1, []bool{true, false}},
		"no more partitions":                  {[]member{able(partition.Single)}, splitAt(4, ""), 1, []bool{true}},
		"fixed":                               {[]member{able(asking(4, "")), able(asking(8, "")), old}, fixed(3, whole), 3, []bool{true, true, false}},
		"fixed to one":                        {[]member{able(asking(4, ""))}, fixed(1, splitAt(4, "")), 1, []bool{true}},
		"fixed without partition support":     {[]member{old}, fixed(3, whole), 0, []bool{true}},
		"a key":                               {[]member{able(asking(4, "customer"))}, nil, 4, []bool{true}},
		"two keys":                            {[]member{able(asking(4, "customer")), able(asking(4, ""))}, nil, 0, []bool{true, true}},
		"two keys, not split":                 {[]member{able(asking(1, "customer")), able(asking(1, ""))}, nil, 1, []bool{true, true}},
		"another key than that of the split":  {[]member{able(asking(4, "customer"))}, splitAt(4, ""), 4, []bool{false}},
		"the key of the split and another":    {[]member{able(asking(4, "customer")), able(asking(4, ""))}, splitAt(4, ""), 4, []bool{false, true}},
		"a demand for a negative number":      {[]member{able(asking(-1, ""))}, nil, 1, []bool{true}},
		"no member has code for it":           {[]member{other}, splitAt(4, ""), 0, []bool{false}},
	} {
		l := layoutsOf(c.alive, c.parts)["c"]
		if l.count != c.count || !slices.Equal(l.able, c.able) {
			t.Errorf("%s: %d partitions, run by %v; want %d, %v", what, l.count, l.able, c.count, c.able)
		}
	}
}

// For all demands and live workers, plans and the steps of the owners converge to the latest
// demanded layout. Then each unit is assigned once, evenly, to a worker that may run it.
func TestPartitionsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		is := assignments{owners: map[string]uuid.UUID{}, wanted: map[string]int{}}
		units := []partition.Range{partition.All}
		sticky := rapid.Bool().Draw(t, "sticky")
		rows := func() (all []part) {
			if len(units) == 1 {
				return nil
			}
			all = []part{{Unit: "c", Split: true}}
			for _, u := range units {
				all = append(all, part{Unit: partition.Name("c", u)})
			}
			return all
		}
		replace := func(i, n int, with ...partition.Range) {
			before := partition.Name("c", units[i])
			units = slices.Replace(units, i, i+n, with...)
			for _, u := range with {
				is.owners[partition.Name("c", u)], is.wanted[partition.Name("c", u)] = is.owners[before], is.wanted[before]
			}
			if !partition.Tile(partition.All, units) {
				t.Fatalf("%v", units)
			}
		}
		// step runs the step of the owner of unit i.
		step := func(i int) bool {
			name := partition.Name("c", units[i])
			n := is.wanted[name]
			if n == 0 {
				return false
			}
			if children := units[i].Children(n); len(children) > 1 {
				replace(i, 1, children...)
				return true
			}
			target := partition.Target(n, units[i].First)
			if units[i] == target {
				return false
			}
			from, to := i, i
			for from > 0 && units[from-1].Within(target) {
				from--
			}
			for to < len(units) && units[to].Within(target) {
				part := partition.Name("c", units[to])
				if is.owners[part] != is.owners[name] || is.wanted[part] != n {
					return false
				}
				to++
			}
			if !partition.Tile(target, units[from:to]) {
				return false
			}
			replace(from, to-from, target)
			return true
		}
		// settle plans and steps until nothing changes, for a limited number of rounds.
		settle := func(alive []member, rounds int) (rests bool) {
			for ; rounds > 0 && !rests; rounds-- {
				is.parts = rows()
				n := plan(alive, is, sticky)
				for _, c := range n.changes {
					is.owners[c.Unit], is.wanted[c.Unit] = c.Worker, c.Partitions
				}
				for _, u := range n.gone {
					delete(is.owners, u)
					delete(is.wanted, u)
				}
				if len(n.unowned) > 0 {
					t.Fatalf("unowned: %v", n.unowned)
				}
				rests = len(n.changes)+len(n.gone) == 0
				for i := 0; i < len(units); i++ {
					rests = !step(i) && rests
				}
			}
			return rests
		}
		var alive []member
		var demand partition.Demand
		for range rapid.IntRange(1, 4).Draw(t, "demands") {
			demand.Count = rapid.IntRange(1, 9).Draw(t, "count")
			alive = nil
			for range rapid.IntRange(1, 4).Draw(t, "alive") {
				alive = append(alive, able(demand))
			}
			settle(alive, rapid.IntRange(0, 5).Draw(t, "rounds"))
		}
		if !settle(alive, 100) || !slices.Equal(units, partition.Cut(demand.Count)) {
			t.Fatalf("%v at rest for %d, %+v", units, demand.Count, is)
		}
		want := []string{"a", "b"}
		for _, u := range units {
			want = append(want, partition.Name("c", u))
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(is.owners)); !slices.Equal(got, want) {
			t.Fatalf("assigned are %q, want %q", got, want)
		}
		loads := map[uuid.UUID]int{}
		for u, owner := range is.owners {
			if !slices.ContainsFunc(alive, func(m member) bool { return m.ID == owner }) {
				t.Fatalf("%q has no owner", u)
			}
			loads[owner]++
		}
		least := len(want)
		for _, m := range alive {
			least = min(least, loads[m.ID])
		}
		if most := slices.Max(slices.Collect(maps.Values(loads))); most > least+1 {
			t.Fatalf("loads from %d to %d", least, most)
		}
	})
}

// The parts of one partition meet at one worker. The parts of a unit that is to be split need
// not move first.
func TestPartsOfOnePartitionGetOneOwner(t *testing.T) {
	alive := []member{able(asking(2, "")), able(asking(2, "")), able(asking(2, ""))}
	for i := range alive {
		alive[i].Units = []string{"c"}
	}
	is := assignments{owners: map[string]uuid.UUID{"c": alive[0].ID, "c#gone": alive[0].ID}, parts: splitAt(6, "")}
	n := plan(alive, is, true)
	worker := map[string]uuid.UUID{}
	for _, c := range n.changes {
		worker[c.Unit] = c.Worker
		if c.Partitions != 2 {
			t.Errorf("%+v", c)
		}
	}
	all := partition.Cut(6)
	for i, u := range all {
		if first := all[i/3*3]; worker[partition.Name("c", u)] != worker[partition.Name("c", first)] {
			t.Errorf("%v and %v go to two workers", u, first)
		}
	}
	if worker[partition.Name("c", all[0])] == worker[partition.Name("c", all[3])] {
		t.Error("one of three workers gets both partitions")
	}
	if !slices.Equal(n.gone, []string{"c", "c#gone"}) {
		t.Errorf("gone are %q", n.gone)
	}
}

func TestDemandsRoundTrip(t *testing.T) {
	demands := map[string]partition.Demand{"c": asking(4, ""), "d": asking(1, "customer"), "e": partition.Single}
	got, _ := detailsOf(liveness.Node{Profile: liveness.Profile{Details: []byte(detailsText(demands, nil))}})
	delete(demands, "e")
	if !maps.Equal(got, demands) {
		t.Errorf("%v", got)
	}
	var m member
	m.Demands, _ = detailsOf(liveness.Node{Profile: liveness.Profile{Details: []byte(detailsText(nil, nil))}})
	if m.predatesPartitions() || m.demand("c") != partition.Single {
		t.Error("a build that demands nothing counts as a build without partition support")
	}
	for _, details := range []string{"", "null", "[]"} {
		if demands, _ := detailsOf(liveness.Node{Profile: liveness.Profile{Details: []byte(details)}}); demands != nil {
			t.Errorf("%q: %v", details, demands)
		}
	}
}

func TestScopesRoundTrip(t *testing.T) {
	scopes := map[string]scope.Scope{"c": scope.Of([]string{"A", "B"}, 2, "head", ""), "d": scope.Of(nil, 0, "", "")}
	demands := map[string]partition.Demand{"c": asking(4, "k"), "d": partition.Single}
	text := detailsText(demands, scopes)
	gotDemands, got := detailsOf(liveness.Node{Profile: liveness.Profile{Details: []byte(text)}})
	if !maps.EqualFunc(got, scopes, func(a, b scope.Scope) bool { return a.String() == b.String() }) || !maps.Equal(gotDemands, map[string]partition.Demand{"c": asking(4, "k")}) {
		t.Errorf("%v, %v", got, gotDemands)
	}
	// A build without scope support parses the demands.
	var old map[string]partition.Demand
	if err := json.Unmarshal([]byte(text), &old); err != nil || !maps.Equal(old, demands) {
		t.Errorf("%v, %v", old, err)
	}
}

// If scopes of a consumer differ, the members with the greatest scope may run it. A member
// without a scope may run it, too. Other consumers are not affected.
func TestGreatestScopeRunsTheConsumer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := []scope.Scope{scope.Of([]string{"A"}, 0, "", ""), scope.Of([]string{"A", "B"}, 0, "", ""), scope.Of(nil, 0, "", ""), scope.Of([]string{"A"}, 1, "", "")}
		rows, key := []part{{Unit: "c"}}, ""
		if rapid.Bool().Draw(t, "split") {
			rows, key = splitAt(3, "k"), "k"
		}
		var alive []member
		for range rapid.IntRange(1, 5).Draw(t, "workers") {
			m := able(partition.Demand{Count: 1, Key: rapid.SampledFrom([]string{"", "k"}).Draw(t, "key")})
			if n := rapid.IntRange(0, len(all)).Draw(t, "scope"); n < len(all) {
				m.Scopes = map[string]scope.Scope{"c": all[n]}
			}
			alive = append(alive, m)
		}
		may := func(m member) bool { return key == "" || m.demand("c").Key == key }
		var best *scope.Scope
		some := false
		for _, m := range alive {
			some = some || may(m)
			if s, says := m.Scopes["c"]; says && may(m) && (best == nil || s.Compare(*best) > 0) {
				best = &s
			}
		}
		n := plan(alive, assignments{parts: rows}, false)
		givenCTE := 0
		for _, ch := range n.changes {
			if partition.Consumer(ch.Unit) != "c" {
				continue
			}
			givenCTE++
			m := alive[slices.IndexFunc(alive, func(m member) bool { return m.ID == ch.Worker })]
			if s, says := m.Scopes["c"]; !may(m) || says && s.Compare(*best) != 0 {
				t.Fatalf("%s went to %+v, the greatest is %v", ch.Unit, m, best)
			}
		}
		if some != (givenCTE > 0) {
			t.Fatalf("%d units of c were dealt to %+v", givenCTE, alive)
		}
		for _, u := range []string{"a", "b"} {
			if !slices.ContainsFunc(n.changes, func(c change) bool { return c.Unit == u }) {
				t.Fatalf("%s is assigned to no member", u)
			}
		}
	})
}

// A draining member gets no unit, and keeps its units until it releases them.
func TestDrainingMemberIsDealtNothing(t *testing.T) {
	t.Parallel()
	gone, stays := able(partition.Single), able(asking(2, ""))
	gone.draining = true
	gone.Units = append(gone.Units, "own")
	is := assignments{owners: map[string]uuid.UUID{"a": gone.ID, "c": gone.ID, "own": gone.ID}}
	expect := func(units ...string) next {
		t.Helper()
		n := plan([]member{gone, stays}, is, true)
		var got []string
		for _, ch := range n.changes {
			if got = append(got, ch.Unit); ch.Worker != stays.ID {
				t.Errorf("%+v", ch)
			}
		}
		if !slices.Equal(got, units) || !slices.Equal(n.unowned, []string{"own"}) {
			t.Errorf("%q are assigned, %q have no code; want %q", got, n.unowned, units)
		}
		return n
	}
	n := expect("b")
	if all := idle([]member{gone, stays}, is.owners, n); len(all) != 1 || all["b"] != notKept {
		t.Errorf("%v are idle", all)
	}
	is.owners["b"] = stays.ID
	delete(is.owners, "a")
	delete(is.owners, "c")
	if n := expect("a", "c"); len(n.changes) == 2 && n.changes[1].Partitions != 2 {
		t.Errorf("%+v", n.changes)
	}
	before := gone
	before.draining = false
	if sameMembers([]member{before}, []member{gone}) {
		t.Error("sameMembers ignores that a member began to drain")
	}
}

// A consumer is split from one into two partitions, and merged again.
func TestLeaderDealsPartitions(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		var workers []*worker
		for range 2 {
			cfg := withLease(brisk(config(d.DB, "c")), leased)
			cfg.Demands = map[string]partition.Demand{"c": asking(2, "")}
			workers = append(workers, start(t, cfg))
		}
		has := func(unit string, n int) func() bool {
			return func() bool {
				for _, w := range workers {
					if slices.Contains(w.Assigned(), unit) && w.Wanted(unit) == n {
						return true
					}
				}
				return false
			}
		}
		d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c')`)
		await(t, "the owner knows that two partitions are wanted", has("c", 2))
		d.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`)
		d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c#000-7ff'), ('c#800-fff')`)
		await(t, "each has one", func() bool {
			return len(workers[0].Assigned()) == 1 && len(workers[1].Assigned()) == 1 && !has("c", 2)() && has("c#000-7ff", 2)() && has("c#800-fff", 2)()
		})
		d.Exec(t, `UPDATE consumer_checkpoints SET partitions = 1 WHERE consumer_name = 'c'`)
		await(t, "both are one worker's", func() bool {
			return len(workers[0].Assigned())+len(workers[1].Assigned()) == 2 && len(workers[0].Assigned()) != 1 && has("c#000-7ff", 1)() && has("c#800-fff", 1)()
		})
		d.Exec(t, `DELETE FROM consumer_checkpoints WHERE consumer_name <> 'c'`)
		d.Exec(t, `UPDATE consumer_checkpoints SET split_at = NULL, paused_at = NULL`)
		await(t, "the merged one is run", func() bool {
			return len(workers[0].Assigned())+len(workers[1].Assigned()) == 1 && has("c", 0)()
		})
	})
}
