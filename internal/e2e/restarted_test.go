package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Where the sequence was set back, positions come again that a consumer counts
// as handled. It says so instead, and goes on from where an operator puts it.
func TestAConsumerAboveTheSequenceIsPaused(t *testing.T) {
	t.Parallel()
	for name, setBack := range map[string]string{
		"TRUNCATE ... RESTART IDENTITY": `TRUNCATE events, aggregate_heads RESTART IDENTITY`,
		"setval":                        `WITH gone AS (DELETE FROM events), heads AS (DELETE FROM aggregate_heads) SELECT setval('events_global_position_seq', 1, false)`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 20)
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
			awaitHandled(t, d.DB, "all", upTo(20)...)
			d.Exec(t, setBack)
			d.Exec(t, `DELETE FROM ledger`)
			await(t, "the consumer to be paused", func() bool { s := statusOf(w.Worker, "all"); return s.Paused != nil && s.LastError != nil })
			s := statusOf(w.Worker, "all")
			if !strings.Contains(s.Paused.Reason, "is at position 20, but the log's sequence has issued 0 at most") || !strings.Contains(s.Paused.Reason, "package ops") {
				t.Errorf("the reason is %q, the last error %v", s.Paused.Reason, s.LastError)
			}
			// Also when the sequence has overtaken the checkpoint.
			appendN(t, d.DB, "Order", "1", 15)
			appendN(t, d.DB, "Order", "1", 10)
			o := operator(t, d)
			if err := o.Reset(t.Context(), "all", 0, by); err != nil {
				t.Fatal(err)
			}
			if err := o.Resume(t.Context(), "all", by); err != nil {
				t.Fatal(err)
			}
			awaitHandled(t, d.DB, "all", upTo(25)...)
		})
	}
}

// loadAgain empties the log and the ledger, and appends n events, in one transaction.
func loadAgain(ctx context.Context, db *sql.DB, n int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after Commit
	events := make([]store.Event, n)
	for i := range events {
		events[i] = event("Order", "1")
	}
	if _, err = tx.ExecContext(ctx, `TRUNCATE events, aggregate_heads RESTART IDENTITY`); err != nil {
		return err
	}
	if _, err = newStore().Append(ctx, tx, store.Any(), events); err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, `DELETE FROM ledger`); err != nil {
		return err
	}
	return tx.Commit()
}

// The new log may be longer than the old one at once, and the consumer paused by
// somebody else meanwhile. Who resumes it where it is has seen why it was paused:
// it goes on from there.
func TestALogThatWasLoadedAgainIsNotTakenForHandled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pausedBefore, reset bool }{{false, true}, {true, true}, {false, false}} {
		t.Run(fmt.Sprintf("paused before: %v, reset: %v", test.pausedBefore, test.reset), func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 20)
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
			awaitHandled(t, d.DB, "all", upTo(20)...)
			o := operator(t, d)
			if test.pausedBefore {
				if err := o.Pause(t.Context(), "all", by); err != nil {
					t.Fatal(err)
				}
				await(t, "the worker to know", func() bool { return statusOf(w.Worker, "all").Paused != nil })
			}
			if err := pgtest.DespiteDeadlocks(t.Context(), func() error { return loadAgain(t.Context(), d.DB, 30) }); err != nil {
				t.Fatal(err)
			}
			if test.pausedBefore {
				if err := o.Resume(t.Context(), "all", by); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "the consumer to be paused", func() bool {
				p := statusOf(w.Worker, "all").Paused
				return p != nil && strings.Contains(p.Reason, "if the log was emptied since, and its sequence restarted")
			})
			want := upTo(30)[20:]
			if test.reset {
				want = upTo(30)
				if err := o.Reset(t.Context(), "all", 0, by); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.Resume(t.Context(), "all", by); err != nil {
				t.Fatal(err)
			}
			awaitHandled(t, d.DB, "all", want...)
		})
	}
}

