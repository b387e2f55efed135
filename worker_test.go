package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// TestMain also makes the program a worker process, for tests that kill one.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(workerProcess(role))
	}
	pgtest.Main(m)
}

// await polls until done holds, and fails the test if it does not within a
// time that only a stuck worker needs.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// errNotWritten makes a ledger return without an error and without writing.
var errNotWritten = errors.New("not to be written")

// ledger is a consumer that writes down what it is given, in the transaction
// it is given.
type ledger struct {
	name   string
	types  []string
	before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (l *ledger) Name() string { return l.name }

func (l *ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if l.before != nil {
		if err := l.before(ctx, tx, e); errors.Is(err, errNotWritten) {
			return nil
		} else if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ($1, $2)`, l.name, e.GlobalPosition)
	return err
}

type scopedLedger struct{ ledger }

func (l *scopedLedger) AggregateTypes() []string { return l.types }

type startingLedger struct {
	ledger
	start consumer.Start
}

func (l *startingLedger) StartAt() consumer.Start { return l.start }

// newLog makes a database with an empty log and an empty ledger.
func newLog(t testing.TB) *pgtest.Database {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`)
	return d
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}

func event(aggregateType, id string) store.Event {
	return store.Event{AggregateType: aggregateType, AggregateID: id, EventType: "Happened", EventID: uuid.New(), Payload: []byte(`{}`)}
}

// appendN commits n events of one aggregate in one transaction.
func appendN(t testing.TB, db *sql.DB, aggregateType, id string, n int) {
	t.Helper()
	tx := beginAppend(t, db, aggregateType, id, n)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// beginAppend appends n events and leaves the transaction open.
func beginAppend(t testing.TB, db *sql.DB, aggregateType, id string, n int) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]store.Event, n)
	for i := range events {
		events[i] = event(aggregateType, id)
	}
	if _, err := newStore().Append(context.Background(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

// handled returns the positions in a consumer's ledger, in order.
func handled(t testing.TB, db *sql.DB, consumer string) (positions []int64) {
	t.Helper()
	rows, err := db.Query(`SELECT position FROM ledger WHERE consumer = $1 ORDER BY id`, consumer)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var p int64
		if err := rows.Scan(&p); err != nil {
			t.Fatal(err)
		}
		positions = append(positions, p)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return positions
}

func awaitHandled(t testing.TB, db *sql.DB, consumer string, want ...int64) {
	t.Helper()
	await(t, fmt.Sprintf("consumer %s to have handled %d events", consumer, len(want)), func() bool {
		return len(handled(t, db, consumer)) >= len(want)
	})
	if got := handled(t, db, consumer); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("consumer %s handled %v, want %v", consumer, got, want)
	}
}

func upTo(n int64) (positions []int64) {
	for p := int64(1); p <= n; p++ {
		positions = append(positions, p)
	}
	return positions
}

// running is a worker that a test has started.
type running struct {
	*worker.Worker
	done chan error
}

// start starts a worker with quick heartbeats, and stops it when the test ends.
func start(t testing.TB, db *sql.DB, consumers []consumer.Consumer, opts ...worker.Option) *running {
	t.Helper()
	return runWorker(t, worker.New(db, newStore(), consumers, append(quick(), opts...)...))
}

// quick are settings for tests.
func quick() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherInterval(20 * time.Millisecond),
		worker.WithPollInterval(20 * time.Millisecond),
		worker.WithHeartbeatInterval(100 * time.Millisecond),
		worker.WithHeartbeatTimeout(time.Second),
		worker.WithRebalanceInterval(100 * time.Millisecond),
	}
}

func runWorker(t testing.TB, w *worker.Worker) *running {
	r := &running{w, make(chan error, 1)}
	go func() { r.done <- r.Start(context.Background()) }()
	t.Cleanup(func() {
		r.Stop()
		select {
		case <-r.done:
		case <-time.After(30 * time.Second):
			t.Error("the worker does not stop")
		}
	})
	return r
}

// result waits for the worker's end.
func (r *running) result(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err // for the cleanup
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("the worker does not end")
		return nil
	}
}

func TestHandlesEverythingInOrderAndGoesOnWhereItStopped(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 250)
	first := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
	awaitHandled(t, d.DB, "all", upTo(250)...)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	if state := first.Status().State; state != worker.StateStopped {
		t.Errorf("the state after Start returned is %q", state)
	}
	appendN(t, d.DB, "Order", "1", 50)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}})
	awaitHandled(t, d.DB, "all", upTo(300)...)
}

