package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

// flawless draws the evidence of a run in which everything went well: some
// positions were rolled back, some events were late, one consumer wants some
// types only.
func flawless(t *rapid.T) *history.Evidence {
	e := &history.Evidence{
		Consumers: []history.Scope{{Name: "all"}, {Name: "some", Types: []string{"order"}}},
		Refused:   1,
	}
	late := map[int64]bool{}
	versions := map[[2]string]int64{}
	n := rapid.Int64Range(8, 60).Draw(t, "positions")
	for p := int64(1); p <= n; p++ {
		kind := oneOfThe(t, "order", "cart")
		a := [2]string{kind, oneOfThe(t, "1", "2")}
		fate := oneOfThe(t, "committed", "committed", "rolled back", "late")
		switch {
		case p == 1 || p == 3 || p == n: // something of each for certain
			fate, a = "committed", [2]string{"order", "1"}
		case p == 2:
			fate = "rolled back"
		case p == 4:
			fate = "late"
		}
		if fate == "rolled back" {
			e.Abandoned = append(e.Abandoned, history.Event{Position: p, EventID: uuid.New()})
			continue
		}
		if fate == "late" { // of an aggregate of its own: nothing follows it too soon
			late[p], a = true, [2]string{"order", fmt.Sprint("late ", p)}
		}
		versions[a]++
		e.Committed = append(e.Committed, history.Event{Position: p, Type: a[0], ID: a[1], Version: versions[a], EventID: uuid.New()})
	}
	e.Log = slices.Clone(e.Committed)
	for _, c := range e.Consumers {
		consume(t, e, c, n, late)
		s := history.Standing{Consumer: c.Name, Checkpoint: n, Revision: n}
		e.Rest.Standings = append(e.Rest.Standings, s)
		before := history.Standing{Consumer: c.Name, Checkpoint: 4, Revision: 1, Open: []history.Span{{First: 4, Last: 4}}}
		e.Samples = append(e.Samples, []history.Standing{before}, []history.Standing{s})
		e.Sightings = append(e.Sightings, history.Sighting{Positions: []int64{4, 5}, Standings: []history.Standing{before}})
	}
	e.Assignments = []history.Assignment{{Consumer: "all", Worker: "a", Led: true}, {Consumer: "some", Worker: "a", Led: true}}
	e.Rest.Head, e.Rest.Bound, e.Rest.Took = n, time.Minute, time.Second
	e.Exits = []history.Exit{{Worker: "a", Asked: history.ExitCrashed, InTime: true, Error: "no connection"}, {Worker: "b", Asked: history.ExitStopped, InTime: true}}
	return e
}

// consume adds what a consumer leaves in ledger and audit when it works off
// the positions 1 to n in batches.
func consume(t *rapid.T, e *history.Evidence, c history.Scope, n int64, late map[int64]bool) {
	log := byPosition(e.Log)
	var waiting []history.Event // late ones, passed but not delivered
	for from, batch := int64(1), 1; from <= n; batch++ {
		to := min(from+rapid.Int64Range(0, 9).Draw(t, "batch"), n)
		if batch == 1 {
			to = max(to, 4)
		}
		apply := func(event history.Event, isLate bool) {
			if c.Wants(event.Type) {
				e.Ledger = append(e.Ledger, history.Entry{Event: event, Consumer: c.Name, Worker: oneOfThe(t, "a", "b"), Batch: fmt.Sprint(c.Name, batch), Late: isLate})
			}
		}
		first := len(e.Ledger)
		for _, event := range waiting {
			apply(event, true)
			e.Skips = append(e.Skips, history.Skip{Span: history.Span{First: event.Position, Last: event.Position}, Consumer: c.Name, Missing: 1, State: "late"})
		}
		waiting = nil
		void := history.Skip{Consumer: c.Name, State: "void"}
		for p := from; p <= to; p++ {
			event, there := log[p]
			switch {
			case !there:
				if void.Missing == 0 {
					void.First = p
				}
				void.Last = p
				void.Missing++
			case late[p] && to < n:
				waiting = append(waiting, event)
			default:
				apply(event, false)
			}
		}
		if void.Missing > 0 {
			e.Skips = append(e.Skips, void)
		}
		for i := first; i < len(e.Ledger); i++ {
			e.Ledger[i].Worker = e.Ledger[first].Worker
		}
		from = to + 1
	}
}

func oneOfThe(t *rapid.T, values ...string) string {
	return rapid.SampledFrom(values).Draw(t, "choice")
}

func TestFlawlessRunHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, f := range Judge(flawless(t)) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
	})
}

