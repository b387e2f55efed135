package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// historyHolds checks the history of a run that came to rest against its
// report.
func historyHolds(t *testing.T, r *Report) {
	t.Helper()
	kinds := map[Kind]int{}
	open := map[string]int{} // who has which transaction under way
	var committed, last int64
	at := 0.0
	for i, x := range r.History.Records() {
		if x.N != i+1 || x.At < at {
			t.Fatalf("record %d after one of %.6fs: %+v", i+1, at, x)
		}
		at = x.At
		kinds[x.Kind]++
		switch about := x.About.(type) {
		case Transaction:
			if x.Kind == Begin {
				if open[x.Who] != 0 {
					t.Errorf("%s began transaction %d before the end of %d", x.Who, about.Tx, open[x.Who])
				}
				open[x.Who] = about.Tx
				continue
			}
			if about.Tx == open[x.Who] { // others had been prepared
				open[x.Who] = 0
			}
			if x.Kind == Committed {
				for _, s := range about.Positions {
					committed += s.Last - s.First + 1
				}
			}
		case Sample:
			last = about.Head
		}
	}
	if committed != r.Events {
		t.Errorf("the history has commits of %d events, the report %d", committed, r.Events)
	}
	for _, kind := range []Kind{RunBegan, Begin, Committed, RolledBack, PreparedToEnd, WorkerBegan, WorkerEnded, Leads, Owns, OwnsNoMore, BatchEnded, GapSkipped, FaultInjected, FaultsOver, Sampled} {
		if kinds[kind] == 0 {
			t.Errorf("the history has no record of the kind %q", kind)
		}
	}
	if last == 0 {
		t.Error("the samples have no head")
	}
}

func TestHistoryIsJSONLines(t *testing.T) {
	h := newHistory(time.Now())
	h.add("writer 1", "", Committed, Transaction{Tx: 7, Positions: []Span{{1, 2}}})
	h.add("worker 1.1", "all-1", BatchEnded, Batch{Outcome: batchCommitted, To: 2, Error: "<no>\nnewline"})
	var b bytes.Buffer
	if err := h.WriteJSONLines(&b); err != nil {
		t.Fatal(err)
	}
	var back []Record
	for lines := bufio.NewScanner(&b); lines.Scan(); {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		back = append(back, r)
	}
	if len(back) != 2 || back[0].N != 1 || back[0].Who != "writer 1" || back[1].Consumer != "all-1" || back[1].Kind != BatchEnded {
		t.Errorf("back from JSON: %+v", back)
	}
}

func TestSpansHoldThePositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positions := rapid.SliceOfDistinct(rapid.Int64Range(1, 30), rapid.ID).Draw(t, "positions")
		var back []int64
		for _, s := range spans(positions) {
			if n := len(back); n > 0 && back[n-1]+1 >= s.First {
				t.Fatalf("%v could be one span with what is before it", s)
			}
			for p := s.First; p <= s.Last; p++ {
				back = append(back, p)
			}
		}
		slices.Sort(positions)
		if !slices.Equal(back, positions) {
			t.Fatalf("spans of %v hold %v", positions, back)
		}
	})
}

func TestFindingsReferToTheHistory(t *testing.T) {
	h := newHistory(time.Now())
	h.add("writer 1", "", Begin, Transaction{Tx: 1})
	h.add("writer 1", "", Committed, Transaction{Tx: 1, Positions: []Span{{1, 3}}})
	h.add("worker 1.1", "other", BatchEnded, Batch{To: 3, First: 1, Last: 3})
	h.add("worker 1.1", "all", BatchEnded, Batch{To: 3, First: 1, Last: 3})
	h.add("worker 1.1", "all", BatchEnded, Batch{From: 3, To: 9, First: 4, Last: 9})
	e := &Evidence{Consumers: []Scope{{Name: "all"}}, Committed: []Event{{Position: 2, Type: "order", ID: "1", Version: 1}}, History: h}
	if f := exactlyOnce(e); f.Broken != 1 || !strings.Contains(f.Examples[0], "(history: 2, 4)") {
		t.Errorf("the finding is to name the commit and the consumer's batch: %+v", f)
	}
}
