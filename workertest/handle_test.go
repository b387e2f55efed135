package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// Handle delivers events as a worker does, and rolls back.
func TestHandle(t *testing.T) {
	t.Parallel()
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
	inspected := false
	err := workertest.Handle(t.Context(), d.DB, c, []store.Event{given, {AggregateType: "User", AggregateID: "a"}, event("Invoice", "a"), event("Order", "a"), event("Order", "b")}, func(tx *sql.Tx) error {
		inspected = true
		if all := counts(t, tx); all != "c a 3, c b 1" {
			t.Errorf("within the transaction: %s", all)
		}
		return nil
	})
	if err != nil || !inspected {
		t.Fatal(err, inspected)
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

func TestHandleReturnsWorkerErrors(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		before  func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
		inspect func(*sql.Tx) error
		is      error
		says    string
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
			says: "return the error of that statement",
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
		"what look says": {inspect: func(*sql.Tx) error { return boom }, is: boom, says: "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t)
			pools := map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)}
			for driver, db := range pools {
				err := workertest.Handle(t.Context(), db, swallowing{&counter{name: "c", before: c.before}}, []store.Event{event("Order", "a")}, c.inspect)
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

// errSwallowed makes a handler return nil after a failed statement.
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

func TestHandleCallsHandleBatchOnce(t *testing.T) {
	t.Parallel()
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

// Handle passes a panic on to the test, and leaves no transaction open.
func TestHandlePassesPanicOn(t *testing.T) {
	t.Parallel()
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
	if err := d.DB.PingContext(t.Context()); err != nil { // the pool has only one connection
		t.Fatal(err)
	}
}
