package progress_test

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/internal/scope"
)

const (
	receiptRows  = `SELECT consumer_name, unit, first_position, last_position, events, positions, hash, event_id, partition_key, scope FROM consumer_receipts`
	receiptOfRow = `SELECT consumer_name, receipt FROM consumer_checkpoints`
)

// received is the ID of the event that has a row of its own.
var received = uuid.MustParse("11111111-1111-1111-1111-111111111111")

// receiptTo returns a receipt that ends one region and begins another, and has the row of one event.
func receiptTo(last int64) progress.Receipt {
	return progress.Receipt{
		Region: &receipt.Region{First: 11, Last: last, Sum: receipt.Sum{Events: 2, Positions: 23, Hash: -7}},
		Rows: []receipt.Row{
			{Region: receipt.Region{First: 1, Last: 10, Sum: receipt.Sum{Events: 3, Positions: 9, Hash: 1 << 62}}},
			{Region: receipt.Region{First: 4, Last: 4}, Event: &received},
		},
	}
}

const (
	regionOfC = `(c,c,1,10,3,9,4611686018427387904,,k,"{""types"": [""T""]}")`
	eventOfC  = `(c,c,4,4,0,0,0,11111111-1111-1111-1111-111111111111,k,"{""types"": [""T""]}")`
)

// keyed returns a consumer with a key and a scope, which the rows of its receipts have, too.
func keyed(t *testing.T) progresstest.Guarded {
	t.Helper()
	g := progresstest.New(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET partition_key = 'k', scope = '{"types": ["T"]}'`)
	return g
}

// A guard writes the region into the row of the checkpoint, and the rows into the table. If it is
// refused, it writes nothing.
func TestGuardWritesTheReceipt(t *testing.T) {
	t.Parallel()
	g := keyed(t)
	if p := g.Loaded(t); p.Receipt != nil {
		t.Errorf("the receipt of a new checkpoint is %+v", p.Receipt)
	}
	guard := func(change string, r progress.Receipt, want bool) {
		t.Helper()
		from := g.Loaded(t)
		g.Exec(t, change)
		tx := g.Begin(t)
		if _, ok, err := g.Guard(t.Context(), tx, "c", from, progress.Advance{To: 12, Token: g.Token, Receipt: r}); ok != want || err != nil {
			t.Fatalf("the guard returned %v, %v", ok, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	guard(`UPDATE consumer_checkpoints SET revision = revision + 1`, receiptTo(12), false)
	expectRows(t, g.DB, receiptRows, "")
	expectRows(t, g.DB, receiptOfRow, "(c,)")
	guard(`SELECT 1`, receiptTo(12), true)
	expectRows(t, g.DB, receiptRows, regionOfC, eventOfC)
	expectRows(t, g.DB, receiptOfRow, `(c,"{11,12,2,23,-7}")`)
	if p, want := g.Loaded(t), receiptTo(12).Region; p.Receipt == nil || *p.Receipt != *want {
		t.Errorf("the receipt is loaded as %+v, want %+v", p.Receipt, want)
	}
	next := &receipt.Region{First: 11, Last: 12, Sum: receipt.Sum{Events: 3}}
	guard(`SELECT 1`, progress.Receipt{Region: next}, true)
	expectRows(t, g.DB, receiptRows, regionOfC, eventOfC)
	expectRows(t, g.DB, receiptOfRow, `(c,"{11,12,3,0,0}")`)
}

// The receipts of a unit have its name, and that of its consumer.
func TestReceiptsOfAUnit(t *testing.T) {
	t.Parallel()
	g := keyed(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = 'c#000-7ff'`)
	g.Exec(t, `UPDATE consumer_assignments SET consumer_name = 'c#000-7ff'`)
	from, err := g.Load(t.Context(), g.DB, "c#000-7ff")
	if err != nil {
		t.Fatal(err)
	}
	tx := g.Begin(t)
	if _, ok, err := g.Guard(t.Context(), tx, "c#000-7ff", from, progress.Advance{To: 12, Token: g.Token, Receipt: receiptTo(12)}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	expectRows(t, g.DB, `SELECT consumer_name, unit, last_position FROM consumer_receipts`, "(c,c#000-7ff,10)", "(c,c#000-7ff,4)")
}

// A batch that ends early, and one that is repaired, lose the rows of the batch. They get the receipt
// of what was handled. Rows of other batches and of other units stay.
func TestSetBackOfTheReceipt(t *testing.T) {
	t.Parallel()
	const others = `INSERT INTO consumer_receipts (consumer_name, unit, first_position, last_position, events, positions, hash, partition_key) VALUES `
	less := progress.Receipt{
		Region: &receipt.Region{First: 1, Last: 9, Sum: receipt.Sum{Events: 1, Positions: 8}},
		Rows:   []receipt.Row{{Region: receipt.Region{First: 4, Last: 4}, Event: &received}},
	}
	m := progress.SetBack{To: 9, Through: 9, Receipt: less}
	for name, setBack := range map[string]func(g progresstest.Guarded, tx *sql.Tx, b progress.Committed) (bool, error){
		"Shorten": func(g progresstest.Guarded, tx *sql.Tx, b progress.Committed) (bool, error) {
			_, ok, err := g.Shorten(t.Context(), tx, "c", b, m)
			if err == nil {
				err = tx.Commit()
			}
			return ok, err
		},
		"Repair": func(g progresstest.Guarded, tx *sql.Tx, b progress.Committed) (bool, error) {
			if err := tx.Commit(); err != nil {
				return false, err
			}
			return g.Repair(t.Context(), g.DB, "c", b, progress.Repair{SetBack: m})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := keyed(t)
			g.Exec(t, others+`('c', 'c', 11, 19, 9, 9, 9, '')`)
			tx := g.Begin(t)
			moved, ok, err := g.Guard(t.Context(), tx, "c", g.Loaded(t), progress.Advance{To: 12, Head: 30, Token: g.Token, Receipt: receiptTo(12)})
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			// The handler of the batch may write such rows of its own.
			if _, err := tx.Exec(others + `('c', 'c#000-7ff', 1, 2, 1, 1, 1, ''), ('d', 'd', 1, 2, 1, 1, 1, '')`); err != nil {
				t.Fatal(err)
			}
			if ok, err := setBack(g, tx, progress.Committed{After: moved.Version, To: 12, Head: 30, Token: g.Token}); !ok || err != nil {
				t.Fatalf("set back: %v, %v", ok, err)
			}
			expectRows(t, g.DB, receiptRows, "(c,c#000-7ff,1,2,1,1,1,,\"\",)", "(c,c,11,19,9,9,9,,\"\",)", eventOfC, "(d,d,1,2,1,1,1,,\"\",)")
			expectRows(t, g.DB, receiptOfRow, `(c,"{1,9,1,8,0}")`)
		})
	}
}

