package consume

import (
	"bytes"
	"flag"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// script holds all decisions of one run. Played twice, it does the same twice, except that
// after a crash the server may issue other positions.
type script struct {
	calm      bool // no faults of server and network
	async     bool // synchronous_commit=off: a crash loses commits
	pooled    bool // the workers' sessions survive the server, as through a proxy
	named     bool // the log names its sequence
	old       bool // every transaction began long before it is first seen
	policy    GapPolicy
	stale     time.Duration
	harborLag int
	batchSize int
	maxOpen   int
	steps     [][]step
	commits   []bool // whether the transactions that are open at the end commit
}

func (s script) settings() settings {
	return settings{s.calm, s.async, s.pooled, s.named, s.old, string(s.policy), s.stale.String(), s.harborLag, s.batchSize, s.maxOpen}
}

// step is one action. Its actor and its object are indexes among the possible ones at that
// time.
type step struct {
	do        int // index of actions
	who, what int
}

func (s step) GoString() string { return fmt.Sprintf("%s(%d,%d)", actions[s.do].name, s.who, s.what) }

// actions are the actions of scripts, with their weights.
var actions = []struct {
	name   string
	weight int
	do     func(s *stage, who, what int)
}{
	{"nothing", 1, func(*stage, int, int) {}}, // rapid shrinks other actions to this one
	{"append", 32, (*stage).append},
	{"reserve", 10, (*stage).reserve},
	{"burn", 3, (*stage).burn},
	{"hand on", 4, (*stage).handOn},
	{"hand on meanwhile", 8, (*stage).handOnMeanwhile},
	{"savepoint", 4, (*stage).savepoint},
	{"rollback to", 4, (*stage).rollbackTo},
	{"commit", 20, (*stage).commit},
	{"roll back", 7, (*stage).rollback},
	{"prepare", 4, (*stage).prepare},
	{"commit prepared", 3, (*stage).commitPrepared},
	{"roll back prepared", 2, (*stage).rollbackPrepared},
	{"terminate", 1, (*stage).terminate},
	{"frontier", 28, (*stage).stepFrontier},
	{"look", 16, (*stage).pollFrontier},
	{"go past", 8, (*stage).goPast},
	{"keep up", 8, (*stage).keepUp},
	{"time", 6, (*stage).pass},
	{"loop", 40, (*stage).stepLoop},
	{"batch", 26, (*stage).stepBatch},
	{"watch", 4, (*stage).watch},
	{"take over", 14, (*stage).takeOver},
	{"reset", 4, (*stage).reset},
	{"fail", 3, (*stage).fail},
	{"lose", 3, (*stage).lose},
	{"cut", 1, (*stage).cut},
	{"crash", 1, (*stage).crash},
	{"checkpoint", 2, (*stage).checkpoint},
	{"crash between", 4, (*stage).crashBetween},
	{"crash behind", 2, (*stage).crashBehind},
}

func drawScript(t *rapid.T) script {
	s := script{
		calm:      uniform(4).Draw(t, "calm") == 0,
		async:     uniform(3).Draw(t, "async") > 0,
		pooled:    rapid.Bool().Draw(t, "pooled"),
		named:     uniform(4).Draw(t, "named") < 3,
		old:       uniform(4).Draw(t, "old") == 3,
		policy:    GapSkipStale,
		stale:     []time.Duration{quantum, 3 * quantum}[uniform(2).Draw(t, "stale")],
		harborLag: []int{0, 0, 0, 2}[uniform(4).Draw(t, "harbor lag")],
		batchSize: 1 + uniform(5).Draw(t, "batch size"),
		maxOpen:   []int{100, 100, 2, 1}[uniform(4).Draw(t, "max open")],
	}
	if uniform(6).Draw(t, "policy") == 5 {
		s.policy = GapWait
	}
	one := rapid.Custom(func(t *rapid.T) step {
		return step{weighted.Draw(t, "do"), uniform(12).Draw(t, "who"), uniform(1<<20).Draw(t, "what")}
	})
	// Nested, because rapid draws short slices.
	s.steps = rapid.SliceOfN(rapid.SliceOfN(one, 6, 30), 6, 60).Draw(t, "steps")
	s.commits = rapid.SliceOfN(rapid.Bool(), 4, 4).Draw(t, "commits")
	return s
}

// uniform draws 0 to n-1 with about equal frequency. The ranges and samples of rapid prefer
// their ends.
func uniform(n int) *rapid.Generator[int] {
	fine := bits.Len(uint(n-1)) + 4
	return rapid.Custom(func(t *rapid.T) int {
		drawn := 0
		for range fine {
			drawn <<= 1
			if rapid.Bool().Draw(t, "bit") {
				drawn++
			}
		}
		return drawn * n >> fine
	})
}

// choices splits a drawn number: each call takes one of n from it.
func choices(drawn int) func(n int) int {
	return func(n int) int {
		choice := drawn % n
		drawn /= n
		return choice
	}
}

// weighted draws an action.
var weighted = func() *rapid.Generator[int] {
	var hat []int
	for i, d := range actions {
		hat = append(hat, slices.Repeat([]int{i}, d.weight)...)
	}
	return rapid.Map(uniform(len(hat)), func(i int) int { return hat[i] })
}()

// TestStepped plays random scripts on a real server, one statement of one actor at a time.
// Writers append, roll back, prepare and die. Two workers have frontiers that poll, and
// loops that both believe to own the consumers. Operators set consumers back, and the
// server crashes. In the end every event of the log must have been handled exactly once and
// in order, and every other position must have been audited. A longer search, and a single
// seed, whose history is written to stepped.jsonl:
//
//	make stepped
//	make stepped SEED=7
//
// A failing script is shrunk for half a minute. The test prints the result, with the
// command that plays it again and the file of its history.
func TestStepped(t *testing.T) {
	tier.Checks(t, 6, 100) // of each part
	parts := 2
	if flag.Lookup("rapid.seed").Value.String() != "0" || flag.Lookup("rapid.failfile").Value.String() != "" {
		parts = 1 // the part that plays the scripts of the seed; another part would play the same
	}
	t.Cleanup(func() {
		if t.Failed() {
			sayHowToRepeat(t)
		}
	})
	var mu sync.Mutex
	scripts, seen := 0, map[string]int{}
	t.Run("parts", func(t *testing.T) {
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel() // a script mostly waits for its server
				played, saw := playMany(t)
				mu.Lock()
				defer mu.Unlock()
				scripts += played
				for what, n := range saw {
					seen[what] += n
				}
			})
		}
	})
	t.Logf("in %d scripts: %v", scripts, seen)
	for what, enough := range mustSee {
		if scripts >= enough && seen[what] == 0 {
			t.Errorf("in %d scripts it never came to %q", scripts, what)
		}
	}
}

