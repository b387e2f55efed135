package oracle

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

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