// unsure lets every second event be one that a crash may have taken back.
func unsure(e *history.Evidence) {
	var sure []history.Event
	for i, event := range e.Committed {
		if i%2 == 0 {
			sure = append(sure, event)
		} else {
			e.Unsure = append(e.Unsure, []history.Event{event})
		}
	}
	e.Committed = sure
}

// TestCrashesAreAllowedFor lets a crash take back commits that were not waited
// for, and give their positions out again; it may also set consumers back.
func TestCrashesAreAllowedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := flawless(t)
		unsure(e)
		for _, event := range e.Log {
			event.EventID = uuid.New() // who had the position before
			e.Unsure = append(e.Unsure, []history.Event{event, {Position: e.Rest.Head + 1, EventID: uuid.New()}})
		}
		e.Forgetful = true
		back := slices.Clone(e.Samples[0])
		back[0].Life = 2
		e.Samples = append(e.Samples, back)
		for _, f := range Judge(e) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
		if back, again := afterLives(e); back != int64(len(e.Log)) || again < int64(len(e.Log)) {
			t.Fatalf("%d transactions taken back, %d positions given out again, want %d of each", back, again, len(e.Log))
		}
	})
}

// placeAtHead adds a consumer that was placed at a position, when so many of the
// events up to there were not visible, and that has applied nothing since.
func placeAtHead(e *history.Evidence, position, hidden int64) {
	visible := -hidden
	for _, event := range e.Log {
		visible += one(event.Position <= position)
	}
	e.Consumers = append(e.Consumers, history.Scope{Name: "head", AtHead: true})
	e.Placements = append(e.Placements, history.Placement{Consumer: "head", Position: position, Visible: visible})
	e.Rest.Standings = append(e.Rest.Standings, history.Standing{Consumer: "head", Checkpoint: e.Rest.Head})
}

// What was visible where a consumer was placed is none of its business.
func TestConsumerAtTheHeadNeedNotApplyWhatWasThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := flawless(t)
		placeAtHead(e, e.Rest.Head, 0)
		for _, f := range Judge(e) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
	})
}

// breakRule lets a handler of worker b commit without anything to be handled
// again.
func breakRule(e *history.Evidence) {
	e.Exits[1].Asked = history.ExitBroke
	e.Breaches = append(e.Breaches, history.Breach{Consumer: "all", Worker: "b", Batch: "4294967307", Ended: true, Committed: true, Life: 2})
	e.Repairs = append(e.Repairs, history.Repair{Consumer: "all", From: e.Rest.Head, To: e.Rest.Head, Transaction: "11"})
}

// A handler that ends its transaction is allowed for if its worker ended, and
// the repair was recorded or left to an operator, or may be gone.
func TestBrokenRulesAreAllowedFor(t *testing.T) {
	for name, change := range map[string]func(*history.Evidence){
		"repaired": func(*history.Evidence) {},
		"left to an operator": func(e *history.Evidence) {
			e.Repairs = nil
			e.Breaches = append(e.Breaches, history.Breach{Consumer: "all", Worker: "b", Unknown: &history.Span{First: 1, Last: 1}})
		},
		"set back since": func(e *history.Evidence) {
			e.Repairs, e.Exits[1].Asked, e.Restores = nil, history.ExitStopped, []history.Restore{{Copied: 1, Restored: 3}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := flawless(t)
				breakRule(e)
				change(e)
				for _, f := range Judge(e) {
					if !f.Holds() {
						t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
					}
				}
			})
		})
	}
}

