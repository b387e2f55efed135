package oracle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

// walk is one consumer's way through a log in which operators interfere, as
// the library is to go it.
type walk struct {
	history.Evidence
	log     map[int64]history.Event
	n       int64
	at      int64
	epoch   int64
	batch   int
	waiting []int64 // passed in doubt
}

// operated draws the evidence of such a run: odd positions are committed, every
// fourth even one too, after it has been in doubt the first time.
func operated(t *rapid.T) *history.Evidence {
	w := &walk{log: map[int64]history.Event{}, n: rapid.Int64Range(20, 40).Draw(t, "positions")*2 + 1}
	w.Consumers, w.Refused = []history.Scope{{Name: "all"}}, 1
	w.Assignments = []history.Assignment{{Consumer: "all", Worker: "a", Led: true}}
	for p := int64(1); p <= w.n; p++ {
		event := history.Event{Position: p, Type: "order", ID: "1", Version: (p + 1) / 2, EventID: uuid.New()}
		if p%8 == 0 {
			event.ID, event.Version = fmt.Sprint("late ", p), 1
		}
		if p%2 == 0 && p%8 != 0 {
			w.Abandoned = append(w.Abandoned, event)
			continue
		}
		w.log[p], w.Committed = event, append(w.Committed, event)
	}
	w.Log = slices.Clone(w.Committed)
	w.advance(12) // position 8 waits
	w.sample()
	w.setBack(6) // and is forgotten
	w.advance(18)
	w.setBack(16) // waits on: it is not above
	w.sample()
	w.setForward(19)
	w.advance(21)
	for range rapid.IntRange(0, 6).Draw(t, "moves") {
		switch rapid.SampledFrom([]string{"advance", "back", "forward", "skip"}).Draw(t, "move") {
		case "back":
			if w.at > 0 {
				w.setBack(rapid.Int64Range(0, w.at-1).Draw(t, "to"))
			}
		case "forward":
			if w.at < w.n-1 {
				w.setForward(rapid.Int64Range(w.at+1, w.n-1).Draw(t, "to"))
			}
		case "skip":
			w.skip()
		default:
			w.advance(rapid.Int64Range(w.at, w.n).Draw(t, "to"))
		}
		w.sample()
	}
	w.advance(w.n)
	w.advance(w.n) // what still waits
	w.Rest = history.Rest{Head: w.n, Bound: time.Minute, Standings: w.sample()}
	w.Sightings = []history.Sighting{{Positions: []int64{8}, Standings: w.Samples[0]}}
	w.Exits = []history.Exit{{Worker: "a", Asked: history.ExitStopped, InTime: true}}
	return &w.Evidence
}

func (w *walk) sample() []history.Standing {
	s := history.Standing{Consumer: "all", Checkpoint: w.at, Revision: int64(len(w.Samples)), Epoch: w.epoch}
	for _, p := range w.waiting {
		s.Open = append(s.Open, history.Span{First: p, Last: p})
	}
	w.Samples = append(w.Samples, []history.Standing{s})
	return w.Samples[len(w.Samples)-1]
}

func (w *walk) audit(state string, first, last, missing int64) {
	w.Skips = append(w.Skips, history.Skip{Span: history.Span{First: first, Last: last}, Consumer: "all", Missing: missing, State: state, Epoch: w.epoch})
}

func (w *walk) apply(p int64, late bool) {
	w.Ledger = append(w.Ledger, history.Entry{Event: w.log[p], Consumer: "all", Worker: "a", Batch: fmt.Sprint(w.batch), Late: late, Replay: has(w.Ledger, p), Epoch: w.epoch})
}

// has reports whether an event was applied.
func has(ledger []history.Entry, position int64) bool {
	return slices.ContainsFunc(ledger, func(x history.Entry) bool { return x.Position == position })
}

// advance is a batch. The last doubts have ended before the end of the log.
func (w *walk) advance(to int64) {
	w.batch++
	for _, p := range w.waiting {
		if _, there := w.log[p]; !there {
			w.audit("void", p, p, 1)
			continue
		}
		w.apply(p, true)
		w.audit("late", p, p, 1)
	}
	w.waiting = nil
	doubts := to < w.n
	w.void(to, doubts, func(p int64) {
		if p%8 == 0 && doubts {
			w.waiting = append(w.waiting, p)
		} else {
			w.apply(p, false)
		}
	})
}

// void goes to a position and audits what is void on the way, but for what is in doubt.
func (w *walk) void(to int64, doubts bool, event func(int64)) {
	var first, last, missing int64
	for p := w.at + 1; p <= to; p++ {
		if _, there := w.log[p]; there {
			event(p)
			continue
		}
		if p%8 == 4 && doubts {
			w.waiting = append(w.waiting, p)
			continue
		}
		if missing++; missing == 1 {
			first = p
		}
		last = p
	}
	if missing > 0 {
		w.audit("void", first, last, missing)
	}
	w.at = to
}