func TestScopedConsumerGetsItsTypesAndCrossesTheRest(t *testing.T) {
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

func checkpoint(t testing.TB, db *sql.DB, consumer string) (position int64) {
	t.Helper()
	err := db.QueryRow(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1`, consumer).Scan(&position)
	if errors.Is(err, sql.ErrNoRows) {
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	return position
}

func TestRolledBackPositionsAreCrossedAndAudited(t *testing.T) {
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
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	appendN(t, d.DB, "Order", "2", 3)                // 2 to 4
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithGapPolicy(worker.GapWait))
	await(t, "the consumer to be assigned", func() bool { return w.Status().Consumers != nil && w.Status().Consumers[0].Assigned })
	if got := handled(t, d.DB, "all"); len(got) > 0 {
		t.Fatalf("handled %v while a lower position was in doubt", got)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "all", upTo(4)...)
}

func TestTwoWorkersShareAndTakeOver(t *testing.T) {
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

func TestFailingHandler(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		handle func(ctx context.Context, tx *sql.Tx) error
		is     error
		says   string
		opts   []worker.Option
	}{
		"an error": {
			handle: func(context.Context, *sql.Tx) error { return boom },
			is:     boom, says: "boom",
		},
		"a panic": {
			handle: func(context.Context, *sql.Tx) error { panic("no such order") },
			says:   "no such order",
		},
		"a panic with an error": {
			handle: func(context.Context, *sql.Tx) error { panic(boom) },
			is:     boom, says: "panicked",
		},
		"a batch that takes too long": {
			handle: func(ctx context.Context, _ *sql.Tx) error { <-ctx.Done(); return ctx.Err() },
			says:   "longer than BatchTimeout",
			opts:   []worker.Option{worker.WithBatchTimeout(20 * time.Millisecond)},
		},
		"a statement too long for the batch": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
				return err
			},
			says: "longer than BatchTimeout",
			opts: []worker.Option{worker.WithBatchTimeout(20 * time.Millisecond)},
		},
		"a swallowed SQL error": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
				return errNotWritten
			},
			says: "aborted the transaction",
		},
		"a deferred constraint": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES (1)`)
				return err
			},
			says: "child_fk",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			d.Exec(t, `CREATE TABLE parent (id INT PRIMARY KEY)`)
			d.Exec(t, `CREATE TABLE child (id INT CONSTRAINT child_fk REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
			appendN(t, d.DB, "Order", "1", 3)
			var calls atomic.Int32
			c := &ledger{name: "failing", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition != 3 {
					return nil
				}
				calls.Add(1)
				return test.handle(ctx, tx)
			}}
			w := start(t, d.DB, []consumer.Consumer{c}, append([]worker.Option{worker.WithMaxConsecutiveFailures(3)}, test.opts...)...)
			err := w.result(t)
			if !errors.Is(err, worker.ErrConsecutiveFailures) {
				t.Fatalf("Start returned %v, want ErrConsecutiveFailures", err)
			}
			var ce *worker.ConsumerError
			if !errors.As(err, &ce) || ce.Consumer != "failing" || ce.Failures != 3 || ce.Position != 3 {
				t.Fatalf("%v does not tell the consumer and its failures", err)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v does not wrap %v", err, test.is)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v does not say %q", err, test.says)
			}
			if n := calls.Load(); n != 3 {
				t.Errorf("tried %d times, want 3", n)
			}
			if got := handled(t, d.DB, "failing"); !slices.Equal(got, upTo(2)) || checkpoint(t, d.DB, "failing") != 2 {
				t.Errorf("what comes before the failing event left ledger %v and checkpoint %d", got, checkpoint(t, d.DB, "failing"))
			}
		})
	}
}

func TestHandlerThatEndsTheTransaction(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"commits":        func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"rolls back":     func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		"commits by SQL": func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, `COMMIT`); return err },
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			w := start(t, d.DB, []consumer.Consumer{&handler{name: "ending", handle: end}})
			err := w.result(t)
			var ce *worker.ConsumerError
			if !errors.Is(err, worker.ErrTransactionEnded) || !errors.As(err, &ce) || ce.Position != 1 {
				t.Fatalf("Start returned %v, want ErrTransactionEnded at position 1", err)
			}
		})
	}
}

// handler is a consumer made of a function.
type handler struct {
	name   string
	handle func(ctx context.Context, tx *sql.Tx) error
}

func (h *handler) Name() string { return h.name }

func (h *handler) Handle(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
	return h.handle(ctx, tx)
}

func TestFailureThatPassesIsForgotten(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	var calls atomic.Int32
	c := &ledger{name: "flaky", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		if calls.Add(1)%2 == 1 {
			return errors.New("every other time")
		}
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2), worker.WithBatchSize(1), worker.WithPollInterval(time.Millisecond))
	awaitHandled(t, d.DB, "flaky", upTo(6)...)
}

func TestStopInsideAHandlerCommitsTheBatch(t *testing.T) {
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
	d := newLog(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}).Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestContextEndsTheWorkerCleanly(t *testing.T) {
	d := newLog(t)
	ctx, cancel := context.WithCancel(context.Background())
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}})
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	await(t, "the worker to run", func() bool { return w.Status().State == worker.StateRunning })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestStartAt(t *testing.T) {
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
	open := map[string]func(t testing.TB, d *pgtest.Database) *sql.DB{
		"lib/pq": func(t testing.TB, d *pgtest.Database) *sql.DB { return d.OpenPQ(t) },
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
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
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "moved"}, &ledger{name: "unmoved"}})
	awaitHandled(t, d.DB, "moved", 1, 2, 3)
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 1, revision = revision + 1 WHERE consumer_name = 'moved'`)
	awaitHandled(t, d.DB, "moved", 1, 2, 3, 2, 3)
	awaitHandled(t, d.DB, "unmoved", 1, 2, 3)
}

// Many more consumers than connections: whoever waits for a connection holds
// none.
func TestSmallPoolServesManyConsumers(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 300)
	d.DB.SetMaxOpenConns(4)
	var consumers []consumer.Consumer
	for i := range 20 {
		consumers = append(consumers, &ledger{name: fmt.Sprint("c", i)})
	}
	start(t, d.DB, consumers, worker.WithBatchSize(10))
	for i := range 20 {
		awaitHandled(t, d.DB, fmt.Sprint("c", i), upTo(300)...)
	}
}