// playMany plays scripts on a server of their own. It returns their number and the number
// of occurrences by name.
func playMany(t *testing.T) (scripts int, seen map[string]int) {
	server := newSteppedServer(t)
	seen = map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := drawScript(t)
		scripts++
		// The clock is the bubble's. It stands still while a goroutine waits for the
		// server, and moves when the script moves it.
		rapid.SyncTest(t, func(t *rapid.T) { play(t, server, s, seen) })
	})
	return scripts, seen
}

// mustSee are the occurrences that the scripts exist for. The number is of scripts after
// which an occurrence cannot be missing by chance.
var mustSee = map[string]int{
	"doubts": 40, "late": 40, "void": 40, "reserved": 40, "prepared": 40, "native": 6, "promises": 40, "overtaken": 40,
	"read ahead": 40, "shared": 40, "reset": 40, "failed": 40, "crash": 40, "kill": 40, "outlived": 40,
	"guard waits": 200, "terminated": 200, "cut": 200, "lost": 200, "commits undone": 40,
}

// TestSteppedTwice plays scripts twice. The histories are the same, byte for byte, so a
// failing script fails again.
func TestSteppedTwice(t *testing.T) {
	tier.Checks(t, 2, 50)
	server := newSteppedServer(t)
	rapid.Check(t, func(t *rapid.T) {
		s := drawScript(t)
		var histories [2]bytes.Buffer
		for i := range histories {
			rapid.SyncTest(t, func(t *rapid.T) {
				if err := play(t, server, s, map[string]int{}).history.WriteJSONLines(&histories[i]); err != nil {
					t.Fatal(err)
				}
			})
		}
		if parted := firstDifference(histories[0].String(), histories[1].String()); parted != "" {
			t.Fatal(parted)
		}
	})
}

// firstDifference returns where two histories differ, and the lines before.
func firstDifference(one, other string) string {
	if one == other {
		return ""
	}
	a, b := strings.Split(one, "\n"), strings.Split(other, "\n")
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	shown := func(lines []string) string { return strings.Join(lines[min(n, len(lines)):min(n+3, len(lines))], "\n") }
	return fmt.Sprintf("after\n%s\nthe first time came\n%s\nand the second time\n%s", strings.Join(a[max(0, n-12):n], "\n"), shown(a), shown(b))
}

// play plays a script to its end, lets all actors finish, and judges.
func play(t *rapid.T, server *steppedServer, script script, seen map[string]int) *stage {
	s := newStage(t, server, script, seen)
	ended := false
	defer func() {
		if !ended || t.Failed() {
			s.keep(failedHistory) // rapid plays the smallest script last
		}
	}()
	for _, step := range slices.Concat(script.steps...) {
		s.record("", "", actionBegun, deed{actions[step.do].name, step.who, step.what})
		actions[step.do].do(s, step.who, step.what)
		s.settle()
	}
	s.finish()
	s.judge()
	ended = true
	if *historyFile != "" {
		s.keep(*historyFile)
	}
	return s
}
