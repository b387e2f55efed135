package frontier

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// mistake is one thing done wrong in the simulation, on the server's side, the
// statements' or the consumer's: the searches below must find each.
type mistake int

const (
	none                 mistake = iota
	guardWithoutRevision         // the guard compares the checkpoint only
	guardWithoutToken            // the guard takes the server's life for one
	cachedLast                   // a last value outlives a change of state
	lastBeforeScan               // the last value was read before the scan
	headForLast                  // the visible head in place of the last value
	noPrepared                   // prepared transactions are no holders
	renamedUnknown               // a prepared transaction is taken for another
	fallsBack                    // a checkpoint may fall to safe
	resetKeepsOpen               // a reset leaves open ranges above it
	doubtsAfterRows              // doubts as they are after the rows were read
	rowsBeforeValue              // the look is not later than the scan: both in one statement
	recordsVisible               // a doubt is recorded as open though it was seen
	staleAreForgotten            // fences void what belongs to stale holders
	closesAboveSafe              // a range above safe closes because it is not in doubt
	locksFirst                   // the scan comes before the tail
	onlyWithID                   // only transactions with an id count, as in xmin
	oneTransaction               // the statements in one: pg_stat_activity is frozen
	raisesUnderAnyToken          // the settled row outlives a crash
)

func drawKnobs(choose func(n int) int) knobs {
	flip := func() bool { return choose(2) == 0 }
	k := knobs{
		rules: rules{
			staleAfter: time.Duration(20+choose(150)) * time.Millisecond,
			interval:   time.Duration(1+choose(20)) * time.Millisecond,
			named:      choose(4) > 0,
		},
		crashes: flip(), async: flip(), proxied: flip(), renames: flip(), resets: flip(),
		rows:     2 + choose(12),
		maxSteps: 60_000,
	}
	if choose(4) == 0 {
		k.policy = Wait
	}
	if choose(3) == 0 {
		k.harborLag = int64(1 + choose(6))
	}
	return k
}

func seeded(seed uint64) func(n int) int {
	r := rand.New(rand.NewPCG(seed, 0))
	return r.IntN
}

// TestProtocol drives the machine and the consumers' decisions through random
// interleavings and looks for an event lost, doubled, out of order or
// unaudited, and for anything that does not end.
func TestProtocol(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		s := newSim(drawKnobs(choose), choose)
		s.run()
		for what, n := range s.seen {
			seen[what] += n
		}
		if s.violation != "" {
			t.Fatalf("%s\n%+v", s.violation, s.knobs)
		}
	})
	for _, what := range []string{"stale", "doubts", "narrowed", "prepared", "crash", "reset", "overtaken", "rolled back", "late", "audited o", "audited v", "audited l"} {
		if seen[what] == 0 {
			t.Errorf("it never came to %q", what)
		}
	}
	t.Logf("%v", seen)
}

// TestMistakesAreFound proves that the search can find something: each
// mistake must be found within a bounded number of runs.
func TestMistakesAreFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		mistake mistake
	}{
		{"guard without revision", guardWithoutRevision},
		{"guard without token", guardWithoutToken},
		{"cached last value", cachedLast},
		{"last value before the scan", lastBeforeScan},
		{"head for last value", headForLast},
		{"no prepared", noPrepared},
		{"renamed unknown", renamedUnknown},
		{"falls back", fallsBack},
		{"reset keeps open", resetKeepsOpen},
		{"doubts after rows", doubtsAfterRows},
		{"rows before value", rowsBeforeValue},
		{"records visible", recordsVisible},
		{"stale are forgotten", staleAreForgotten},
		{"closes above safe", closesAboveSafe},
		{"locks first", locksFirst},
		{"only with id", onlyWithID},
		{"one transaction", oneTransaction},
		{"raises under any token", raisesUnderAnyToken},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			for seed := uint64(0); seed < 20000; seed++ {
				choose := seeded(seed)
				k := drawKnobs(choose)
				k.mistake = c.mistake
				s := newSim(k, choose)
				s.run()
				if s.violation != "" {
					t.Logf("%d %v %s", seed, time.Since(began), s.violation)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}

func TestSweep(t *testing.T) {
	began := time.Now()
	seen := map[string]int{}
	n, steps := 0, 0
	for seed := uint64(0); time.Since(began) < 20*time.Second; seed++ {
		choose := seeded(seed)
		s := newSim(drawKnobs(choose), choose)
		s.run()
		n++
		steps += s.steps
		for what, k := range s.seen {
			seen[what] += k
		}
		if s.violation != "" {
			t.Fatalf("seed %d: %s\n%+v", seed, s.violation, s.knobs)
		}
	}
	fmt.Println(n, steps, seen)
}

func TestTrace(t *testing.T) {
	choose := seeded(0)
	s := newSim(drawKnobs(choose), choose)
	s.trace = func(f string, args ...any) { fmt.Printf("%d "+f+"\n", append([]any{s.steps}, args...)...) }
	s.run()
	fmt.Println(s.violation)
}