// flaws are ways in which a run can go wrong, and the invariant that must
// break.
var flaws = []struct {
	name, breaks string
	spoil        func(t *rapid.T, e *history.Evidence)
}{
	{"an event lost", "exactly once", func(t *rapid.T, e *history.Evidence) {
		i := anyEntry(t, e)
		e.Ledger = slices.Delete(e.Ledger, i, i+1)
	}},
	{"an event lost by the scoped consumer alone", "exactly once", func(t *rapid.T, e *history.Evidence) {
		i := slices.IndexFunc(e.Ledger, func(x history.Entry) bool { return x.Consumer == "some" })
		e.Ledger = slices.Delete(e.Ledger, i, i+1)
	}},
	{"an event applied again by another worker", "exactly once", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[anyEntry(t, e)]
		x.Worker, x.Batch = "c", "another"
		e.Ledger = append(e.Ledger, x)
	}},
	{"an event applied twice in a batch", "exactly once", func(t *rapid.T, e *history.Evidence) {
		i := anyEntry(t, e)
		e.Ledger = slices.Insert(e.Ledger, i, e.Ledger[i])
	}},
	{"an event applied that was rolled back", "nothing else", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[anyEntry(t, e)]
		x.Position, x.EventID = e.Abandoned[0].Position, uuid.New()
		e.Ledger = append(e.Ledger, x)
	}},
	{"an event out of scope", "nothing else", func(t *rapid.T, e *history.Evidence) {
		i := slices.IndexFunc(e.Ledger, func(x history.Entry) bool { return x.Consumer == "some" })
		e.Ledger[i].Type = "cart"
	}},
	{"an event changed on its way", "nothing else", func(t *rapid.T, e *history.Evidence) { e.Ledger[anyEntry(t, e)].EventID = uuid.New() }},
	{"a committed event not in the log", "nothing else", func(t *rapid.T, e *history.Evidence) { e.Log = e.Log[1:] }},
	{"an event in the log that nobody committed", "nothing else", func(t *rapid.T, e *history.Evidence) { e.Committed = e.Committed[1:] }},
	{"half of a transaction outliving a crash", "nothing else", func(t *rapid.T, e *history.Evidence) {
		e.Unsure = [][]history.Event{{e.Log[0], {Position: e.Log[1].Position, EventID: uuid.New()}}}
	}},
	{"an event that a crash took back, applied", "nothing else", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[anyEntry(t, e)]
		e.Log = slices.DeleteFunc(e.Log, func(event history.Event) bool { return event == x.Event })
		e.Committed = slices.DeleteFunc(e.Committed, func(event history.Event) bool { return event == x.Event })
		e.Unsure = append(e.Unsure, []history.Event{x.Event})
	}},
	{"an event that outlived a crash, lost", "exactly once", func(t *rapid.T, e *history.Evidence) {
		unsure(e)
		i := anyEntry(t, e)
		e.Ledger = slices.Delete(e.Ledger, i, i+1)
	}},
	{"a checkpoint that falls in a crash although its commit was waited for", "forwards", func(t *rapid.T, e *history.Evidence) {
		slices.Reverse(e.Samples)
		e.Samples[0][0].Life = 2
	}},
	{"a checkpoint that falls without a crash", "forwards", func(t *rapid.T, e *history.Evidence) {
		slices.Reverse(e.Samples)
		e.Forgetful = true
	}},
	{"a rolled-back position in the log", "nothing else", func(t *rapid.T, e *history.Evidence) {
		e.Abandoned = append(e.Abandoned, e.Log[0])
	}},
	{"a version left out", "nothing else", func(t *rapid.T, e *history.Evidence) {
		i := rapid.IntRange(0, len(e.Log)-1).Draw(t, "event")
		e.Log[i].Version++
	}},
	{"a stale append let through", "nothing else", func(t *rapid.T, e *history.Evidence) { e.Misled = []string{"it did"} }},
	{"a consumer placed where an event was still to appear", "exactly once", func(t *rapid.T, e *history.Evidence) {
		placeAtHead(e, 4, 1)
	}},
	{"an event below the placement, applied", "exactly once", func(t *rapid.T, e *history.Evidence) {
		placeAtHead(e, 4, 0)
		e.Ledger = append(e.Ledger, history.Entry{Event: e.Log[0], Consumer: "head", Worker: "a", Batch: "too early"})
	}},
	{"an event above the placement, lost", "exactly once", func(t *rapid.T, e *history.Evidence) {
		placeAtHead(e, e.Log[len(e.Log)-1].Position-1, 0)
	}},
	{"an answer of WaitFor that was wrong", "exactly once", func(t *rapid.T, e *history.Evidence) { e.Unkept = []string{"it was"} }},
	{"a setting left behind in a session", "life cycle", func(t *rapid.T, e *history.Evidence) { e.Unsound = []string{"it was"} }},
	{"two events swapped", "order", func(t *rapid.T, e *history.Evidence) {
		var pairs []int
		for i := range e.Ledger[1:] {
			if a, b := e.Ledger[i], e.Ledger[i+1]; a.Consumer == b.Consumer && !a.Late && !b.Late {
				pairs = append(pairs, i)
			}
		}
		i := rapid.SampledFrom(pairs).Draw(t, "pair")
		a, b := e.Ledger[i], e.Ledger[i+1]
		e.Ledger[i].Event, e.Ledger[i+1].Event = b.Event, a.Event
	}},
	{"a version before its predecessor, delivered as late", "order", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[0] // order/1 version 1 for all; versions follow, since the last position is of the same aggregate
		x.Late = true
		e.Ledger = append(e.Ledger[1:], x)
	}},
	{"a late event under a strict order", "order", func(t *rapid.T, e *history.Evidence) {
		e.Strict = true
		e.Ledger[anyEntry(t, e)].Late = true
	}},
	{"two batches that overlap", "one at a time", func(t *rapid.T, e *history.Evidence) {
		e.Ledger[0].Batch, e.Ledger[1].Batch = "x", "y"
		e.Ledger = slices.Insert(e.Ledger, 2, e.Ledger[0])
	}},
	{"two workers in one batch", "one at a time", func(t *rapid.T, e *history.Evidence) {
		e.Ledger[1].Batch, e.Ledger[1].Worker = e.Ledger[0].Batch, "another"
	}},
	{"a batch of a consumer that was another's", "assigned", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[anyEntry(t, e)]
		e.Unauthorized = append(e.Unauthorized, history.UnauthorizedBatch{Consumer: x.Consumer, Worker: x.Worker, Batch: x.Batch})
	}},
	{"a batch without events of a consumer that was another's", "assigned", func(t *rapid.T, e *history.Evidence) {
		e.Unauthorized = append(e.Unauthorized, history.UnauthorizedBatch{Consumer: "all", Worker: "a", Batch: "void"})
	}},
	{"an assignment by a worker that does not lead", "leadership", func(t *rapid.T, e *history.Evidence) {
		e.Assignments[rapid.IntRange(0, 1).Draw(t, "assignment")].Led = false
	}},
	{"a checkpoint beyond an open transaction", "no guessing", func(t *rapid.T, e *history.Evidence) { e.Sightings[0].Standings[0].Open = nil }},
	{"a void position without a row", "audit", func(t *rapid.T, e *history.Evidence) {
		i := anySkip(t, e, "void")
		e.Skips = slices.Delete(e.Skips, i, i+1)
	}},
	{"a row that counts too few", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips[anySkip(t, e, "void")].Missing-- }},
	{"a row that counts too many", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips[anySkip(t, e, "void")].Missing++ }},
	{"a row twice", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips = append(e.Skips, e.Skips[anySkip(t, e, "void")]) }},
	{"a visible position counted as void", "audit", func(t *rapid.T, e *history.Evidence) {
		p := e.Log[rapid.IntRange(0, len(e.Log)-1).Draw(t, "event")].Position
		e.Skips = append(e.Skips, history.Skip{Span: history.Span{First: p, Last: p}, Consumer: "all", Missing: 1, State: "void"})
	}},
	{"a row with the wrong range", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips[anySkip(t, e, "void")].First = 1 }},
	{"a row above the checkpoint", "audit", func(t *rapid.T, e *history.Evidence) {
		p := e.Rest.Head + 1
		e.Skips = append(e.Skips, history.Skip{Span: history.Span{First: p, Last: p}, Consumer: "all", Missing: 1, State: "void"})
	}},
	{"a late event without a row", "audit", func(t *rapid.T, e *history.Evidence) {
		e.Skips = slices.DeleteFunc(e.Skips, func(s history.Skip) bool { return s.State == "late" })
		e.Ledger[anyEntry(t, e)].Late = true
	}},
	{"a void position recorded as late", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips[anySkip(t, e, "void")].State = "late" }},
	{"a row of an unknown state", "audit", func(t *rapid.T, e *history.Evidence) { e.Skips[anySkip(t, e, "void")].State = "maybe" }},
	{"a checkpoint that falls", "forwards", func(t *rapid.T, e *history.Evidence) { slices.Reverse(e.Samples) }},
	{"a checkpoint short of the head", "comes to rest", func(t *rapid.T, e *history.Evidence) { e.Rest.Standings[0].Checkpoint-- }},
	{"a range left open", "comes to rest", func(t *rapid.T, e *history.Evidence) { e.Rest.Standings[1].Open = []history.Span{{First: 4, Last: 4}} }},
	{"a consumer without a checkpoint", "comes to rest", func(t *rapid.T, e *history.Evidence) { e.Rest.Standings = e.Rest.Standings[1:] }},
	{"a worker that ends by itself", "life cycle", func(t *rapid.T, e *history.Evidence) { e.Exits[1].Asked = "" }},
	{"a worker that stops with an error", "life cycle", func(t *rapid.T, e *history.Evidence) { e.Exits[1].Error = "no" }},
	{"a worker that goes on after its handler has ended a transaction", "life cycle", func(t *rapid.T, e *history.Evidence) {
		breakRule(e)
		e.Exits[1].Asked = history.ExitStopped
	}},
	{"a handler's commit that nobody repaired", "audit", func(t *rapid.T, e *history.Evidence) {
		breakRule(e)
		e.Repairs[0].Transaction = "12"
	}},
	{"a worker that does not end", "life cycle", func(t *rapid.T, e *history.Evidence) { e.Exits[0].InTime = false }},
}

