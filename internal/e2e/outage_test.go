package e2e

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// retryLimit is that of tests. With a shorter one, a heartbeat that a loaded machine holds
// up ends the worker.
const retryLimit = 5 * time.Second

// A consumer whose batches fail through no fault of its handler ends its worker
// after RetryLimit, though the heartbeats arrive.
func TestOutageOfOneConsumer(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	c := &ledger{name: "no room", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE disk_full; END $$`)
		return err
	}}
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithRetryLimit(retryLimit))
	if err := w.result(t); !errors.Is(err, worker.ErrOutage) || !strings.Contains(err.Error(), `"no room"`) {
		t.Errorf("the worker ended with %v", err)
	}
}

// Two hiccups are two hiccups, however long it was quiet between them and though
// nothing was committed meanwhile.
func TestRetryLimitForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var c cutter
	var hiccup atomic.Int64 // the status shows one only until it is over
	w := start(t, c.open(t, d), []consumer.Consumer{&ledger{name: "all"}}, worker.WithRetryLimit(retryLimit),
		worker.WithObserver(observe.On(func(observe.Retrying) { hiccup.CompareAndSwap(0, time.Now().UnixNano()) })))
	await(t, "the consumer to run", func() bool { return statusOf(w.Worker, "all").Assigned })
	appended := int64(0)
	await(t, "the first hiccup", func() bool {
		if c.after.Load() <= 0 { // another transaction of the worker may be what was cut
			c.after.Store(1)
			appendN(t, d.DB, "Order", "1", 1)
			appended++
		}
		return hiccup.Load() != 0
	})
	c.after.Store(0)
	awaitHandled(t, d.DB, "all", upTo(appended)...)
	await(t, "the status to say that it is over", func() bool { return statusOf(w.Worker, "all").LastError == nil })
	await(t, "the limit to pass", func() bool { return time.Since(time.Unix(0, hiccup.Load())) > 2*retryLimit })
	c.before.Store(1)
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "all", upTo(appended+1)...)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
}

// Without a limit a worker outlasts its server's absence; with one it ends.
func TestOutage(t *testing.T) {
	t.Parallel()
	s, db := ownLog(t)
	appendN(t, db, "Order", "1", 5)
	patient := start(t, db, []consumer.Consumer{&ledger{name: "patient"}})
	impatient := start(t, db, []consumer.Consumer{&ledger{name: "impatient"}}, worker.WithRetryLimit(retryLimit))
	awaitHandled(t, db, "patient", upTo(5)...)
	awaitHandled(t, db, "impatient", upTo(5)...)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := impatient.result(t); !errors.Is(err, worker.ErrOutage) || !strings.Contains(err.Error(), "WithRetryLimit") {
		t.Errorf("the impatient worker ended with %v", err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the server to take an append", func() bool { return db.PingContext(t.Context()) == nil })
	appendN(t, db, "Order", "1", 5) // after a crash, not from position 6 on
	head := latestPosition(t, db)
	awaitHandled(t, db, "patient", append(upTo(5), head-4, head-3, head-2, head-1, head)...)
	patient.Stop()
	if err := patient.result(t); err != nil {
		t.Error(err)
	}
}

// A server whose disk is full for a while fails every handler that writes: that
// is not for the handlers to answer for.
func TestFullDiskIsNobodysFailure(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"in a handler": `SELECT full_disk(true)`,
		"at COMMIT":    `INSERT INTO written_at_commit VALUES (1)`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			d.Exec(t, `CREATE FUNCTION full_disk() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$`)
			d.Exec(t, `CREATE FUNCTION full_disk(BOOLEAN) RETURNS VOID LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$`)
			d.Exec(t, `CREATE TABLE written_at_commit (i INT)`)
			d.Exec(t, `CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON written_at_commit DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION full_disk()`)
			appendN(t, d.DB, "Order", "1", 3)
			var calls atomic.Int32
			c := &ledger{name: "writing", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				if calls.Add(1) > 1 {
					return nil
				}
				_, err := tx.ExecContext(ctx, statement)
				return err
			}}
			var byHandler atomic.Bool
			start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1),
				worker.WithObserver(observe.On(func(r observe.Retrying) { byHandler.Store(r.ByHandler) })))
			awaitHandled(t, d.DB, "writing", upTo(3)...)
			if byHandler.Load() {
				t.Error("the handler is blamed")
			}
		})
	}
}
