package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Late events that were not handled, or not known to be, are late again.
func TestLateEventsOfAHandlerThatCommits(t *testing.T) {
	t.Parallel()
	for at, want := range map[int64]expectation{
		3: {checkpoint: 6, position: 3, says: "6: nothing is lost"},
		4: {checkpoint: 6, position: 4, says: "6: nothing is lost"},
		7: {checkpoint: 6, position: 7, says: "6: nothing is lost"},
		0: {checkpoint: 6, says: "6: nothing is lost"}, // not shown
	} {
		t.Run(fmt.Sprint("at position ", at), func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 2)
			late := beginAppend(t, d.DB, "Order", "late", 2)
			appendN(t, d.DB, "Order", "1", 2)
			opts := []worker.Option{worker.WithStaleGapThreshold(stale)}
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, opts...)
			awaitHandled(t, d.DB, "c", 1, 2, 5, 6)
			w.Stop()
			if err := w.result(t); err != nil {
				t.Fatal(err)
			}
			if err := late.Commit(); err != nil {
				t.Fatal(err)
			}
			appendN(t, d.DB, "Order", "1", 1) // 7
			db, end := d.DB, endings["tx.Commit"].end
			if at == 0 {
				db, end = d.OpenPQ(t), endings["COMMIT"].end
			}
			c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition == at || at == 0 && e.GlobalPosition == 4 {
					return end(ctx, tx)
				}
				return nil
			}}
			want.check(t, d, start(t, db, []consumer.Consumer{c}, opts...).result(t))
			through := want.checkpoint
			if at < 7 {
				through = max(at-1, 2)
			}
			expectRest(t, d, through, opts...)
			if n := audit(t, d.DB, "late")["c"]; n != 2 {
				t.Errorf("%d positions are audited as late, want 2", n)
			}
		})
	}
}

// What a batch did to the dead letters is undone with it: one that it tried
// again is back, one that it added is not there.
func TestDeadLettersOfAHandlerThatCommits(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "a", 1) // 1, fails
	appendN(t, d.DB, "Order", "b", 1) // 2
	opts := []worker.Option{worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1)}
	refusing := &ledger{name: "c", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 1 {
			return errRefused
		}
		return nil
	}}
	w := start(t, d.DB, []consumer.Consumer{refusing}, opts...)
	awaitHandled(t, d.DB, "c", 2)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	o := operator(t, d)
	letters := func() (positions []int64) {
		t.Helper()
		all, err := o.DeadLetters(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			positions = append(positions, l.Position)
		}
		return positions
	}

	appendN(t, d.DB, "Order", "b", 1) // 3, at fault
	appendN(t, d.DB, "Order", "a", 1) // 4, follows 1 into the dead letters
	endsAt := func(at int64) *ledger {
		return &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if e.GlobalPosition == at {
				return tx.Commit()
			}
			return nil
		}}
	}
	err := start(t, d.DB, []consumer.Consumer{endsAt(3)}, opts...).result(t)
	expectation{checkpoint: 2, position: 3, says: "set back from 4 to 2"}.check(t, d, err)
	if got := letters(); !slices.Equal(got, []int64{1}) {
		t.Errorf("the dead letters are %v, want that of event 1 only", got)
	}

	if err := o.RetryDeadLetters(t.Context(), "c", 1, ops.By{Operator: "ann", Reason: "mended"}); err != nil {
		t.Fatal(err)
	}
	err = start(t, d.DB, []consumer.Consumer{endsAt(1)}, opts...).result(t)
	if !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), "the dead letter at position 1, which is back, may be applied twice") {
		t.Errorf("Start returned %v", err)
	}
	if got := letters(); len(got) == 0 || got[0] != 1 {
		t.Errorf("the dead letters are %v, want that of event 1 among them", got)
	}
	expectRest(t, d, 0, opts...)
	await(t, "the dead letters to be handled", func() bool { return len(letters()) == 0 })
}

// A batch consumer's call is at fault as a whole.
func TestBatchConsumerThatCommits(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := open(t, d, driver)
			appendN(t, d.DB, "Order", "1", 6)
			c := &bulkEnder{bulkLedger{name: "c"}}
			want := expectation{says: "set back from 6 to 0: nothing is lost, but the 6 events from position 1 to 6 may be applied twice"}
			want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
			expectRest(t, d, 0)
		})
	}
}

type bulkEnder struct{ bulkLedger }

func (b *bulkEnder) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if err := b.bulkLedger.HandleBatch(ctx, tx, events[:3]); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `COMMIT`)
	return err
}