func anyEntry(t *rapid.T, e *history.Evidence) int {
	return rapid.IntRange(0, len(e.Ledger)-1).Draw(t, "entry")
}

func anySkip(t *rapid.T, e *history.Evidence, state string) int {
	var found []int
	for i, s := range e.Skips {
		if s.State == state {
			found = append(found, i)
		}
	}
	return rapid.SampledFrom(found).Draw(t, "row")
}

func TestFlawIsFound(t *testing.T) {
	for _, flaw := range flaws {
		t.Run(flaw.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := flawless(t)
				flaw.spoil(t, e)
				findings := Judge(e)
				i := slices.IndexFunc(findings, func(f Finding) bool { return f.Name == flaw.breaks })
				if i < 0 || findings[i].Broken == 0 {
					t.Fatalf("%q did not break; the findings: %+v", flaw.breaks, findings)
				}
				if len(findings[i].Examples) == 0 || findings[i].Examples[0] == "" {
					t.Fatalf("%q broke without an example", flaw.breaks)
				}
			})
		})
	}
}

func TestNothingCheckedIsNotHeld(t *testing.T) {
	for _, f := range Judge(&history.Evidence{}) {
		if f.Name != "comes to rest" && (f.Checks != 0 || f.Holds()) {
			t.Errorf("%s: %d checks of nothing, holds: %v", f.Name, f.Checks, f.Holds())
		}
	}
}

