package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestHandlesEverythingInOrderAndGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 250)
	first := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
	awaitHandled(t, d.DB, "all", upTo(250)...)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	if state := first.Status().State; state != observe.StateStopped {
		t.Errorf("the state after Start returned is %q", state)
	}
	appendN(t, d.DB, "Order", "1", 50)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
	awaitHandled(t, d.DB, "all", upTo(300)...)
}

func TestScopedConsumerGetsItsTypesAndCrossesTheRest(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)    // 1, 2
	appendN(t, d.DB, "Invoice", "1", 30) // 3 to 32
	appendN(t, d.DB, "Order", "2", 1)    // 33
	appendN(t, d.DB, "User", "1", 5)     // 34 to 38
	none := &scopedLedger{ledger{name: "no types given"}}
	some := &scopedLedger{ledger{name: "orders", types: []string{"Order"}}}
	start(t, d.DB, []consumer.Consumer{none, some}, worker.WithBatchSize(2))
	awaitHandled(t, d.DB, "orders", 1, 2, 33)
	awaitHandled(t, d.DB, "no types given", upTo(38)...)
	await(t, "the checkpoint of the scoped consumer to reach the head", func() bool { return checkpoint(t, d.DB, "orders") == 38 })
}

func TestRolledBackPositionsAreCrossedAndAudited(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	if err := beginAppend(t, d.DB, "Order", "2", 3).Rollback(); err != nil { // 2 to 4
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "3", 1)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
	awaitHandled(t, d.DB, "all", 1, 5)
	var first, last, missing int64
	var state string
	if err := d.DB.QueryRow(`SELECT gap_position, gap_end, missing, state FROM consumer_gap_skips WHERE consumer_name = 'all'`).Scan(&first, &last, &missing, &state); err != nil {
		t.Fatal(err)
	}
	if first != 2 || last != 4 || missing != 3 || state != "void" {
		t.Fatalf("audited %d to %d, %d missing, %s", first, last, missing, state)
	}
}

func TestWaitsForAnOpenTransactionAndLosesNothing(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	appendN(t, d.DB, "Order", "2", 3)                // 2 to 4
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithGapPolicy(worker.GapWait))
	await(t, "the consumer to be assigned", func() bool { return w.Status().Consumers != nil && w.Status().Consumers[0].Assigned })
	await(t, "the open transaction to be found", func() bool { return len(w.Status().Blocked) == 1 })
	if got := handled(t, d.DB, "all"); len(got) > 0 {
		t.Fatalf("handled %v while a lower position was in doubt", got)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "all", upTo(4)...)
}

func TestTwoWorkersShareAndTakeOver(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var consumers []consumer.Consumer
	for i := range 6 {
		consumers = append(consumers, &ledger{name: fmt.Sprint("c", i)})
	}
	first := start(t, d.DB, consumers)
	second := start(t, d.DB, consumers)
	count := func(w *running) (n int) {
		for _, c := range w.Status().Consumers {
			if c.Assigned {
				n++
			}
		}
		return n
	}
	await(t, "three consumers on each worker", func() bool { return count(first) == 3 && count(second) == 3 })
	appendN(t, d.DB, "Order", "1", 20)
	for i := range 6 {
		awaitHandled(t, d.DB, fmt.Sprint("c", i), upTo(20)...)
	}
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	await(t, "the second worker to run all six", func() bool { return count(second) == 6 })
	appendN(t, d.DB, "Order", "1", 5)
	for i := range 6 {
		awaitHandled(t, d.DB, fmt.Sprint("c", i), upTo(25)...)
	}
}

func TestStopInsideAHandlerCommitsTheBatch(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	ready := make(chan struct{})
	var w *running
	c := &ledger{name: "stopping", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		<-ready
		w.Stop()
		return nil
	}}
	w = start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchSize(4))
	close(ready)
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "stopping", upTo(4)...)
	for _, table := range []string{"worker_nodes", "consumer_assignments"} {
		var n int
		if err := d.DB.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s has %d rows after the only worker left (%v)", table, n, err)
		}
	}
}

func TestStartsOnce(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}})
	w.Stop()
	w.Stop()
	if err := w.Start(context.Background()); err != nil {
		t.Errorf("Start after Stop: %v", err)
	}
	if err := w.Start(context.Background()); !errors.Is(err, worker.ErrAlreadyStarted) {
		t.Errorf("a second Start: %v", err)
	}
}

