package events

import (
	"context"
	"strings"
	"testing"
)

// A copy is not put back that has a handler's commit without its repair, since the
// worker that could repair it again has ended, nor one from before a consumer was
// placed. Neither comes to be while it is put back.
func TestCopyThatForgets(t *testing.T) {
	t.Parallel()
	on := newDatabase(t)
	exec(t, on.DB, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0), ('c#000-7ff', 0)`)
	if saved, err := on.copies.save(t.Context(), func(context.Context) error { return nil }); !saved || err != nil {
		t.Fatal(saved, err)
	}
	const repair = `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason, created_at)
		SELECT 'c', 'repair', jsonb_build_object('transaction', ($1::bigint)::text), '', '', clock_timestamp() - $2::text::interval`
	for _, c := range []struct {
		what        string
		placed      int
		transaction int64
		since       string
		want        bool
	}{
		{"a repair of a batch that it has", 1, on.copies.copiedXID - 1, "0 s", true},
		{"a repair of a later batch", 1, on.copies.copiedXID, "0 s", false},
		{"a repair that it has, too", 1, on.copies.copiedXID - 1, "1 day", false},
		{"a consumer", 0, on.copies.copiedXID, "0 s", true},
	} {
		exec(t, on.DB, repair, c.transaction, c.since)
		on.copies.copiedPlaced = c.placed
		if forgets, err := on.copies.closeUnless(t.Context()); err != nil || forgets != c.want {
			t.Errorf("%s: forgotten: %v, %v; want %v", c.what, forgets, err, c.want)
		}
		for what, statement := range map[string]string{
			"a repair":   `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', 'repair', '{}', '', '')`,
			"a consumer": `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 0)`,
		} {
			_, err := on.DB.ExecContext(t.Context(), statement)
			if refused := err != nil && strings.Contains(err.Error(), "is being put back"); refused == c.want {
				t.Errorf("%s, and then %s: %v", c.what, what, err)
			}
		}
		exec(t, on.DB, `UPDATE sim_copy SET put_back = false`)
		exec(t, on.DB, `DELETE FROM consumer_operations`)
		exec(t, on.DB, `DELETE FROM consumer_checkpoints WHERE consumer_name = 'd'`)
	}
}