func TestExamplesAreFew(t *testing.T) {
	var f Finding
	for range 100 {
		f.check(false, func() string { return "wrong" })
	}
	if f.Broken != 100 || len(f.Examples) != maxExamples {
		t.Errorf("broken %d times with %d examples, want 100 with %d", f.Broken, len(f.Examples), maxExamples)
	}
}

// TestShareOutIsMaximal compares with all possible ways.
func TestShareOutIsMaximal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positions := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.Int64Range(1, 12), 0, 7, rapid.ID).Draw(t, "positions")))
		rows := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) history.Skip {
			first := rapid.Int64Range(1, 12).Draw(t, "first")
			return history.Skip{Span: history.Span{First: first, Last: first + rapid.Int64Range(0, 6).Draw(t, "length")}, Missing: rapid.Int64Range(0, 3).Draw(t, "missing")}
		}), 0, 5).Draw(t, "rows")
		unplaced, spare := shareOut(positions, rows)
		room := make([]int64, len(rows))
		taken := int64(0)
		for i, row := range rows {
			room[i] = row.Missing
			if spare[i] < 0 || spare[i] > row.Missing {
				t.Fatalf("row %v lacks %d", row, spare[i])
			}
			taken += row.Missing - spare[i]
		}
		if placed := int64(len(positions) - len(unplaced)); placed != taken || placed != mostPlaced(positions, rows, room) {
			t.Fatalf("%d placed, %d taken, %d possible", placed, taken, mostPlaced(positions, rows, room))
		}
	})
}

func mostPlaced(positions []int64, rows []history.Skip, room []int64) int64 {
	if len(positions) == 0 {
		return 0
	}
	most := mostPlaced(positions[1:], rows, room)
	for i, row := range rows {
		if row.Holds(positions[0]) && room[i] > 0 {
			room[i]--
			most = max(most, 1+mostPlaced(positions[1:], rows, room))
			room[i]++
		}
	}
	return most
}

func TestVerdict(t *testing.T) {
	held := Finding{Name: "a", Checks: 3}
	for _, c := range []struct {
		name     string
		findings []Finding
		held     bool
		says     string
	}{
		{"all held", []Finding{held}, true, "all 1 invariants held over 1,234 events, at least 7 for each consumer, and 3 worker crashes"},
		{"one broken", []Finding{held, {Name: "b", Checks: 9, Broken: 2}}, false, `BROKEN: "b" (2 times)`},
		{"one never checked", []Finding{held, {Name: "b"}}, false, `never checked: "b"`},
		{"nothing judged", nil, false, "nothing was judged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{Events: 1234, Handled: []Handled{{"a", 9}, {"b", 7}}, Counts: []history.Count{{Fault: history.Crashes, Count: 1}, {Fault: history.CommitCrashes, Count: 1}, {Fault: history.IdleCrashes, Count: 1}}, Invariants: c.findings}
			r.judge()
			if r.Held != c.held || !strings.Contains(r.Verdict, c.says) {
				t.Errorf("held %v, %q; want %v, %q", r.Held, r.Verdict, c.held, c.says)
			}
		})
	}
}
