package worker_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A batch that its handler prepared holds the checkpoint's row, with the
// checkpoint at the batch's end. The error says what not to do with it, and so
// does the worker that comes after.
func TestHandlerThatPreparesItsTransaction(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition != 3 {
			return nil
		}
		if _, err := tx.ExecContext(ctx, `PREPARE TRANSACTION 'mine'`); err != nil {
			return err
		}
		return errNotWritten
	}}
	err := start(t, d.DB, []consumer.Consumer{c}).result(t)
	if err == nil || !strings.Contains(err.Error(), "ROLLBACK PREPARED 'mine'; COMMIT PREPARED would move its checkpoint from 0 to 6") {
		t.Errorf("Start: %v", err)
	}
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	await(t, "the status to say what it waits for", func() bool {
		e := statusOf(w.Worker, "c").LastError
		return e != nil && strings.Contains(e.Error(), "a prepared transaction: ROLLBACK PREPARED")
	})
	d.Exec(t, `ROLLBACK PREPARED 'mine'`)
	awaitHandled(t, d.DB, "c", upTo(6)...)
}
