package frontier

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// mutant is one fault in the simulation, of the server, the statements or the consumer. The
// searches below must find each.
type mutant int

const (
	none mutant = iota
	guardWithoutRevision
	guardWithoutToken
	tokenOutlivesCrash
	cachedLast
	lastBeforeScan
	headForLast
	preparedIsIdle
	abortedIsOver
	noPrepared
	renamedUnknown
	fallsBack
	resetKeepsOpen
	doubtsAfterRows
	rowsBeforeValue
	recordsVisible
	staleAreForgotten
	closesAboveSafe
	locksFirst
	onlyWithID
	oneTransaction
	raisesUnderAnyToken
	cacheOutlivesToken
	cacheOutlivesSession
	cacheServesWatchers
	cacheOverDoubts
	cacheFromTheFirst
	cacheReadsOnce
)

func drawKnobs(choose func(n int) int) knobs {
	flip := func() bool { return choose(2) == 0 }
	k := knobs{
		rules: rules{
			staleAfter: time.Duration(20+choose(150)) * time.Millisecond,
			interval:   time.Duration(1+choose(20)) * time.Millisecond,
			raiseEvery: time.Duration(10+choose(500)) * time.Millisecond,
			named:      choose(4) > 0,
		},
		crashes: flip(), async: flip(), proxied: flip(), renames: flip(), resets: flip(),
		rows:     2 + choose(12),
		stalls:   []int{0, 10, 40, 100}[choose(4)],
		idling:   []int{2, 4, 10}[choose(3)],
		prepares: 8,
		peace:    []int{10, 40, 70}[choose(3)],
		maxSteps: 30_000,
	}
	if choose(4) == 0 {
		k.strict = true
	}
	if choose(3) == 0 {
		k.harborLag = int64(1 + choose(6))
	}
	return k
}

func seeded(seed uint64) func(n int) int { return rand.New(rand.NewPCG(seed, 0)).IntN }

// uniform draws through rapid, so that rapid shrinks a failing run. It draws bit by bit,
// because rapid's ranges and samples prefer small numbers, and so the first actors.
func uniform(t *rapid.T) func(n int) int {
	bit := rapid.Bool()
	return func(n int) int {
		for {
			number := 0
			for rest := n - 1; rest > 0; rest >>= 1 {
				number <<= 1
				if bit.Draw(t, "bit") {
					number++
				}
			}
			if number < n {
				return number
			}
		}
	}
}

// TestProtocol drives the machine and the consumers' decisions through random interleavings. A
// run fails if an event is lost, applied twice, out of order or unaudited. A run that does not
// end fails, too. The trace of a failed run comes last, after rapid's report of its draws. A
// longer search:
//
//	go test ./frontier -run TestProtocol -rapid.checks=100000
func TestProtocol(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	steps := 0
	rapid.Check(t, func(t *rapid.T) {
		choose := uniform(t)
		s := newSim(drawKnobs(choose), choose)
		var story strings.Builder
		s.trace = func(format string, args ...any) { fmt.Fprintf(&story, format+"\n", args...) }
		s.run()
		for what, n := range s.seen {
			seen[what] += n
		}
		steps += s.steps
		if s.violation != "" {
			t.Fatalf("%s\n%+v\n%s", s.violation, s.knobs, &story)
		}
	})
	for _, what := range []string{"stale", "doubts", "narrowed", "narrowed, prepared", "narrowed, aborted", "prepared", "crash", "reset", "overtaken", "rolled back", "raised", "head", "passes doubts", "late", "audited o", "audited v", "audited l", "rows", "tail cache"} {
		if seen[what] == 0 {
			t.Errorf("in %d steps the runs never reached %q", steps, what)
		}
	}
	t.Logf("%d steps, %v", steps, seen)
}

// TestMutantsAreFound checks that the search finds each mutant within a bounded number of
// runs.
func TestMutantsAreFound(t *testing.T) {
	const runs = 100
	for _, c := range mutants {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(runs) {
				if violation := c.run(seed); violation != "" {
					t.Logf("seed %d: %s", seed, violation)
					return
				}
			}
			t.Fatalf("not found in %d runs", runs)
		})
	}
}

type mutantCase struct {
	mutant mutant
	name   string
	need   func(*knobs) // settings without which the mutant changes nothing
}

// run runs the mutant with a seed, and returns the violation, "" if there is none.
func (c mutantCase) run(seed uint64) (violation string) {
	choose := seeded(seed)
	k := drawKnobs(choose)
	k.mutant = c.mutant
	if c.need != nil {
		c.need(&k)
	}
	s := newSim(k, choose)
	s.run()
	return s.violation
}

func withCrashes(k *knobs) { k.crashes, k.async = true, true }
func withDoubts(k *knobs) {
	k.named, k.strict, k.staleAfter, k.idling = true, false, 30*time.Millisecond, 2
}

var mutants = []mutantCase{
	{guardWithoutRevision, "the guard compares the checkpoint only", func(k *knobs) { withDoubts(k); k.peace, k.stalls, k.rows, k.crashes, k.resets = 3, 20, 2, false, false }},
	{guardWithoutToken, "the guard does not compare the incarnation", withCrashes},
	{tokenOutlivesCrash, "the server's start time for a token: a backend's crash leaves it", withCrashes},
	{cachedLast, "a last value outlives a change of state", withDoubts},
	{lastBeforeScan, "the last value was read before the scan", withDoubts},
	{headForLast, "the visible head in place of the last value", withDoubts},
	{preparedIsIdle, "a last value that was read while it sat idle outlives PREPARE TRANSACTION", func(k *knobs) { withDoubts(k); k.renames, k.crashes, k.prepares, k.stalls = false, false, 1, 10 }},
	{abortedIsOver, "an aborted transaction is taken for one that cannot go on from a savepoint", withDoubts},
	{noPrepared, "prepared transactions are no holders", nil},
	{renamedUnknown, "a prepared transaction is taken for another", func(k *knobs) { k.renames = true }},
	{fallsBack, "a checkpoint falls to safe", nil},
	{resetKeepsOpen, "a reset leaves open ranges above it", func(k *knobs) { withDoubts(k); k.resets = true }},
	{doubtsAfterRows, "doubts as they are after the rows were read", withDoubts},
	{rowsBeforeValue, "rows and locks in one statement", nil},
	{recordsVisible, "a doubt is recorded as open though it was visible", nil},
	{staleAreForgotten, "a fence voids what belongs to stale holders", nil},
	{closesAboveSafe, "a range above safe closes because it is not in doubt", nil},
	{locksFirst, "the scan comes before the tail", nil},
	{onlyWithID, "only transactions with an id are holders, as in xmin", nil},
	{oneTransaction, "the statements in one transaction: activity is frozen", withDoubts},
	{raisesUnderAnyToken, "the settled row is raised after a crash", func(k *knobs) { withCrashes(k); k.proxied, k.raiseEvery = true, 100*time.Millisecond }},
	{cacheOutlivesToken, "the tail cache is kept when the token changes", func(k *knobs) { withCrashes(k); k.strict = true }},
	{cacheOutlivesSession, "the tail cache of a session is taken to reach the next one's", nil},
	{cacheServesWatchers, "a consumer with open ranges is served from the tail cache", withDoubts},
	{cacheOverDoubts, "the tail cache goes on over doubts", withDoubts},
	{cacheFromTheFirst, "the tail cache is taken to begin with the log", nil},
	{cacheReadsOnce, "what a tail missed is missing in the tail cache, though the fence closed later", nil},
}
