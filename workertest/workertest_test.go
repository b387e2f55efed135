package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = 30 * time.Second

// counter counts the events of each aggregate.
type counter struct {
	name   string
	types  []string
	start  consumer.Start
	before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (c *counter) Name() string             { return c.name }
func (c *counter) AggregateTypes() []string { return c.types }
func (c *counter) StartAt() consumer.Start  { return c.start }

func (c *counter) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if c.before != nil {
		if err := c.before(ctx, tx, e); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO counts VALUES ($1::text, 1) ON CONFLICT (id) DO UPDATE SET n = counts.n + 1`, c.name+" "+e.AggregateID)
	return err
}

func newDatabase(t *testing.T) *pgtest.Database {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE counts (id TEXT PRIMARY KEY, n INT NOT NULL)`)
	return d
}

func counts(t *testing.T, q store.Querier) (all string) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(id || ' ' || n, ', ' ORDER BY id), '') FROM counts`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func event(kind, id string) store.Event {
	return store.Event{AggregateType: kind, AggregateID: id, EventType: "Happened", EventID: uuid.New(), Payload: []byte(`{}`)}
}

func begin(t *testing.T, db *sql.DB, events ...store.Event) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newStore().Append(t.Context(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

func appendEvents(t *testing.T, db *sql.DB, events ...store.Event) {
	t.Helper()
	if err := begin(t, db, events...).Commit(); err != nil {
		t.Fatal(err)
	}
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}

// Events come as a worker would bring them, and nothing stays.
func TestHandle(t *testing.T) {
	d := newDatabase(t)
	var got []store.PersistedEvent
	c := &counter{name: "c", types: []string{"Order", "User"}, before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		got = append(got, e)
		conn, ok := consumer.Conn(ctx)
		if info, known := consumer.Info(ctx); !ok || conn == nil || !known || info.Consumer != "c" || info.Attempt != 1 || info.Late {
			return fmt.Errorf("delivered with %+v, %v", info, conn)
		}
		return nil
	}}
	given := event("Order", "a")
	given.CreatedAt = time.UnixMilli(1e12)
	looked := false
	err := workertest.Handle(t.Context(), d.DB, c, []store.Event{given, {AggregateType: "User", AggregateID: "a"}, event("Invoice", "a"), event("Order", "a"), event("Order", "b")}, func(tx *sql.Tx) error {
		looked = true
		if all := counts(t, tx); all != "c a 3, c b 1" {
			t.Errorf("within the transaction: %s", all)
		}
		return nil
	})
	if err != nil || !looked {
		t.Fatal(err, looked)
	}
	shape := ""
	for _, e := range got {
		shape += fmt.Sprintf("%d %s %s v%d; ", e.GlobalPosition, e.AggregateType, e.AggregateID, e.AggregateVersion)
		if e.EventID == uuid.Nil || e.CreatedAt.IsZero() {
			t.Errorf("without id or time: %+v", e)
		}
	}
	if want := "1 Order a v1; 2 User a v1; 4 Order a v2; 5 Order b v1; "; shape != want {
		t.Errorf("delivered %s, want %s", shape, want)
	}
	if got[0].EventID != given.EventID || !got[0].CreatedAt.Equal(given.CreatedAt) || string(got[0].Payload) != `{}` || got[0].EventType != "Happened" {
		t.Errorf("made %+v of %+v", got[0], given)
	}
	if all := counts(t, d.DB); all != "" {
		t.Errorf("left behind: %s", all)
	}
}

func TestHandleReportsWhatAWorkerWould(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
		look   func(*sql.Tx) error
		is     error
		says   string
	}{
		"an error": {
			before: func(context.Context, *sql.Tx, store.PersistedEvent) error { return boom },
			is:     boom, says: `workertest: consumer "c": at position 1 `,
		},
		"an error that was swallowed": {
			before: func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_, _ = tx.Exec(`SELECT 1/0`)
				return errSwallowed
			},
			says: "PostgreSQL has aborted the transaction",
		},
		"a commit": {
			before: func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_ = tx.Commit()
				return errSwallowed
			},
			is: worker.ErrTransactionEnded,
		},
		"a commit in SQL": {
			before: func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_, err := tx.Exec(`COMMIT`)
				return err
			},
			is: worker.ErrTransactionEnded,
		},
		"a rollback": {
			before: func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_ = tx.Rollback()
				return errSwallowed
			},
			is: worker.ErrTransactionEnded,
		},
		"what look says": {look: func(*sql.Tx) error { return boom }, is: boom, says: "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t)
			pools := map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)}
			for driver, db := range pools {
				err := workertest.Handle(t.Context(), db, swallowing{&counter{name: "c", before: c.before}}, []store.Event{event("Order", "a")}, c.look)
				if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v", driver, err)
				}
			}
			if err := workertest.Handle(t.Context(), d.DB, &counter{name: "c"}, []store.Event{event("Order", "a")}, nil); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// errSwallowed ends a handler without an error.
var errSwallowed = errors.New("swallowed")

type swallowing struct{ *counter }

func (s swallowing) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if err := s.counter.Handle(ctx, tx, e); !errors.Is(err, errSwallowed) {
		return err
	}
	return nil
}

// bulk counts the calls of HandleBatch.
type bulk struct {
	*counter
	calls int
}

func (b *bulk) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	b.calls++
	for i, e := range events {
		if err := b.Handle(ctx, tx, e); err != nil {
			return &consumer.EventError{Index: i, Err: err}
		}
	}
	return nil
}

func TestHandleGivesABatchConsumerAllAtOnce(t *testing.T) {
	d := newDatabase(t)
	c := &bulk{counter: &counter{name: "c", types: []string{"Order"}}}
	events := []store.Event{event("User", "u"), event("Order", "a"), event("Order", "b")}
	if err := workertest.Handle(t.Context(), d.DB, c, events, func(tx *sql.Tx) error {
		if all := counts(t, tx); all != "c a 1, c b 1" || c.calls != 1 {
			t.Errorf("within the transaction: %s after %d calls", all, c.calls)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := workertest.Handle(t.Context(), d.DB, c, events[:1], nil); err != nil || c.calls != 1 {
		t.Errorf("without events of its types: %v, %d calls", err, c.calls)
	}
	c.before = func(_ context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := tx.Exec(`COMMIT`)
		return err
	}
	if err := workertest.Handle(t.Context(), d.DB, c, events, nil); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Errorf("a commit: %v", err)
	}
	boom := errors.New("boom")
	c.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "b" {
			return boom
		}
		return nil
	}
	if err := workertest.Handle(t.Context(), d.DB, c, events, nil); !errors.Is(err, boom) || !strings.Contains(err.Error(), "event 1 of the batch") {
		t.Errorf("an error: %v", err)
	}
}

// A panic goes through to the test, and leaves nothing open.
func TestHandleLetsAPanicThrough(t *testing.T) {
	d := newDatabase(t)
	d.DB.SetMaxOpenConns(1)
	func() {
		defer func() {
			if v := recover(); v != "no such order" {
				t.Errorf("recovered %v", v)
			}
		}()
		_ = workertest.Handle(t.Context(), d.DB, &counter{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error { panic("no such order") }}, []store.Event{event("Order", "a")}, nil)
	}()
	if err := d.DB.PingContext(t.Context()); err != nil { // there is one connection only
		t.Fatal(err)
	}
}

func catchUp(t *testing.T, db *sql.DB, consumers []consumer.Consumer, opts ...worker.Option) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return workertest.CatchUp(ctx, db, newStore(), consumers, opts...)
}

func TestCatchUp(t *testing.T) {
	d := newDatabase(t)
	consumers := []consumer.Consumer{
		&counter{name: "all"}, &counter{name: "orders", types: []string{"Order"}}, &counter{name: "from now", start: consumer.AtHead()},
	}
	expect := func(want string) {
		t.Helper()
		if err := catchUp(t, d.DB, consumers); err != nil {
			t.Fatal(err)
		}
		if got := counts(t, d.DB); got != want {
			t.Fatalf("counted %s, want %s", got, want)
		}
	}
	expect("") // an empty log
	appendEvents(t, d.DB, event("Order", "a"), event("Order", "a"))
	if err := begin(t, d.DB, event("Order", "b")).Rollback(); err != nil {
		t.Fatal(err)
	}
	appendEvents(t, d.DB, event("User", "u"))
	want := "all a 2, all u 1, from now a 2, from now u 1, orders a 2"
	expect(want)
	expect(want) // nothing new
	appendEvents(t, d.DB, event("User", "u"))
	expect("all a 2, all u 2, from now a 2, from now u 2, orders a 2")
}

func TestCatchUpEndsAtTheFirstFailure(t *testing.T) {
	d := newDatabase(t)
	boom := errors.New("boom")
	appendEvents(t, d.DB, event("Order", "a"))
	err := catchUp(t, d.DB, []consumer.Consumer{&counter{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error { return boom }}})
	var failed *worker.ConsumerError
	if !errors.Is(err, boom) || !errors.As(err, &failed) || failed.Failures != 1 || failed.Position != 1 {
		t.Fatal(err)
	}
	if err := catchUp(t, d.DB, nil); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Errorf("without consumers: %v", err)
	}
	if err := catchUp(t, d.DB, []consumer.Consumer{nil}); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Errorf("with a nil consumer: %v", err)
	}
}

// expectAwaited runs CatchUp with ever more time until its error says why it
// was in vain.
func expectAwaited(t *testing.T, db *sql.DB, opts []worker.Option, wants ...string) {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := workertest.CatchUp(ctx, db, newStore(), []consumer.Consumer{&counter{name: "c"}}, opts...)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the deadline to be exceeded", err)
		}
		if !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(err.Error(), want) }) {
			return
		}
		if limit > patience {
			t.Fatalf("after %v: %v; want it to say %q", limit, err, wants)
		}
	}
}

// A handler that does not come to an end is given up.
func TestCatchUpEndsAStuckHandler(t *testing.T) {
	d := newDatabase(t)
	appendEvents(t, d.DB, event("Order", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := &counter{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		cancel() // of CatchUp
		<-ctx.Done()
		return ctx.Err()
	}}
	ended := make(chan error, 1)
	go func() {
		ended <- workertest.CatchUp(ctx, d.DB, newStore(), []consumer.Consumer{stuck}, worker.WithBatchTimeout(time.Hour))
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("awaited for %v that CatchUp ends", patience)
	}
	if got := counts(t, d.DB); got != "" {
		t.Errorf("counted %s", got)
	}
}

// When it takes too long, the error names what was awaited, and why it did not
// come as far as that shows.
func TestCatchUpSaysWhatItAwaited(t *testing.T) {
	d := newDatabase(t)
	open := begin(t, d.DB, event("Order", "a"))
	defer func() { _ = open.Rollback() }()
	appendEvents(t, d.DB, event("Order", "b"))
	wait := []worker.Option{worker.WithGapPolicy(worker.GapWait)}
	expectAwaited(t, d.DB, wait, `awaited that consumer "c" reaches position 2 (it is at 0)`, "a transaction stays open", "pg_terminate_backend")
	o, err := ops.New(d.DB, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Pause(t.Context(), "c", ops.By{Operator: "ann", Reason: "lunch"}); err != nil {
		t.Fatal(err)
	}
	expectAwaited(t, d.DB, wait, `which is paused by "ann", because "lunch"`)
	if err := o.Resume(t.Context(), "c", ops.By{Operator: "ann", Reason: "done"}); err != nil {
		t.Fatal(err)
	}
	goOn := []worker.Option{worker.WithStaleGapThreshold(20 * time.Millisecond)}
	expectAwaited(t, d.DB, goOn, `awaited that positions end which consumer "c" has passed in doubt (1 ranges)`)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := catchUp(t, d.DB, []consumer.Consumer{&counter{name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if got := counts(t, d.DB); got != "c a 1, c b 1" {
		t.Errorf("counted %s", got)
	}
}
