package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A late event that cannot be handled is found and tried alone like any other,
// and those that came late beside it are handled.
func TestLateEventThatCannotBeHandledIsFound(t *testing.T) {
	t.Parallel()
	const bad = 3
	for name, c := range map[string]consumer.Consumer{
		"named": newRefusing("c", bad),
		"unnamed": &bulkLedger{name: "c", fails: func(events []store.PersistedEvent) error {
			if slices.ContainsFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == bad }) {
				return errRefused
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			var late []*sql.Tx
			for i := range 5 { // 1 to 5
				late = append(late, beginAppend(t, d.DB, "Order", fmt.Sprint("late ", i), 1))
			}
			appendN(t, d.DB, "Order", "1", 1) // 6
			opts := []worker.Option{worker.WithStaleGapThreshold(50 * time.Millisecond), worker.WithMaxConsecutiveFailures(2), worker.WithFailurePolicy(worker.FailDeadLetter)}
			first := start(t, d.DB, []consumer.Consumer{c}, opts...)
			awaitHandled(t, d.DB, "c", 6)
			first.Stop()
			if err := first.result(t); err != nil {
				t.Fatal(err)
			}
			for _, tx := range late { // all come in one batch then
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			w := start(t, d.DB, []consumer.Consumer{c}, opts...)
			for _, position := range []int64{1, 2, 4, 5} {
				if err := waitFor(t, w, "c", position); err != nil {
					t.Fatalf("position %d: %v", position, err)
				}
			}
			if err := waitFor(t, w, "c", bad); !errors.Is(err, worker.ErrDeadLettered) {
				t.Errorf("position %d: %v, want a dead letter", bad, err)
			}
			got := handled(t, d.DB, "c")
			if slices.Sort(got); !slices.Equal(got, []int64{1, 2, 4, 5, 6}) {
				t.Errorf("handled %v", got)
			}
		})
	}
}

// waitFor waits for no longer than only a stuck worker needs.
func waitFor(t *testing.T, w *running, consumer string, position int64) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	return w.WaitFor(ctx, consumer, position)
}
