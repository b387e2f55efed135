package scope_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/scope"
)

func draw(t *rapid.T, name string) scope.Scope {
	types := rapid.SliceOfN(rapid.SampledFrom([]string{"A", "B", "C", "Ä"}), 0, 4).Draw(t, name)
	return scope.Of(types, rapid.IntRange(0, 2).Draw(t, name+" version"), rapid.SampledFrom([]string{"", "head", "7"}).Draw(t, name+" start"),
		rapid.SampledFrom([]string{"", "totals", "lists"}).Draw(t, name+" projection"))
}

// Compare is a total order, ignores Start, and ranks a scope above every scope that it
// includes.
func TestCompareIsATotalOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := draw(t, "a"), draw(t, "b"), draw(t, "c")
		same := a.Version == b.Version && slices.Equal(a.Types, b.Types) && a.Projection == b.Projection
		if (a.Compare(b) == 0) != same || a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%v and %v: %d, %d", a, b, a.Compare(b), b.Compare(a))
		}
		if a.Compare(b) >= 0 && b.Compare(c) >= 0 && a.Compare(c) < 0 {
			t.Fatalf("%v, %v and %v are not ordered transitively", a, b, c)
		}
		added, all := a.Lacks(b)
		lost, allLost := b.Lacks(a)
		wider := (len(added) > 0 || all) && len(lost) == 0 && !allLost
		if wider && a.Version == b.Version && b.Compare(a) <= 0 {
			t.Fatalf("%v includes %v, and is not greater", b, a)
		}
		if a.Version > b.Version && a.Compare(b) <= 0 {
			t.Fatalf("%v is not greater than %v", a, b)
		}
	})
}

func TestScopeRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := draw(t, "a")
		b, err := scope.Parse(a.String())
		if err != nil || b.String() != a.String() || a.Compare(b) != 0 {
			t.Fatalf("%v became %v, %v", a, b, err)
		}
	})
	if s, err := scope.Parse(`{"types": ["B", "A", "B"]}`); err != nil || !slices.Equal(s.Types, []string{"A", "B"}) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := scope.Parse("[]"); err == nil || !strings.Contains(err.Error(), `"[]"`) {
		t.Error(err)
	}
}

func TestLacks(t *testing.T) {
	t.Parallel()
	of := func(types ...string) scope.Scope { return scope.Of(types, 0, "", "") }
	for _, c := range []struct {
		a, b  scope.Scope
		types string
		all   bool
	}{{of("A"), of("A"), "", false}, {of("A"), of("C", "A", "B"), "B C", false}, {of(), of("A"), "", false}, {of("A"), of(), "", true}, {of(), of(), "", false}} {
		if types, all := c.a.Lacks(c.b); strings.Join(types, " ") != c.types || all != c.all {
			t.Errorf("%v lacks %v of %v, %v", c.a, types, c.b, all)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]scope.Scope{
		"all types":                scope.Of(nil, 0, "", ""),
		"A, B (version 3)":         scope.Of([]string{"B", "A"}, 3, "", ""),
		"A, B, C, D, E and 2 more": scope.Of([]string{"A", "B", "C", "D", "E", "F", "G"}, 0, "", ""),
	} {
		if got := s.Words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
