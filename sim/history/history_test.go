package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistoryIsJSONLines(t *testing.T) {
	h := New(time.Now())
	h.Add("writer 1", "", Committed, Transaction{Tx: 7, Positions: []Span{{1, 2}}})
	h.Add("worker 1.1", "all-1", BatchEnded, Batch{Outcome: BatchCommitted, To: 2, Error: "<no>\nnewline"})
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
		for _, s := range Spans(positions) {
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
