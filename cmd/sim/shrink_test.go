package main

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim"
)

func drawConfig(t *rapid.T, label string) sim.Config {
	c := sim.Config{
		Workers:   rapid.IntRange(1, 12).Draw(t, label+" workers"),
		Writers:   rapid.IntRange(1, 40).Draw(t, label+" writers"),
		Consumers: rapid.IntRange(1, 12).Draw(t, label+" consumers"),
		Duration:  time.Duration(rapid.IntRange(shortest, 40).Draw(t, label+" seconds")) * time.Second,
		Faults:    sim.Intensities{},
	}
	for _, fault := range sim.Faults(false) {
		if rapid.Bool().Draw(t, label+" "+fault.Name) {
			c.Faults[fault.Name] = 1
		}
	}
	return c
}

// within reports that a has nothing that b has not.
func within(a, b sim.Config) bool {
	for fault := range a.Faults {
		if b.Faults[fault] == 0 {
			return false
		}
	}
	return a.Workers <= b.Workers && a.Writers <= b.Writers && a.Consumers <= b.Consumers && a.Duration <= b.Duration
}

// TestSmallestIsFound searches for what a failure needs, in runs that have more.
func TestSmallestIsFound(t *testing.T) {
	tier.Checks(t, 12, 100)
	rapid.Check(t, func(t *rapid.T) {
		needed, from := drawConfig(t, "needed"), drawConfig(t, "from")
		from.Workers, from.Writers, from.Consumers = max(from.Workers, needed.Workers), max(from.Writers, needed.Writers), max(from.Consumers, needed.Consumers)
		from.Duration = max(from.Duration, needed.Duration)
		for fault := range needed.Faults {
			from.Faults[fault] = 1
		}
		tries := 0
		got, err := shrink(from, func(c sim.Config) (bool, error) {
			tries++
			return within(needed, c), nil
		})
		if err != nil || name(got) != name(needed) {
			t.Fatalf("found %s, %v; want %s", name(got), err, name(needed))
		}
		if most := 100 + 10*len(sim.Faults(false)); tries > most {
			t.Fatalf("it took %d tries, more than %d", tries, most)
		}
	})
}

// TestEndIsALocalMinimum lets chance decide once and for all what fails.
func TestEndIsALocalMinimum(t *testing.T) {
	tier.Checks(t, 25, 100)
	rapid.Check(t, func(t *rapid.T) {
		from := drawConfig(t, "from")
		seed, odds := rapid.Uint64().Draw(t, "seed"), rapid.Uint64Range(2, 6).Draw(t, "odds")
		failing := func(c sim.Config) bool { return hash(name(c), seed)%odds == 0 }
		seen := map[string]bool{name(from): true}
		got, err := shrink(from, func(c sim.Config) (bool, error) {
			if !within(c, from) || c.Validate() != nil {
				t.Fatalf("%s is tried, from %s", name(c), name(from))
			}
			seen[name(c)] = seen[name(c)] || failing(c)
			return failing(c), nil
		})
		if err != nil || !seen[name(got)] {
			t.Fatalf("%s was never seen to fail, %v", name(got), err)
		}
		for part := 1; part < 64; part *= 2 {
			for c := range smaller(got, part) {
				if failing(c) {
					t.Fatalf("%s fails, and %s is below", name(got), name(c))
				}
			}
		}
	})
}

func hash(s string, seed uint64) uint64 {
	for _, b := range []byte(s) {
		seed = (seed ^ uint64(b)) * 1099511628211
		seed ^= seed >> 29
	}
	return seed
}

// TestTimeIsUp ends the search at any moment.
func TestTimeIsUp(t *testing.T) {
	tier.Checks(t, 25, 100)
	rapid.Check(t, func(t *rapid.T) {
		from, left := drawConfig(t, "from"), rapid.IntRange(0, 30).Draw(t, "tries")
		up, last := errors.New("time is up"), name(from)
		got, err := shrink(from, func(c sim.Config) (bool, error) {
			if left--; left < 0 {
				return true, up
			}
			failed := rapid.Bool().Draw(t, "fails")
			if failed {
				last = name(c)
			}
			return failed, nil
		})
		if name(got) != last || err != nil && !errors.Is(err, up) {
			t.Fatalf("got %s, %v; the last that failed is %s", name(got), err, last)
		}
	})
}