func (w *walk) operate(kind string, from, to int64) {
	w.Operations = append(w.Operations, history.Operation{Consumer: "all", Kind: kind, Epoch: w.epoch, From: from, To: to})
}

func (w *walk) setBack(to int64) {
	w.operate(history.OperationReset, w.at, to)
	for _, p := range w.waiting {
		if p > to {
			w.Forgotten = append(w.Forgotten, history.Skip{Span: history.Span{First: p, Last: p}, Consumer: "all", State: "open", Epoch: w.epoch})
		}
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(p int64) bool { return p > to })
	w.at = to
	w.epoch++
}

func (w *walk) setForward(to int64) {
	w.operate(history.OperationReset, w.at, to)
	w.void(to, false, func(int64) {})
	w.epoch++
}

// skip leaves out the event that comes next.
func (w *walk) skip() {
	if at := slices.IndexFunc(w.waiting, func(p int64) bool { return w.log[p].Position > 0 }); at >= 0 {
		p := w.waiting[at]
		w.waiting = slices.Delete(w.waiting, at, at+1)
		w.audit("late", p, p, 1)
		w.operate(history.OperationSkip, w.at, p)
		return
	}
	for p := w.at + 1; p <= w.n; p++ {
		if _, there := w.log[p]; there {
			w.operate(history.OperationSkip, w.at, p)
			w.void(p, false, func(int64) {})
			return
		}
	}
}

func TestOperatorsAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, f := range Judge(operated(t)) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
	})
}

// flawsOfEpochs are ways in which a run with operators can go wrong.
var flawsOfEpochs = []struct {
	name, breaks string
	spoil        func(t *rapid.T, e *history.Evidence)
}{
	{"an event lost in some epoch", "exactly once", func(t *rapid.T, e *history.Evidence) {
		i := anyEntry(t, e)
		e.Ledger = slices.Delete(e.Ledger, i, i+1)
	}},
	{"an event applied twice within an epoch", "exactly once", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[anyEntry(t, e)]
		x.Batch = "another"
		e.Ledger = append(e.Ledger, x)
	}},
	{"an event that an operator let it leave out", "exactly once", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[0]
		x.Event, x.Epoch, x.Late = byPosition(e.Log)[17], 2, true // it was set forward from 16 to 19
		e.Ledger = append(e.Ledger, x)
	}},
	{"an event watched for beyond the reset that forgot it", "exactly once", func(t *rapid.T, e *history.Evidence) {
		x := e.Ledger[0]
		x.Event, x.Epoch, x.Late = byPosition(e.Log)[8], 1, true // it comes in this epoch anyway, or in the next
		e.Ledger = append(e.Ledger, x)
	}},
	{"a late event forgotten by a reset to above it", "exactly once", func(t *rapid.T, e *history.Evidence) {
		i := slices.IndexFunc(e.Ledger, func(x history.Entry) bool { return x.Position == 8 && x.Late })
		e.Ledger = slices.Delete(e.Ledger, i, i+1)
	}},
	{"an effect repeated, or left out", "effects", func(t *rapid.T, e *history.Evidence) {
		x := &e.Ledger[anyEntry(t, e)]
		x.Replay = !x.Replay
	}},
	{"the row of what is void twice", "audit", func(t *rapid.T, e *history.Evidence) {
		e.Skips = append(e.Skips, e.Skips[anySkip(t, e, "void")])
	}},
	{"no row of what is void", "audit", func(t *rapid.T, e *history.Evidence) {
		i := anySkip(t, e, "void")
		e.Skips = slices.Delete(e.Skips, i, i+1)
	}},
	{"no row of what is late", "audit", func(t *rapid.T, e *history.Evidence) {
		e.Skips = slices.DeleteFunc(e.Skips, func(s history.Skip) bool { return s.State == "late" && s.Holds(8) })
	}},
	{"events swapped within an epoch", "order", func(t *rapid.T, e *history.Evidence) {
		e.Ledger[0].Event, e.Ledger[1].Event = e.Ledger[1].Event, e.Ledger[0].Event
	}},
	{"a checkpoint below where an operator set it", "forwards", func(t *rapid.T, e *history.Evidence) { e.Samples[1][0].Checkpoint = 5 }},
	{"a checkpoint that falls without an operator", "forwards", func(t *rapid.T, e *history.Evidence) { e.Samples[1][0].Epoch = 0; e.Samples[1][0].Checkpoint = 6 }},
	{"a revision that falls with a reset", "forwards", func(t *rapid.T, e *history.Evidence) { e.Samples[0][0].Revision = 9 }},
}

func TestFlawOfAnEpochIsFound(t *testing.T) {
	for _, flaw := range flawsOfEpochs {
		t.Run(flaw.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := operated(t)
				flaw.spoil(t, e)
				findings := Judge(e)
				i := slices.IndexFunc(findings, func(f Finding) bool { return f.Name == flaw.breaks })
				if findings[i].Broken == 0 {
					t.Fatalf("%q did not break; the findings: %+v", flaw.breaks, findings)
				}
			})
		})
	}
}
