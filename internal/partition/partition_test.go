package partition_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
)

func ranges() *rapid.Generator[partition.Range] {
	return rapid.Custom(func(t *rapid.T) partition.Range {
		first := rapid.IntRange(0, partition.Slots-1).Draw(t, "first")
		return partition.Range{First: first, Last: rapid.IntRange(first, partition.Slots-1).Draw(t, "last")}
	})
}

func counts() *rapid.Generator[int] { return rapid.IntRange(1, partition.MaxCount) }

// Durable names depend on these slots, which may never change.
func TestSlotNeverChanges(t *testing.T) {
	for key, want := range map[string]int{"": 0xe3b, "order-1": 0x0ba, "abc": 0xba7, "Grüße": 0xf83} {
		if got := partition.Slot(key); got != want {
			t.Errorf("Slot(%q) = %03x, want %03x", key, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.String().Draw(t, "key")
		sum := sha256.Sum256([]byte(key))
		text := hex.EncodeToString(sum[:])[:3]
		slot := partition.Slot(key)
		if first := (partition.Range{First: slot, Last: slot}).String()[:3]; first != text {
			t.Fatalf("Slot(%q) is %s, in SQL it is %s", key, first, text)
		}
	})
}

func TestSlotAllocatesNothing(t *testing.T) {
	key := "0192f0c1-8f1c-7d2e-9a3b-5c6d7e8f9a0b"
	if n := testing.AllocsPerRun(100, func() { partition.Slot(key) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z_ é]{1,20}`).Draw(t, "consumer")
		r := ranges().Draw(t, "slots")
		unit := partition.Name(name, r)
		consumer, slots, ok := partition.Parse(unit)
		if !ok || consumer != name || slots != r || partition.Consumer(unit) != name {
			t.Fatalf("%q is parsed as %q, %v, %v", unit, consumer, slots, ok)
		}
	})
	if name := partition.Name("totals_v1", partition.Range{First: 0x400, Last: 0x7ff}); name != "totals_v1#400-7ff" {
		t.Errorf("the name is %q", name)
	}
	if name := partition.Name("totals_v1", partition.All); name != "totals_v1" {
		t.Errorf("the name of a consumer that is not split is %q", name)
	}
	for _, name := range []string{"c#", "c#1-2", "c#000-fff", "c#400-3ff", "c#000-7FF", "c#000-1000", "c#000-7ff#", "c#+00-7ff", "c#000", "c#000-7ff-"} {
		if consumer, r, ok := partition.Parse(name); ok {
			t.Errorf("%q is parsed as %q, %v", name, consumer, r)
		}
	}
}

func TestCutTilesEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := counts().Draw(t, "n")
		all := partition.Cut(n)
		if len(all) != n || !partition.Tile(partition.All, all) {
			t.Fatalf("Cut(%d) = %v", n, all)
		}
		for _, r := range all {
			if size := r.Last - r.First + 1; size != partition.Slots/n && size != (partition.Slots+n-1)/n {
				t.Fatalf("%v of %d has %d slots", r, n, size)
			}
		}
		slot := rapid.IntRange(0, partition.Slots-1).Draw(t, "slot")
		if target := partition.Target(n, slot); !target.Has(slot) || !slices.Contains(all, target) {
			t.Fatalf("Target(%d, %d) = %v", n, slot, target)
		}
	})
}

func TestChildrenTileTheirParent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, n := ranges().Draw(t, "slots"), counts().Draw(t, "n")
		children := r.Children(n)
		if !partition.Tile(r, children) {
			t.Fatalf("%v is cut into %v", r, children)
		}
		for _, c := range children {
			if !c.Within(partition.Target(n, c.First)) {
				t.Fatalf("%v crosses a border of %d", c, n)
			}
		}
		for i := 1; i < len(children); i++ {
			if partition.Target(n, children[i].First) == partition.Target(n, children[i-1].First) {
				t.Fatalf("%v is cut within a partition of %d: %v", r, n, children)
			}
		}
	})
}

// Every tiling stays a tiling while the demand changes, and converges to the last demand. The
// steps run in any order.
func TestPartitionsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := []partition.Range{partition.All}
		n := 1
		// step runs one of the steps toward n, and returns false if there is none.
		step := func() bool {
			var ways [][2][]partition.Range // replaced units, new units
			for _, u := range units {
				if children := u.Children(n); len(children) > 1 {
					ways = append(ways, [2][]partition.Range{{u}, children})
				}
			}
			for _, target := range partition.Cut(n) {
				var parts []partition.Range
				for _, u := range units {
					if u.Within(target) && u != target {
						parts = append(parts, u)
					}
				}
				if len(parts) > 0 && partition.Tile(target, parts) {
					ways = append(ways, [2][]partition.Range{parts, {target}})
				}
			}
			if len(ways) == 0 {
				return false
			}
			way := ways[rapid.IntRange(0, len(ways)-1).Draw(t, "step")]
			i := slices.Index(units, way[0][0])
			units = slices.Replace(slices.Clone(units), i, i+len(way[0]), way[1]...)
			if !partition.Tile(partition.All, units) {
				t.Fatalf("%v instead of %v: %v", way[1], way[0], units)
			}
			return true
		}
		for range rapid.IntRange(1, 5).Draw(t, "demands") {
			n = rapid.IntRange(1, 40).Draw(t, "n")
			for range rapid.IntRange(0, 20).Draw(t, "steps") {
				step()
			}
		}
		for steps := 0; step(); steps++ {
			if steps > 2*partition.Slots {
				t.Fatalf("no convergence to %d: %v", n, units)
			}
		}
		if !slices.Equal(units, partition.Cut(n)) {
			t.Fatalf("%v converged to %v", n, units)
		}
	})
}

func TestTileRejects(t *testing.T) {
	of := partition.Range{First: 0x100, Last: 0x1ff}
	for _, parts := range [][]partition.Range{
		nil,
		{{First: 0x100, Last: 0x1fe}},
		{{First: 0x101, Last: 0x1ff}},
		{{First: 0x100, Last: 0x200}},
		{{First: 0x100, Last: 0x17f}, {First: 0x181, Last: 0x1ff}},
		{{First: 0x100, Last: 0x180}, {First: 0x180, Last: 0x1ff}},
		{{First: 0x180, Last: 0x1ff}, {First: 0x100, Last: 0x17f}},
	} {
		if partition.Tile(of, parts) {
			t.Errorf("%v tile %v", parts, of)
		}
	}
}
