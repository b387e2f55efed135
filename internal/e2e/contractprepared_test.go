package e2e

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A batch that its handler prepared holds the checkpoint's row, with the
// checkpoint at the batch's end. The error says what not to do with it, whatever
// the driver shows and however the handler returns.
func TestHandlerThatPreparesItsTransaction(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		for then, sequel := range sequels {
			t.Run(driver+", then "+then, func(t *testing.T) {
				t.Parallel()
				d := newLog(t)
				appendN(t, d.DB, "Order", "1", 6)
				gid := "'it''s " + t.Name() + "'" // the server knows one of each name
				ends := ending{end: statements(`PREPARE TRANSACTION ` + gid)}
				err := start(t, open(t, d, driver), []consumer.Consumer{ender(ends, sequel)}).result(t)
				if !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), "ROLLBACK PREPARED "+gid+"; COMMIT PREPARED would move its checkpoint from 0 to 6") {
					t.Errorf("Start: %v", err)
				}
				d.Exec(t, `ROLLBACK PREPARED `+gid)
				expectRest(t, d, 0)
			})
		}
	}
}

// A prepared transaction that holds a consumer's row is named for as long as it
// does, also if a stranger prepared it, and with any driver: nobody can go on until
// somebody ends it.
func TestPreparedTransactionThatHoldsAConsumerIsNamed(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 3)
			d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0), ('other', 0)`)
			held, apart := "'held "+driver+"'", "'apart "+driver+"'"
			for gid, statement := range map[string]string{
				held:  `SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`,
				apart: `UPDATE consumer_checkpoints SET updated_at = updated_at WHERE consumer_name = 'other'`,
			} {
				tx, err := d.DB.BeginTx(t.Context(), nil)
				if err == nil {
					err = statements(statement, `PREPARE TRANSACTION `+gid)(t.Context(), tx)
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = tx.Rollback() // there is none any more
			}
			defer d.Exec(t, `ROLLBACK PREPARED `+apart)
			var log lines
			w := start(t, open(t, d, driver), []consumer.Consumer{&ledger{name: "c"}}, worker.WithLogger(&log))
			says := "prepared transaction " + held + " (of role "
			await(t, "the status to say what it waits for", func() bool {
				e := statusOf(w.Worker, "c").LastError
				return e != nil && strings.Contains(e.Error(), says) && strings.Contains(e.Error(), "ROLLBACK PREPARED "+held+"; if a handler prepared it, COMMIT PREPARED would")
			})
			await(t, "the log to say so", func() bool { return len(log.with(says)) > 0 })
			d.Exec(t, `ROLLBACK PREPARED `+held)
			awaitHandled(t, d.DB, "c", upTo(3)...)
			if all := log.with(apart); len(all) > 0 {
				t.Errorf("the log names another consumer's: %q", all)
			}
		})
	}
}

// What a handler begins behind a transaction that it prepared is committed, and
// done again when somebody has ended the prepared one. The error says both.
func TestHandlerThatPreparesAndBeginsAnother(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition != 3 {
			return nil
		}
		return statements(`PREPARE TRANSACTION 'followed'`, `BEGIN`)(ctx, tx)
	}}
	w := start(t, d.OpenPQ(t), []consumer.Consumer{c})
	await(t, "the rest to be committed without the checkpoint", func() bool { return len(handled(t, d.DB, "c")) > 0 })
	appendN(t, d.DB, "Order", "1", 1) // whose batch finds the row as it was
	expectation{says: "ROLLBACK PREPARED 'followed'; COMMIT PREPARED would move its checkpoint from 0 to 6, past events that no handler has finished; another transaction followed, which was committed, so events up to position 6 may be applied twice"}.check(t, d, w.result(t))
	d.Exec(t, `ROLLBACK PREPARED 'followed'`)
	expectRest(t, d, 0)
}
