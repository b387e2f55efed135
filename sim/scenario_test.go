package sim

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestSeedDecides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := DefaultConfig()
		c.Consumers = rapid.IntRange(1, 50).Draw(t, "consumers")
		c.Seed = rapid.Uint64().Draw(t, "seed")
		if a, b := Draw(c), Draw(c); !reflect.DeepEqual(a, b) {
			t.Fatalf("one seed, two scenarios:\n%+v\n%+v", a, b)
		}
	})
	c := DefaultConfig()
	different := map[string]bool{}
	for c.Seed = range uint64(20) {
		lines := ""
		for _, l := range Draw(c).Lines() {
			lines += l.Name + l.Value
		}
		different[lines] = true
	}
	if len(different) < 20 {
		t.Errorf("20 seeds make %d scenarios", len(different))
	}
}

func TestAThirdIsScoped(t *testing.T) {
	t.Parallel()
	share := map[string]int{"order": 4, "account": 3, "cart": 2, "device": 1}
	c := DefaultConfig()
	for c.Seed = range uint64(200) {
		scoped := 0
		for _, s := range Draw(c).Scope {
			if len(s.Types) == 0 || len(s.Sometimes) > 0 {
				continue
			}
			scoped++
			tenths := 0
			for _, aggregateType := range s.Types {
				tenths += share[aggregateType]
			}
			if tenths < 5 {
				t.Errorf("seed %d: %s wants %d tenths of the events, want 5 or more", c.Seed, s.Name, tenths)
			}
		}
		if scoped != 2 {
			t.Fatalf("seed %d: %d of %d consumers are scoped, want 2", c.Seed, scoped, c.Consumers)
		}
	}
}
