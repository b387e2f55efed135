package workertest_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

func catchUp(t *testing.T, db *sql.DB, consumers []consumer.Consumer, opts ...worker.Option) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return workertest.CatchUp(ctx, db, newStore(), consumers, opts...)
}

func TestCatchUp(t *testing.T) {
	t.Parallel()
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
	expect(want) // no new events
	appendEvents(t, d.DB, event("User", "u"))
	expect("all a 2, all u 2, from now a 2, from now u 2, orders a 2")
}

func TestCatchUpStopsAtFirstFailure(t *testing.T) {
	t.Parallel()
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

// A failed statement aborts the transaction, and does not end it.
func TestCatchUpReturnsErrorOfStatement(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	appendEvents(t, d.DB, event("Order", "a"))
	for driver, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		for says, sequel := range map[string]error{"division by zero": nil, "aborted the transaction": errSwallowed} {
			err := catchUp(t, db, []consumer.Consumer{swallowing{&counter{name: "c", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_, err := tx.ExecContext(ctx, `SELECT 1/0`)
				return cmp.Or(sequel, err)
			}}}})
			if !errors.Is(err, worker.ErrConsecutiveFailures) || errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: got %v, want %q", driver, err, says)
			}
		}
	}
	appendEvents(t, d.DB, event("Order", "end"))
	if err := catchUp(t, d.DB, []consumer.Consumer{ender("commits, then fails a statement", sequels["returns an error"])}); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Errorf("a commit before the failed statement: %v", err)
	}
}

// expectAwaited runs CatchUp with ever longer timeouts until its error contains the reasons.
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

// CatchUp stops waiting for a handler that does not return.
func TestCatchUpAbandonsStuckHandler(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	appendEvents(t, d.DB, event("Order", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := &counter{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		cancel() // ends CatchUp
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

// After a timeout, the error names the awaited position and the known reasons.
func TestCatchUpTimeoutNamesAwaitedPosition(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	open := begin(t, d.DB, event("Order", "a"))
	defer func() { _ = open.Rollback() }()
	appendEvents(t, d.DB, event("Order", "b"))
	wait := []worker.Option{worker.WithGapPolicy(worker.GapWait)}
	expectAwaited(t, d.DB, wait, `awaited that consumer "c" reaches position 2 (it is at 0)`, "a transaction stays open", "pg_terminate_backend")
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Pause(t.Context(), "c", ops.By{Operator: "ann", Reason: "lunch"}); err != nil {
		t.Fatal(err)
	}
	if err := catchUp(t, d.DB, []consumer.Consumer{&counter{name: "c"}}); err == nil || !strings.Contains(err.Error(), `consumer "c" is paused by "ann", because "lunch": resume it`) {
		t.Errorf("of a paused consumer: %v", err)
	}
	if err := o.Resume(t.Context(), "c", ops.By{Operator: "ann", Reason: "done"}); err != nil {
		t.Fatal(err)
	}
	goOn := []worker.Option{worker.WithStaleGapThreshold(20 * time.Millisecond)}
	expectAwaited(t, d.DB, goOn, `awaited that consumer "c" has no position in doubt (it has 1 ranges)`)
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

// A paused consumer is an error, also at the head.
func TestCatchUpOfPausedConsumers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	appendEvents(t, d.DB, event("Order", "a"), event("Order", "a"))
	consumers := []consumer.Consumer{&counter{name: "c"}}
	if err := catchUp(t, d.DB, consumers); err != nil {
		t.Fatal(err)
	}
	expect := func(text string) {
		t.Helper()
		if err := catchUp(t, d.DB, consumers); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("CatchUp: %v, want %q", err, text)
		}
	}
	by := ops.By{Operator: "ann", Reason: "lunch"}
	if err := o.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	expect(`is paused by "ann"`) // at the head
	if err := o.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `TRUNCATE events, aggregate_heads RESTART IDENTITY`)
	appendEvents(t, d.DB, event("Order", "a"))
	expect("the log's sequence has issued 1 at most")
}

// CatchUp awaits events that wait for a replay, and the new events of their aggregate behind
// them.
func TestCatchUpAwaitsReplays(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	const n = 100
	for range n {
		appendEvents(t, d.DB, event("Order", "a"))
	}
	consumers := []consumer.Consumer{&counter{name: "c"}}
	if err := catchUp(t, d.DB, consumers); err != nil {
		t.Fatal(err)
	}
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Replay(t.Context(), "c", "Order", "a", ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	appendEvents(t, d.DB, event("Order", "a"))
	if err := catchUp(t, d.DB, consumers); err != nil {
		t.Fatal(err)
	}
	if got, want := counts(t, d.DB), fmt.Sprintf("c a %d", 2*n+1); got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}