// A worker that starts later finds the same.
func TestAWorkerThatStartsAboveTheSequence(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('all', 4)`)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithBatchSize(1))
	await(t, "the consumer to be paused", func() bool { return statusOf(w.Worker, "all").Paused != nil })
	if reason := statusOf(w.Worker, "all").Paused.Reason; !strings.Contains(reason, "is at position 4, but the log's sequence has issued 3 at most") {
		t.Errorf("the reason is %q", reason)
	}
}

// rewriteLog gives table and sequence other files in one transaction, and keeps all events.
func rewriteLog(t *testing.T, d *pgtest.Database) {
	t.Helper()
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, statement := range []string{`ALTER TABLE events ALTER COLUMN event_version TYPE bigint`, `ALTER SEQUENCE events_global_position_seq MAXVALUE 9000000000000000000`} {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// Maintenance that rewrites table and sequence keeps the events: consumers go on, also
// above events of other types, rolled-back positions and dead letters.
func TestConsumersGoOnAfterTheLogWasRewritten(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	// What a handler does to its event says nothing of the log.
	scribble := func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		for i := range e.Payload {
			e.Payload[i] = '#'
		}
		return nil
	}
	orders := &scopedLedger{ledger{name: "orders", types: []string{"Order"}, before: scribble}}
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all", before: scribble}, orders})
	appendN(t, d.DB, "Order", "1", 5)
	appendN(t, d.DB, "Invoice", "1", 5)
	if err := beginAppend(t, d.DB, "Order", "void", 1).Rollback(); err != nil {
		t.Fatal(err)
	}
	await(t, "both to be at the head", func() bool {
		return statusOf(w.Worker, "all").Position >= 10 && statusOf(w.Worker, "orders").Position >= 10
	})
	for range 2 { // the second time, too
		rewriteLog(t, d)
		appendN(t, d.DB, "Order", "1", 1)
		await(t, "both to go on", func() bool {
			last := one[int64](t, d.DB, `SELECT max(global_position) FROM events`)
			for _, name := range []string{"all", "orders"} {
				if s := statusOf(w.Worker, name); s.Paused != nil {
					t.Fatalf("%s is paused: %s", name, s.Paused.Reason)
				} else if s.Position < last {
					return false
				}
			}
			return true
		})
	}
	if all, some := len(handled(t, d.DB, "all")), len(handled(t, d.DB, "orders")); all != 12 || some != 7 {
		t.Errorf("they handled %d and %d events", all, some)
	}
}

// A consumer that has handled nothing since this worker has it goes on after the log was rewritten.
func TestIdleConsumersGoOnAfterTheLogWasRewritten(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	appendN(t, d.DB, "Invoice", "1", 5)
	consumers := []consumer.Consumer{&ledger{name: "all"}, &scopedLedger{ledger{name: "orders", types: []string{"Order"}}}}
	at := func(w *running, position int64) {
		t.Helper()
		await(t, fmt.Sprintf("both to be at %d", position), func() bool {
			for _, name := range []string{"all", "orders"} {
				if s := statusOf(w.Worker, name); s.Paused != nil {
					t.Fatalf("%s is paused: %s", name, s.Paused.Reason)
				} else if s.Position != position {
					return false
				}
			}
			return true
		})
	}
	w := start(t, d.DB, consumers)
	at(w, 10)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	w = start(t, d.DB, consumers)
	at(w, 10)
	rewriteLog(t, d)
	appendN(t, d.DB, "Invoice", "1", 1)
	at(w, 11)
	rewriteLog(t, d)
	appendN(t, d.DB, "Order", "1", 1)
	at(w, 12)
	if all, some := len(handled(t, d.DB, "all")), len(handled(t, d.DB, "orders")); all != 12 || some != 6 {
		t.Errorf("they handled %d and %d events", all, some)
	}
}

// Where the event that was handled last is gone, the log that was rewritten may be
// another one: resume goes on at the checkpoint and applies nothing twice.
func TestARewrittenLogThatCannotBeTold(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"the last event is gone":        `DELETE FROM events WHERE global_position = 5`,
		"the last event is another one": `UPDATE events SET event_id = gen_random_uuid() WHERE global_position = 5`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 5)
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
			awaitHandled(t, d.DB, "all", upTo(5)...)
			d.Exec(t, change)
			rewriteLog(t, d)
			appendN(t, d.DB, "Order", "1", 2)
			await(t, "the consumer to be paused", func() bool {
				p := statusOf(w.Worker, "all").Paused
				return p != nil && strings.Contains(p.Reason, "resume it without a reset, which would apply them again (pgfrontier resume)")
			})
			if err := operator(t, d).Resume(t.Context(), "all", by); err != nil {
				t.Fatal(err)
			}
			awaitHandled(t, d.DB, "all", upTo(7)...)
		})
	}
}
