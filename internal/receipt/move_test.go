package receipt_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/store"
)

// Positions without receipts are explained by moves that together cover them, of the same partition, and
// made after the region before them had ended.
func TestExplainedBy(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	low, high := partition.Range{First: 0, Last: 2047}, partition.Range{First: 2048, Last: 4095}
	move := func(id int64, slots partition.Range, from, to int64, minute int) receipt.Move {
		return receipt.Move{ID: id, Slots: slots, From: from, To: to, At: at(minute)}
	}
	covered := func(slots partition.Range, first, last int64, minute int) receipt.Covered {
		return receipt.Covered{Region: receipt.Region{First: first, Last: last}, Slots: slots, Scope: &scope.Scope{}, Ended: at(minute)}
	}
	all := partition.All
	for name, c := range map[string]struct {
		moves []receipt.Move
		id    int64
	}{
		"nothing":                           {nil, 0},
		"a move forwards":                   {[]receipt.Move{move(1, all, 20, 30, 5)}, 1},
		"a move before the region's end":    {[]receipt.Move{move(1, all, 20, 30, 3)}, 0},
		"a move of less":                    {[]receipt.Move{move(1, all, 20, 29, 5)}, 0},
		"moves one after the other":         {[]receipt.Move{move(1, all, 20, 25, 5), move(2, all, 25, 30, 6)}, 2},
		"the later move of lower positions": {[]receipt.Move{move(1, all, 25, 30, 5), move(2, all, 20, 25, 6)}, 2},
		"moves with a gap":                  {[]receipt.Move{move(1, all, 20, 24, 5), move(2, all, 25, 30, 6)}, 0},
		"a move backwards to the end":       {[]receipt.Move{move(1, all, 90, 30, 5)}, 1},
		"a move backwards to within":        {[]receipt.Move{move(1, all, 90, 25, 5)}, 0},
		"backwards, then forwards":          {[]receipt.Move{move(1, all, 90, 25, 5), move(2, all, 25, 40, 6)}, 2},
		"a move of one partition forwards":  {[]receipt.Move{move(1, low, 20, 30, 5)}, 0},
		"a move of one partition backwards": {[]receipt.Move{move(1, low, 90, 25, 5)}, 0}, // explains those of the other only
	} {
		j := receipt.NewJudge([]receipt.Unit{{Slots: low, Position: 90}, {Slots: high, Position: 90}},
			[]receipt.Covered{covered(all, 1, 20, 4), covered(low, 31, 90, 7), covered(high, 31, 90, 7)}, nil, nil, nil)
		found := j.Findings()
		if len(found) != 2 {
			t.Fatalf("found %+v", found)
		}
		id := found[0].ExplainedBy(c.moves)
		for _, f := range found {
			if f.Fault != receipt.Uncovered || f.Range != (store.Range{First: 21, Last: 30}) {
				t.Fatalf("found %+v", f)
			}
			if f.ExplainedBy(c.moves) == 0 {
				id = 0
			}
		}
		if id != c.id {
			t.Errorf("%s: explained by %d, want %d", name, id, c.id)
		}
	}
}

// A move of one partition backwards deletes the regions of the consumer from before the split, so the
// other partitions have none there either.
func TestMoveDeletesRegionsOfOtherPartitions(t *testing.T) {
	t.Parallel()
	low, high := partition.Range{First: 0, Last: 2047}, partition.Range{First: 2048, Last: 4095}
	regions := []receipt.Covered{
		{Region: receipt.Region{First: 1, Last: 16_383}, Slots: partition.All, Scope: &scope.Scope{}},
		{Region: receipt.Region{First: 16_384 + 10, Last: 30_000}, Slots: low, Scope: &scope.Scope{}},
		{Region: receipt.Region{First: 25_001, Last: 30_000}, Slots: high, Scope: &scope.Scope{}}, // split at 25,000
	}
	moves := []receipt.Move{{ID: 7, Slots: low, From: 26_000, To: 16_384 + 9}}
	j := receipt.NewJudge([]receipt.Unit{{Slots: low, Position: 30_000}, {Slots: high, Position: 30_000}}, regions, nil, nil, nil)
	found := j.Findings()
	if len(found) != 2 {
		t.Fatalf("found %+v", found)
	}
	for _, f := range found {
		if f.ExplainedBy(moves) != 7 || f.Fault != receipt.Uncovered {
			t.Errorf("%+v is not explained", f)
		}
	}

	// With a key of its own, the events there are of one partition or the other.
	j = receipt.NewJudge([]receipt.Unit{{Slots: low, Position: 30_000}, {Slots: high, Position: 30_000}}, regions, nil, nil, nil)
	j.Add(receipt.LogEvent{Event: receipt.Event{Position: 16_384 + 11, ID: uuid.New()}, Type: "a", Slot: -1})
	unknown := 0
	for _, f := range j.Findings() {
		if f.Fault == receipt.Unknown {
			unknown++
			if f.ExplainedBy(moves) != 7 || f.ExplainedBy(nil) != 0 || f.ExplainedBy([]receipt.Move{{ID: 8, Slots: partition.All, From: 26_000, To: 16_384 + 9}}) != 0 {
				t.Errorf("%+v is not explained by the move of a partition only", f)
			}
		}
	}
	if unknown != 1 {
		t.Errorf("%d ranges are unknown", unknown)
	}
}

// No move explains that positions were passed twice.
func TestNoMoveExplainsTwice(t *testing.T) {
	t.Parallel()
	regions := []receipt.Covered{
		{Region: receipt.Region{First: 1, Last: 10}, Slots: partition.All, Scope: &scope.Scope{}},
		{Region: receipt.Region{First: 5, Last: 20}, Slots: partition.All, Scope: &scope.Scope{}},
	}
	found := receipt.NewJudge([]receipt.Unit{{Slots: partition.All, Position: 20}}, regions, nil, nil, nil).Findings()
	if len(found) != 1 || found[0].Fault != receipt.Twice || found[0].ExplainedBy([]receipt.Move{{ID: 1, Slots: partition.All, From: 4, To: 10}}) != 0 {
		t.Errorf("found %+v", found)
	}
}
