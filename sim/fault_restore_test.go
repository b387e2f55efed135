package sim

import (
	"context"
	"testing"
)

// A copy that has a handler's commit without its repair is not put back: the
// worker that could repair it again has ended.
func TestCopyThatForgetsARepair(t *testing.T) {
	on := newDatabase(t)
	if saved, err := on.save(func(context.Context) error { return nil }); !saved || err != nil {
		t.Fatal(saved, err)
	}
	for _, c := range []struct {
		what        string
		transaction int64
		since       string
		want        bool
	}{
		{"of a batch that the copy has", on.copiedXID - 1, "0 s", true},
		{"of a later batch", on.copiedXID, "0 s", false},
		{"that the copy has, too", on.copiedXID - 1, "1 day", false},
	} {
		if _, err := on.db.ExecContext(t.Context(), `
INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason, created_at)
SELECT 'c', 'repair', jsonb_build_object('transaction', ($1::bigint)::text), '', '', clock_timestamp() - $2::text::interval`, c.transaction, c.since); err != nil {
			t.Fatal(err)
		}
		if forgets, err := on.forgetsRepair(t.Context()); err != nil || forgets != c.want {
			t.Errorf("a repair %s: forgotten: %v, %v; want %v", c.what, forgets, err, c.want)
		}
		if _, err := on.db.ExecContext(t.Context(), `DELETE FROM consumer_operations`); err != nil {
			t.Fatal(err)
		}
	}
}
