package events

import (
	"reflect"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

// The resets of a consumer's units are counted together. What a merge opens is watched
// again by the parts that did not watch it.
func TestOperationsOnUnitsAreCollected(t *testing.T) {
	t.Parallel()
	on := newDatabase(t)
	const (
		open = `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
			VALUES ($1, gen_random_uuid(), $2, $3, 1, 'open', 9, 9)`
		closes = `DELETE FROM consumer_gap_skips WHERE consumer_name = $1`
		record = `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ($1, $2, $3, '', '')`
	)
	exec(t, on.DB, open, "c#000-7ff", 3, 5)
	exec(t, on.DB, open, "c#800-fff", 4, 6)
	exec(t, on.DB, record, "c#000-7ff", "reset", `{"from": 9, "to": 7}`)
	exec(t, on.DB, record, "d", "reset", `{"from": 9, "to": 8}`)
	exec(t, on.DB, record, "c#800-fff", "skip", `{"from": 7, "position": 8}`)
	exec(t, on.DB, record, "c", "reset", `{"from": 9, "to": 7}`)
	tx, err := on.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, closes, "c#000-7ff")
	exec(t, tx, closes, "c#800-fff")
	exec(t, tx, open, "c", 3, 6)
	exec(t, tx, record, "c", "merge", `{"from": ["c#000-7ff", "c#800-fff"], "to": ["c"]}`)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	exec(t, on.DB, open, "c", 8, 8) // by a batch

	var e history.Evidence
	if err := on.collectOperations(t.Context(), &e); err != nil {
		t.Fatal(err)
	}
	if want := []history.Operation{
		{Consumer: "c#000-7ff", Kind: history.OperationReset, Epoch: 0, From: 9, To: 7},
		{Consumer: "d", Kind: history.OperationReset, Epoch: 0, From: 9, To: 8},
		{Consumer: "c#800-fff", Kind: history.OperationSkip, Epoch: 1, From: 7, To: 8},
		{Consumer: "c", Kind: history.OperationReset, Epoch: 1, From: 9, To: 7},
	}; !reflect.DeepEqual(e.Operations, want) {
		t.Errorf("the operations are %+v, want %+v", e.Operations, want)
	}
	again := func(unit string, at int64) history.Skip {
		return history.Skip{Span: history.Span{First: at, Last: at}, Consumer: unit, Missing: 1, State: "open"}
	}
	if want := []history.Skip{again("c#000-7ff", 6), again("c#800-fff", 3)}; !reflect.DeepEqual(e.Rewatched, want) {
		t.Errorf("watched again are %+v, want %+v", e.Rewatched, want)
	}
	if len(e.Forgotten) > 0 {
		t.Errorf("forgotten are %+v", e.Forgotten)
	}
}
