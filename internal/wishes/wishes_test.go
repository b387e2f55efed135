package wishes

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/ops"
)

// of is a worker that has code for "c". A number of 0: its program knows no partitions.
func of(pid, number int, key string) ops.Worker {
	w := ops.Worker{PID: pid, Able: []string{"b", "c"}, Wishes: map[string]ops.Wish{"b": {Count: 7}}}
	switch number {
	case 0:
		w.Wishes = nil
	case 1:
	default:
		w.Wishes["c"] = ops.Wish{Count: number, Key: key}
	}
	return w
}

func place(w ops.Worker) string { return fmt.Sprint("h/", w.PID) }

func TestDisagreement(t *testing.T) {
	t.Parallel()
	parts := make([]ops.Unit, 4)
	stranger := ops.Worker{PID: 9, Able: []string{"b"}}
	for name, c := range map[string]struct {
		units []ops.Unit
		fixed int
		live  []ops.Worker
		want  string
	}{
		"nobody":                  {nil, 0, nil, ""},
		"a stranger":              {nil, 0, []ops.Worker{stranger, of(1, 4, "")}, ""},
		"another library's":       {nil, 0, []ops.Worker{{PID: 8}, of(1, 4, "")}, "1 is wanted while a program of another library runs: h/1 wishes for 4; h/8 says nothing of partitions"},
		"another's, and fixed":    {nil, 4, []ops.Worker{{PID: 8}, of(1, 1, "")}, "1 is wanted while a program of another library runs: h/1 wishes for 1; h/8 says nothing of partitions"},
		"another's, none wishes":  {nil, 0, []ops.Worker{{PID: 8}, of(1, 1, "")}, ""},
		"all the same":            {parts, 0, []ops.Worker{of(1, 4, ""), of(2, 4, "")}, ""},
		"a change on its way":     {parts, 0, []ops.Worker{of(1, 8, ""), of(2, 8, "")}, ""},
		"none wishes":             {nil, 0, []ops.Worker{of(1, 1, ""), of(2, 1, "")}, ""},
		"different numbers":       {parts, 0, []ops.Worker{of(1, 4, ""), of(2, 8, ""), of(3, 4, "")}, "it stays in 4, as the workers wish for different numbers: h/2 wishes for 8; h/1, h/3 wish for 4"},
		"one does not wish":       {nil, 0, []ops.Worker{of(1, 1, ""), of(2, 8, "")}, "it stays in 1, as the workers wish for different numbers: h/2 wishes for 8; h/1 wishes for 1"},
		"many":                    {nil, 0, []ops.Worker{of(1, 2, ""), of(2, 2, ""), of(3, 2, ""), of(4, 2, ""), of(5, 2, ""), of(6, 3, "")}, "it stays in 1, as the workers wish for different numbers: h/6 wishes for 3; h/1, h/2, h/3 and 2 more wish for 2"},
		"an old one":              {nil, 0, []ops.Worker{of(1, 0, ""), of(2, 4, "")}, "1 is wanted while a program from before partitions runs: h/2 wishes for 4; h/1 says nothing of partitions"},
		"an old one that agrees":  {nil, 0, []ops.Worker{of(1, 0, ""), of(2, 1, "")}, ""},
		"only old ones":           {nil, 0, []ops.Worker{of(1, 0, "")}, ""},
		"only old ones for parts": {parts, 0, []ops.Worker{of(1, 0, ""), of(2, 0, "")}, "1 is wanted while a program from before partitions runs: h/1, h/2 say nothing of partitions"},
		"different keys":          {nil, 0, []ops.Worker{of(1, 4, "a"), of(2, 4, "b")}, "it is not split, as the workers have different keys: h/1 wishes for 4 by the key a; h/2 wishes for 4 by the key b"},
		"another key for parts":   {parts, 0, []ops.Worker{of(1, 4, "a"), of(2, 4, "b")}, ""},
		"fixed":                   {parts, 4, []ops.Worker{of(1, 0, ""), of(2, 8, ""), of(3, 2, "")}, ""},
		"fixed, different keys":   {nil, 4, []ops.Worker{of(1, 2, "a"), of(2, 8, "b")}, "it is not split, as the workers have different keys: h/2 wishes for 8 by the key b; h/1 wishes for 2 by the key a"},
		"fixed, only old ones":    {nil, 4, []ops.Worker{of(1, 0, "")}, "4 are fixed, and only programs from before partitions run: h/1 says nothing of partitions"},
	} {
		if got := Disagreement(ops.Consumer{Name: "c", Units: c.units, Fixed: c.fixed}, c.live, place); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	says := func(pid int, version int, types ...string) ops.Worker {
		return ops.Worker{PID: pid, Scopes: map[string]ops.Scope{"c": {Types: types, Version: version}}}
	}
	for name, c := range map[string]struct {
		live []ops.Worker
		want string
	}{
		"nobody":             {nil, ""},
		"all the same":       {[]ops.Worker{says(1, 0, "A", "B"), says(2, 0, "B", "A"), {PID: 3}}, ""},
		"more types":         {[]ops.Worker{says(1, 0, "A"), says(2, 0, "B", "A"), says(3, 0, "A")}, "the builds select different things: h/2 may run it, selecting A, B; h/1, h/3 wait, selecting A"},
		"a higher version":   {[]ops.Worker{says(1, 2, "A"), says(2, 1)}, "the builds select different things: h/1 may run it, selecting A (version 2); h/2 waits, selecting all types (version 1)"},
		"another consumer's": {[]ops.Worker{says(1, 2, "A"), {PID: 2, Scopes: map[string]ops.Scope{"d": {}}}}, ""},
	} {
		if got := Waiting(ops.Consumer{Name: "c"}, c.live, place); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Workers that say nothing of partitions, and those that wish for the same, are all that
// there is no word about.
func TestSilenceMeansAgreement(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := ops.Consumer{Name: "c", Units: make([]ops.Unit, rapid.IntRange(0, 3).Draw(t, "units")), Fixed: rapid.SampledFrom([]int{0, 0, 1, 4}).Draw(t, "fixed")}
		var live []ops.Worker
		var wishes []ops.Wish
		old := 0
		for pid := range rapid.IntRange(0, 4).Draw(t, "workers") {
			w := of(pid, rapid.IntRange(0, 3).Draw(t, "number"), rapid.SampledFrom([]string{"", "k"}).Draw(t, "key"))
			if live = append(live, w); w.Wishes == nil {
				old++
				continue
			}
			wish := w.Wishes["c"]
			if wish.Count == 0 {
				wish = ops.Wish{Count: 1}
			}
			wishes = append(wishes, wish)
		}
		differ := func(of func(ops.Wish) any) bool {
			return slices.ContainsFunc(wishes, func(w ops.Wish) bool { return of(w) != of(wishes[0]) })
		}
		counts, keys := differ(func(w ops.Wish) any { return w.Count }), differ(func(w ops.Wish) any { return w.Key })
		split, many := len(c.Units) > 0, len(wishes) > 0 && wishes[0].Count > 1
		var want bool
		switch {
		case len(live) == 0:
		case c.Fixed > 0:
			want = c.Fixed > 1 && !split && (keys || len(wishes) == 0)
		case old > 0:
			want = counts || many || split && len(wishes) == 0
		default:
			want = counts || many && !split && keys
		}
		if got := Disagreement(c, live, place); (got != "") != want {
			t.Fatalf("%+v with %+v and %d old ones: %q", c, wishes, old, got)
		}
	})
}

// On the way from 2 partitions to 3 there are 3 with other borders.
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
		"stays as it is":      {nil, 0, 0},
		"is whole":            {nil, 1, 0},
		"to be split":         {nil, 3, 3},
		"stays as it is, too": {cut("000-7ff", "800-fff"), 0, 0},
		"split":               {cut(thirds...), 3, 0},
		"to be merged":        {cut(thirds...), 1, 1},
		"halfway":             {cut("000-554", "555-7ff", "800-fff"), 3, 3},
	} {
		if got := Becoming(ops.Consumer{Units: c.units, Wanted: c.wanted}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
