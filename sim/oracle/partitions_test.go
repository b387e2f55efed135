package oracle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/sim/history"
)

// splitWalk is the way of consumer "c" through a log in which odd positions have
// events and even ones have none, while it is split, merged and set back.
type splitWalk struct {
	history.Evidence
	n        int64
	units    []history.Standing // in order
	revision int64
	resets   int64
	batch    int
}

func (w *splitWalk) sample() { w.Samples = append(w.Samples, slices.Clone(w.units)) }

// advance is a batch of a unit.
func (w *splitWalk) advance(i int, to int64) {
	u := &w.units[i]
	w.batch++
	for p := u.Checkpoint + 1; p <= to; p++ {
		switch event := w.Log[(p-1)/2]; {
		case p%2 == 0:
			w.Skips = append(w.Skips, history.Skip{Span: history.Span{First: p, Last: p}, Consumer: u.Consumer, Missing: 1, State: "void", Epoch: w.resets})
		case wants(history.Scope{Name: u.Consumer}, event):
			w.Ledger = append(w.Ledger, history.Entry{Event: event, Consumer: "c", Worker: "a", Batch: fmt.Sprint(w.batch), Replay: has(w.Ledger, event.Position), Epoch: w.resets})
		}
	}
	w.revision++
	u.Checkpoint, u.Revision = max(to, u.Checkpoint), w.revision
}

// reset sets all units back that are beyond a position.
func (w *splitWalk) reset(to int64) {
	for i := range w.units {
		u := &w.units[i]
		if u.Checkpoint > to {
			w.Operations = append(w.Operations, history.Operation{Consumer: u.Consumer, Kind: history.OperationReset, Epoch: w.resets, From: u.Checkpoint, To: to})
			w.resets, w.revision = w.resets+1, w.revision+1
			u.Checkpoint, u.Revision = to, w.revision
		}
	}
	for i := range w.units {
		w.units[i].Epoch = w.resets
	}
}

// rescale replaces units by those of a layout: after a merge, at one position.
func (w *splitWalk) rescale(n int) {
	at := slices.MaxFunc(w.units, func(a, b history.Standing) int { return int(a.Checkpoint - b.Checkpoint) }).Checkpoint
	for i := range w.units {
		w.advance(i, at)
	}
	w.units = nil
	w.revision++
	for _, r := range partition.Cut(n) {
		w.units = append(w.units, history.Standing{Consumer: partition.Name("c", r), Checkpoint: at, Revision: w.revision, Epoch: w.resets})
	}
}

func splitRun(t *rapid.T) *history.Evidence {
	w := &splitWalk{n: 2*rapid.Int64Range(10, 30).Draw(t, "events") + 1}
	w.Consumers, w.Refused = []history.Scope{{Name: "c", Partitioned: true}}, 1
	w.Assignments = []history.Assignment{{Consumer: "c", Worker: "a", Led: true}}
	versions := map[string]int64{}
	for p := int64(1); p <= w.n; p += 2 {
		id := fmt.Sprint("a", rapid.IntRange(0, 9).Draw(t, "aggregate"))
		if p <= 3 { // two of one for certain
			id = "a0"
		}
		versions[id]++
		w.Log = append(w.Log, history.Event{Position: p, Type: "order", ID: id, Version: versions[id], EventID: uuid.New()})
	}
	w.Committed = slices.Clone(w.Log)
	w.units = []history.Standing{{Consumer: "c"}}
	w.advance(0, 5)
	w.sample()
	w.rescale(3)
	w.sample()
	w.advance(1, 9)
	w.reset(7)
	w.sample()
	for range rapid.IntRange(0, 12).Draw(t, "moves") {
		switch rapid.SampledFrom([]string{"advance", "advance", "rescale", "reset"}).Draw(t, "move") {
		case "advance":
			i := rapid.IntRange(0, len(w.units)-1).Draw(t, "unit")
			w.advance(i, rapid.Int64Range(w.units[i].Checkpoint, w.n).Draw(t, "to"))
		case "rescale":
			w.rescale(rapid.IntRange(1, 4).Draw(t, "units"))
		default:
			w.reset(rapid.Int64Range(0, w.n).Draw(t, "to"))
		}
		w.sample()
	}
	w.rescale(2)
	w.advance(0, w.n)
	w.advance(1, w.n)
	w.sample()
	w.Rest = history.Rest{Head: w.n, Bound: time.Minute, Standings: w.units, Partitions: 2}
	w.Sightings = []history.Sighting{{Positions: []int64{w.n + 1}, Standings: w.Samples[0]}}
	w.Exits = []history.Exit{{Worker: "a", Asked: history.ExitStopped, InTime: true}}
	return &w.Evidence
}

func TestPartitionsOfASoundRunHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := splitRun(t)
		for _, f := range Judge(e) {
			if !f.Holds() {
				t.Fatalf("%+v\noperations %+v\nsamples %+v", f, e.Operations, e.Samples)
			}
		}
	})
}

