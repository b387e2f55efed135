package demand

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/ops"
)

// of returns a worker that has code for "c". Its build has no partition support if number is
// 0.
func of(pid, number int, key string) ops.Worker {
	w := ops.Worker{PID: pid, Able: []string{"b", "c"}, Demands: map[string]ops.Demand{"b": {Count: 7}}}
	switch number {
	case 0:
		w.Demands = nil
	case 1:
	default:
		w.Demands["c"] = ops.Demand{Count: number, Key: key}
	}
	return w
}

func place(w ops.Worker) string { return fmt.Sprint("h/", w.PID) }

func TestDisagreement(t *testing.T) {
	t.Parallel()
	parts := make([]ops.Unit, 4)
	other := ops.Worker{PID: 9, Able: []string{"b"}}
	for name, c := range map[string]struct {
		units []ops.Unit
		fixed int
		live  []ops.Worker
		want  string
	}{
		"no worker":                {nil, 0, nil, ""},
		"other code":               {nil, 0, []ops.Worker{other, of(1, 4, "")}, ""},
		"another library's":        {nil, 0, []ops.Worker{{PID: 8}, of(1, 4, "")}, "1 partition is wanted while a process of another library runs: h/1 asks for 4; h/8 has no partition support"},
		"another's, and fixed":     {nil, 4, []ops.Worker{{PID: 8}, of(1, 1, "")}, "1 partition is wanted while a process of another library runs: h/1 asks for 1; h/8 has no partition support"},
		"another's, no demand":     {nil, 0, []ops.Worker{{PID: 8}, of(1, 1, "")}, ""},
		"all the same":             {parts, 0, []ops.Worker{of(1, 4, ""), of(2, 4, "")}, ""},
		"a change in progress":     {parts, 0, []ops.Worker{of(1, 8, ""), of(2, 8, "")}, ""},
		"no demand":                {nil, 0, []ops.Worker{of(1, 1, ""), of(2, 1, "")}, ""},
		"different numbers":        {parts, 0, []ops.Worker{of(1, 4, ""), of(2, 8, ""), of(3, 4, "")}, "it stays at 4 partitions, since the workers' builds ask for different counts: h/2 asks for 8; h/1, h/3 ask for 4"},
		"one without demand":       {nil, 0, []ops.Worker{of(1, 1, ""), of(2, 8, "")}, "it stays at 1 partition, since the workers' builds ask for different counts: h/2 asks for 8; h/1 asks for 1"},
		"many":                     {nil, 0, []ops.Worker{of(1, 2, ""), of(2, 2, ""), of(3, 2, ""), of(4, 2, ""), of(5, 2, ""), of(6, 3, "")}, "it stays at 1 partition, since the workers' builds ask for different counts: h/6 asks for 3; h/1, h/2, h/3 and 2 more ask for 2"},
		"an old build":             {nil, 0, []ops.Worker{of(1, 0, ""), of(2, 4, "")}, "1 partition is wanted while a build without partition support runs: h/2 asks for 4; h/1 has no partition support"},
		"an old build that agrees": {nil, 0, []ops.Worker{of(1, 0, ""), of(2, 1, "")}, ""},
		"only old builds":          {nil, 0, []ops.Worker{of(1, 0, "")}, ""},
		"only old builds, split":   {parts, 0, []ops.Worker{of(1, 0, ""), of(2, 0, "")}, "1 partition is wanted while a build without partition support runs: h/1, h/2 have no partition support"},
		"different keys":           {nil, 0, []ops.Worker{of(1, 4, "a"), of(2, 4, "b")}, "it is not split, since the workers' builds have different keys: h/1 asks for 4 by the key a; h/2 asks for 4 by the key b"},
		"different keys, split":    {parts, 0, []ops.Worker{of(1, 4, "a"), of(2, 4, "b")}, ""},
		"fixed":                    {parts, 4, []ops.Worker{of(1, 0, ""), of(2, 8, ""), of(3, 2, "")}, ""},
		"fixed, different keys":    {nil, 4, []ops.Worker{of(1, 2, "a"), of(2, 8, "b")}, "it is not split, since the workers' builds have different keys: h/2 asks for 8 by the key b; h/1 asks for 2 by the key a"},
		"fixed, only old builds":   {nil, 4, []ops.Worker{of(1, 0, "")}, "it is fixed at 4 partitions, but only builds without partition support run: h/1 has no partition support"},
	} {
		if got := Disagreement(ops.Consumer{Name: "c", Units: c.units, Fixed: c.fixed}, c.live, place); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	scoped := func(pid int, version int, types ...string) ops.Worker {
		return ops.Worker{PID: pid, Scopes: map[string]ops.Scope{"c": {Types: types, Version: version}}}
	}
	for name, c := range map[string]struct {
		live []ops.Worker
		want string
	}{
		"no worker":          {nil, ""},
		"all the same":       {[]ops.Worker{scoped(1, 0, "A", "B"), scoped(2, 0, "B", "A"), {PID: 3}}, ""},
		"more types":         {[]ops.Worker{scoped(1, 0, "A"), scoped(2, 0, "B", "A"), scoped(3, 0, "A")}, "the builds select different events: h/2 may run it, selecting A, B; h/1, h/3 wait, selecting A"},
		"a higher version":   {[]ops.Worker{scoped(1, 2, "A"), scoped(2, 1)}, "the builds select different events: h/1 may run it, selecting A (version 2); h/2 waits, selecting all types (version 1)"},
		"another consumer's": {[]ops.Worker{scoped(1, 2, "A"), {PID: 2, Scopes: map[string]ops.Scope{"d": {}}}}, ""},
	} {
		if got := Waiting(ops.Consumer{Name: "c"}, c.live, place); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Disagreement returns a text exactly if a worker keeps the consumer from the wanted number.
func TestDisagreementMatchesTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := ops.Consumer{Name: "c", Units: make([]ops.Unit, rapid.IntRange(0, 3).Draw(t, "units")), Fixed: rapid.SampledFrom([]int{0, 0, 1, 4}).Draw(t, "fixed")}
		var live []ops.Worker
		var demands []ops.Demand
		old := 0
		for pid := range rapid.IntRange(0, 4).Draw(t, "workers") {
			w := of(pid, rapid.IntRange(0, 3).Draw(t, "number"), rapid.SampledFrom([]string{"", "k"}).Draw(t, "key"))
			if live = append(live, w); w.Demands == nil {
				old++
				continue
			}
			demand := w.Demands["c"]
			if demand.Count == 0 {
				demand = ops.Demand{Count: 1}
			}
			demands = append(demands, demand)
		}
		differ := func(of func(ops.Demand) any) bool {
			return slices.ContainsFunc(demands, func(w ops.Demand) bool { return of(w) != of(demands[0]) })
		}
		counts, keys := differ(func(w ops.Demand) any { return w.Count }), differ(func(w ops.Demand) any { return w.Key })
		split, many := len(c.Units) > 0, len(demands) > 0 && demands[0].Count > 1
		var want bool
		switch {
		case len(live) == 0:
		case c.Fixed > 0:
			want = c.Fixed > 1 && !split && (keys || len(demands) == 0)
		case old > 0:
			want = counts || many || split && len(demands) == 0
		default:
			want = counts || many && !split && keys
		}
		if got := Disagreement(c, live, place); (got != "") != want {
			t.Fatalf("%+v with %+v and %d old builds: %q", c, demands, old, got)
		}
	})
}

// On the way from 2 partitions to 3, the consumer has 3 units with other borders.
func TestBecoming(t *testing.T) {
	t.Parallel()
	cut := func(borders ...string) (units []ops.Unit) {
		for _, b := range borders {
			units = append(units, ops.Unit{Partition: b})
		}
		return units
	}
	thirds := []string{"000-554", "555-aa9", "aaa-fff"}
	for name, c := range map[string]struct {
		units  []ops.Unit
		wanted int
		want   int
	}{
		"stays as it is":        {nil, 0, 0},
		"is whole":              {nil, 1, 0},
		"to be split":           {nil, 3, 3},
		"split, stays as it is": {cut("000-7ff", "800-fff"), 0, 0},
		"split":                 {cut(thirds...), 3, 0},
		"to be merged":          {cut(thirds...), 1, 1},
		"halfway":               {cut("000-554", "555-7ff", "800-fff"), 3, 3},
	} {
		if got := Becoming(ops.Consumer{Units: c.units, Wanted: c.wanted}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
