package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// An event that cannot be read holds up those who want it there, and nobody else: what comes
// before it is handled, the error names it, and who skips it goes on.
func TestUnreadableEventCostsItselfOnly(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	parts := &partitioned{ledger{name: "parts"}, consumer.Partitions{Count: 4, Key: consumer.ByKey("k", func(e store.PersistedEvent) string { return fmt.Sprint(e.GlobalPosition) })}}
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}, parts, &scopedLedger{ledger{name: "orders", types: []string{"Order"}}}, &scopedLedger{ledger{name: "invoices", types: []string{"Invoice"}}}})
	appendN(t, d.DB, "Order", "1", 2)
	awaitHandled(t, d.DB, "all", 1, 2) // and follows
	d.Exec(t, `ALTER TABLE events ALTER event_version DROP NOT NULL`)
	tx := beginAppend(t, d.DB, "Order", "1", 60)
	if _, err := tx.Exec(`UPDATE events SET event_version = NULL WHERE global_position = 40`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Invoice", "1", 5)
	awaitHandled(t, d.DB, "invoices", 63, 64, 65, 66, 67)
	var rest []int64
	for p := int64(41); p <= 67; p++ {
		rest = append(rest, p)
	}
	for name, after := range map[string][]int64{"all": rest, "orders": rest[:22]} {
		await(t, name+" to be at the event", func() bool {
			s := statusOf(w.Worker, name)
			return s.Position == 39 && s.LastError != nil && strings.Contains(s.LastError.Error(), "the event at position 40: ")
		})
		await(t, name+" to skip it, once a heartbeat says that it is stuck", func() bool {
			err := operator(t, d).SkipEvent(t.Context(), name, 40, by)
			if early := (*ops.NotStuckError)(nil); err != nil && !errors.As(err, &early) {
				t.Fatal(err)
			}
			return err == nil
		})
		awaitHandled(t, d.DB, name, append(upTo(39), after...)...)
	}
	await(t, "the parts to be at the event", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM ledger WHERE consumer = 'parts'`) == 39
	}, func() string {
		return one[string](t, d.DB, `SELECT (SELECT count(*) FROM ledger WHERE consumer = 'parts') || (SELECT string_agg(consumer_name || ' ' || last_position || ' ' || coalesce(split_at::text, ''), E'\n') FROM consumer_checkpoints WHERE consumer_name LIKE 'parts%')`) + fmt.Sprint(statusOf(w.Worker, "parts").LastError)
	})
}