func TestContextThatEndedBeforeTheStart(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}).Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestContextEndsTheWorkerCleanly(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	ctx, cancel := context.WithCancel(context.Background())
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}})
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	await(t, "the worker to run", func() bool { return w.Status().State == observe.StateRunning })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestStartAt(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	open := beginAppend(t, d.DB, "Order", "open", 1) // 11
	appendN(t, d.DB, "Order", "1", 1)                // 12
	consumers := []consumer.Consumer{
		&startingLedger{ledger{name: "head"}, consumer.AtHead()},
		&startingLedger{ledger{name: "after 7"}, consumer.After(7)},
		&startingLedger{ledger{name: "beginning"}, consumer.AtBeginning()},
	}
	first := start(t, d.DB, consumers, worker.WithGapPolicy(worker.GapWait))
	awaitHandled(t, d.DB, "after 7", 8, 9, 10)
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "after 7", 8, 9, 10, 12)
	await(t, "the consumer at the head to be placed", func() bool { return checkpoint(t, d.DB, "head") == 12 })
	appendN(t, d.DB, "Order", "1", 1) // 13
	awaitHandled(t, d.DB, "head", 13)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 1) // 14
	start(t, d.DB, consumers)
	awaitHandled(t, d.DB, "head", 13, 14) // it has run before, so it goes on
	awaitHandled(t, d.DB, "after 7", 8, 9, 10, 12, 13, 14)
}

func TestConnAndInfoInsideHandle(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	d.Exec(t, `CREATE TABLE copied (position BIGINT)`)
	c := &ledger{name: "copying", before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		info, ok := consumer.Info(ctx)
		if !ok || info.Consumer != "copying" || info.Attempt != 1 || info.Late {
			return fmt.Errorf("Info is %+v, %v", info, ok)
		}
		conn, ok := consumer.Conn(ctx)
		if !ok {
			return errors.New("no connection")
		}
		return conn.Raw(func(driverConn any) error {
			pg := driverConn.(interface{ Conn() *pgx.Conn }).Conn()
			_, err := pg.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"position"}, pgx.CopyFromRows([][]any{{e.GlobalPosition}}))
			return err
		})
	}}
	start(t, d.DB, []consumer.Consumer{c})
	awaitHandled(t, d.DB, "copying", upTo(3)...)
	var n int
	if err := d.DB.QueryRow(`SELECT count(*) FROM copied`).Scan(&n); err != nil || n != 3 {
		t.Fatalf("copied %d rows, %v", n, err)
	}
}

func TestEveryDriverAndMode(t *testing.T) {
	t.Parallel()
	open := map[string]func(t testing.TB, d *pgtest.Database) *sql.DB{
		"lib/pq": func(t testing.TB, d *pgtest.Database) *sql.DB { return d.OpenPQ(t) },
	}
	for _, mode := range pgtest.Modes() {
		open["pgx "+mode.String()] = func(t testing.TB, d *pgtest.Database) *sql.DB { return d.OpenMode(t, mode) }
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			db := open(t, d)
			appendN(t, db, "Order", "1", 3)
			if err := beginAppend(t, db, "Order", "2", 2).Rollback(); err != nil { // 4, 5
				t.Fatal(err)
			}
			appendN(t, db, "Invoice", "1", 2)
			scoped := &scopedLedger{ledger{name: "scoped", types: []string{"Invoice", `"{,\`}}}
			start(t, db, []consumer.Consumer{&ledger{name: "all"}, scoped})
			awaitHandled(t, db, "all", 1, 2, 3, 6, 7)
			awaitHandled(t, db, "scoped", 6, 7)
		})
	}
}

func TestIdleConsumerNoticesThatItWasMoved(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "moved"}, &ledger{name: "unmoved"}})
	awaitHandled(t, d.DB, "moved", 1, 2, 3)
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 1, revision = revision + 1 WHERE consumer_name = 'moved'`)
	awaitHandled(t, d.DB, "moved", 1, 2, 3, 2, 3)
	awaitHandled(t, d.DB, "unmoved", 1, 2, 3)
}

// Many more consumers than connections: a consumer that waits for a connection holds
// none.
func TestSmallPoolServesManyConsumers(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 100)
	d.DB.SetMaxOpenConns(4)
	var consumers []consumer.Consumer
	for i := range 20 {
		consumers = append(consumers, &ledger{name: fmt.Sprint("c", i)})
	}
	start(t, d.DB, consumers, worker.WithBatchSize(10))
	for i := range 20 {
		awaitHandled(t, d.DB, fmt.Sprint("c", i), upTo(100)...)
	}
}