// A repair of another batch's row changes no receipt.
func TestRefusedRepairLeavesTheReceipt(t *testing.T) {
	t.Parallel()
	g := keyed(t)
	tx := g.Begin(t)
	moved, ok, err := g.Guard(t.Context(), tx, "c", g.Loaded(t), progress.Advance{To: 12, Head: 30, Token: g.Token, Receipt: receiptTo(12)})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	moved.Revision++
	m := progress.Repair{SetBack: progress.SetBack{To: 9, Through: 9}}
	if ok, err := g.Repair(t.Context(), g.DB, "c", progress.Committed{After: moved.Version, To: 12, Head: 30, Token: g.Token}, m); ok || err != nil {
		t.Fatalf("repaired: %v, %v", ok, err)
	}
	expectRows(t, g.DB, receiptRows, regionOfC, eventOfC)
	expectRows(t, g.DB, receiptOfRow, `(c,"{11,12,2,23,-7}")`)
}

// A change of the scope ends the region, which keeps the scope that its events were selected by.
func TestRescopeEndsTheRegion(t *testing.T) {
	t.Parallel()
	g := keyed(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET receipt = '{1,10,3,9,4611686018427387904}'`)
	recorded, err := g.Scopes(t.Context(), g.DB, []string{"c"})
	if err != nil || len(recorded) != 1 {
		t.Fatalf("%+v, %v", recorded, err)
	}
	after := scope.Of([]string{"T", "U"}, 0, "", "")
	if _, ok, err := g.Rescope(t.Context(), g.DB, recorded[0], after, "another", ""); ok || err != nil {
		t.Fatalf("in another incarnation: %v, %v", ok, err)
	}
	expectRows(t, g.DB, receiptRows, "")
	expectRows(t, g.DB, receiptOfRow, `(c,"{1,10,3,9,4611686018427387904}")`)
	if _, ok, err := g.Rescope(t.Context(), g.DB, recorded[0], after, g.Token, ""); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expectRows(t, g.DB, receiptRows, regionOfC)
	expectRows(t, g.DB, receiptOfRow, "(c,)")
	again, err := g.Scopes(t.Context(), g.DB, []string{"c"})
	if err != nil || len(again) != 1 {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, ok, err := g.Rescope(t.Context(), g.DB, again[0], scope.Of([]string{"U"}, 0, "", ""), g.Token, ""); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expectRows(t, g.DB, receiptRows, regionOfC) // there was no region to end
}

// A split and a merge end the regions of the units that they replace. The new units have none.
func TestRescaleEndsTheRegions(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	g.Exec(t, `UPDATE consumer_checkpoints SET receipt = '{1,10,3,9,-1}', scope = '{"types": ["T"]}'`)
	split := func(unit string, n int, letters map[int64]string, children ...string) {
		t.Helper()
		rescale(t, g, func(r *progress.Rescale) bool {
			if _, _, ok, err := r.LockUnit(t.Context(), unit, n); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := r.Split(t.Context(), unit, children, letters, "k"); err != nil {
				t.Fatal(err)
			}
			return true
		})
	}
	split("c", 2, map[int64]string{1: "c#000-7ff", 4: "c#800-fff"}, "c#000-7ff", "c#800-fff")
	const ofC = `(c,c,1,10,3,9,-1,,"","{""types"": [""T""]}")`
	expectRows(t, g.DB, receiptRows, ofC)
	expectRows(t, g.DB, receiptOfRow, "(c#000-7ff,)", "(c#800-fff,)", "(c,)")

	// A unit whose row is deleted.
	g.Exec(t, `UPDATE consumer_assignments SET partitions = 4`)
	g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 12, receipt = '{11,12,2,23,5}' WHERE consumer_name LIKE 'c#%'`)
	split("c#000-7ff", 4, map[int64]string{1: "c#000-3ff"}, "c#000-3ff", "c#400-7ff")
	const ofLow = `(c,c#000-7ff,11,12,2,23,5,,k,"{""types"": [""T""]}")`
	expectRows(t, g.DB, receiptRows, ofLow, ofC)
	expectRows(t, g.DB, receiptOfRow, "(c#000-3ff,)", "(c#400-7ff,)", `(c#800-fff,"{11,12,2,23,5}")`, "(c,)")

	// One of the merged units has handled nothing since.
	g.Exec(t, `UPDATE consumer_assignments SET partitions = 1`)
	g.Exec(t, `UPDATE consumer_checkpoints SET receipt = '{13,12,0,0,0}' WHERE consumer_name = 'c#000-3ff'`)
	rescale(t, g, func(r *progress.Rescale) bool {
		units := []string{"c#000-3ff", "c#400-7ff", "c#800-fff"}
		parts, err := r.LockParts(t.Context(), units, 1)
		if err != nil || len(parts) != 3 {
			t.Fatalf("%v, %v", parts, err)
		}
		open, _, err := r.Open(t.Context(), units)
		if err == nil {
			err = r.Merge(t.Context(), parts, "c", open, "k", 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	})
	expectRows(t, g.DB, receiptRows, ofLow, `(c,c#800-fff,11,12,2,23,5,,k,"{""types"": [""T""]}")`, ofC)
	expectRows(t, g.DB, receiptOfRow, "(c,)")
}

// A guard adds to the receipt that the row has, whatever its worker has loaded: if nothing else stopped a
// second batch of the same events, the receipt would show it.
func TestGuardAddsToTheReceipt(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET receipt = '{1,10,13,70,4611686018427387903}'`)
	from := g.Loaded(t)
	from.Receipt = &receipt.Region{First: 1, Last: 10, Sum: receipt.Sum{Events: 10, Positions: 55, Hash: 7}}
	a := progress.Advance{To: 12, Token: g.Token}
	a.Region = &receipt.Region{First: 1, Last: 12, Sum: receipt.Sum{Events: 11, Positions: 67, Hash: 9}}
	tx := g.Begin(t)
	if _, ok, err := g.Guard(t.Context(), tx, "c", from, a); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var got string
	if err := tx.QueryRow(`SELECT receipt::text FROM consumer_checkpoints WHERE consumer_name = 'c'`).Scan(&got); err != nil || got != "{1,12,14,82,1}" {
		t.Errorf("the receipt is %s, %v", got, err)
	}
}
