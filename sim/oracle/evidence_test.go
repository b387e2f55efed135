package oracle

import (
	"fmt"
	"slices"
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

// breakRule lets a handler of worker b commit without anything to be handled
// again.
func breakRule(e *history.Evidence) {
	e.Exits[1].Asked = history.ExitBroke
	e.Breaches = append(e.Breaches, history.Breach{Consumer: "all", Worker: "b", Batch: "4294967307", Ended: true, Committed: true, Life: 2})
	e.Repairs = append(e.Repairs, history.Repair{Consumer: "all", From: e.Rest.Head, To: e.Rest.Head, Transaction: "11"})
}