// The samples begin with the consumer, its three units, and those once two of them
// were set back.
func TestBrokenPartitionsAreFound(t *testing.T) {
	for name, flaw := range map[string]struct {
		breaks string
		spoil  func(e *history.Evidence)
	}{
		"a unit is missing":           {"partitions", func(e *history.Evidence) { e.Samples[1] = slices.Delete(e.Samples[1], 1, 2) }},
		"the last unit is missing":    {"partitions", func(e *history.Evidence) { e.Samples[1] = e.Samples[1][:2] }},
		"two units of a key":          {"partitions", func(e *history.Evidence) { e.Samples[1][1].Consumer = "c#500-aa9" }},
		"the own row beside units":    {"partitions", func(e *history.Evidence) { e.Samples[1] = append(e.Samples[1], e.Samples[0][0]) }},
		"a name that no unit has":     {"partitions", func(e *history.Evidence) { e.Samples[1][1].Consumer = "c#8-bff" }},
		"a child at revision 0":       {"partitions", func(e *history.Evidence) { e.Samples[1][0].Revision = 0 }},
		"another layout than wanted":  {"partitions", func(e *history.Evidence) { e.Rest.Partitions = 3 }},
		"a split that falls back":     {"forwards", func(e *history.Evidence) { e.Samples[1][1].Checkpoint = 4 }},
		"a unit that falls back":      {"forwards", func(e *history.Evidence) { e.Samples[2][0].Checkpoint = 4 }},
		"a unit not at the head":      {"comes to rest", func(e *history.Evidence) { e.Rest.Standings[1].Checkpoint-- }},
		"a unit in doubt":             {"comes to rest", func(e *history.Evidence) { e.Rest.Standings[0].Open = []history.Span{{First: 1, Last: 1}} }},
		"a unit without a checkpoint": {"comes to rest", func(e *history.Evidence) { e.Rest.Standings = e.Rest.Standings[:1] }},
		"an event lost":               {"exactly once", func(e *history.Evidence) { e.Ledger = slices.Delete(e.Ledger, 1, 2) }},
		"an event applied twice":      {"exactly once", func(e *history.Evidence) { e.Ledger = append(e.Ledger, e.Ledger[0]) }},
		"an event applied after a reset of others": {"exactly once", func(e *history.Evidence) {
			x := e.Ledger[0] // below what was reset
			x.Epoch = 1
			e.Ledger = append(e.Ledger, x)
		}},
		"an effect left out": {"effects", func(e *history.Evidence) { e.Ledger[0].Replay = true }},
		"a key out of order": {"order", func(e *history.Evidence) { e.Ledger[0], e.Ledger[1] = e.Ledger[1], e.Ledger[0] }},
		"batches of a key that overlap": {"one at a time", func(e *history.Evidence) {
			x, y := e.Ledger[0], e.Ledger[0]
			x.Batch, y.Batch = "x", "y"
			e.Ledger = append(e.Ledger, x, y, x)
		}},
		"a void position in no row of one unit": {"audit", func(e *history.Evidence) {
			i := slices.IndexFunc(e.Skips, func(s history.Skip) bool { return s.Consumer == e.Samples[1][1].Consumer })
			e.Skips = slices.Delete(e.Skips, i, i+1)
		}},
		"a void position in two rows of one unit": {"audit", func(e *history.Evidence) {
			e.Skips = append(e.Skips, history.Skip{Span: history.Span{First: 2, Last: 2}, Consumer: e.Samples[1][0].Consumer, Missing: 1, State: "void"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range 10 {
				e := rapid.Custom(splitRun).Example(seed)
				flaw.spoil(e)
				findings := Judge(e)
				if i := slices.IndexFunc(findings, func(f Finding) bool { return f.Name == flaw.breaks }); findings[i].Broken == 0 {
					t.Fatalf("%q did not break; the findings: %+v", flaw.breaks, findings)
				}
			}
		})
	}
}

// A part that has passed a position as void is merged with one that watches it: then
// it is void again, for that part.
func TestWhatAMergeWatchesAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := splitRun(t)
		again := history.Skip{Span: history.Span{First: 2, Last: 2}, Missing: 1, State: "void", Consumer: "c#000-7ff"}
		e.Skips = append(e.Skips, again)
		e.Rewatched = []history.Skip{{Span: again.Span, Consumer: "c#000-7ff"}}
		if f := audit(inRanges(e)); !f.Holds() {
			t.Fatalf("%+v", f)
		}
		e.Rewatched[0].Consumer = e.Samples[1][0].Consumer
		if f := audit(inRanges(e)); f.Holds() {
			t.Fatal("one part watched it again, and another has it twice: not found")
		}
	})
}

func TestSlotsAreThoseOfTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "id")
		if got, want := slotOf(history.Event{ID: id}), int64(partition.Slot(id)); got != want {
			t.Fatalf("%q: %d, want %d", id, got, want)
		}
		n := rapid.IntRange(1, 256).Draw(t, "n")
		r := rapid.SampledFrom(partition.Cut(n)).Draw(t, "range")
		if c, of, ok := slotsOf(partition.Name("c", r)); !ok || c != "c" || of != (history.Span{First: int64(r.First), Last: int64(r.Last)}) {
			t.Fatalf("%v: %s %v %v", r, c, of, ok)
		}
	})
}

// A reset that was undone as a copy of the server was put back explains a range that fell, and
// no other fall.
func TestUndoneResetOfAPartitionedConsumer(t *testing.T) {
	for epoch, broken := range map[int64]int64{0: 1, 1: 0} {
		at := func(position, life, epoch int64) []history.Standing {
			return []history.Standing{{Consumer: "p", Checkpoint: position, Revision: 2 + epoch, Epoch: epoch, Life: life}}
		}
		e := &history.Evidence{
			Consumers: []history.Scope{{Name: "p", Partitioned: true}}, Restores: []history.Restore{{Copied: 1, Restored: 3}},
			Samples: [][]history.Standing{at(12, 0, 0), at(12, 2, 0), at(0, 2, epoch), at(12, 4, 0), at(20, 4, 0)},
		}
		if f := forwards(inRanges(e)); f.Broken != broken {
			t.Errorf("with %d resets that were undone, broken %d times, want %d: %v", epoch, f.Broken, broken, f.Examples)
		}
	}
}
