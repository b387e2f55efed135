package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

const writers = 8

// together runs f in as many goroutines as there are writers, and waits.
func together(f func(writer int)) {
	var wg sync.WaitGroup
	for i := range writers {
		wg.Add(1)
		go func() { defer wg.Done(); f(i) }()
	}
	wg.Wait()
}

// commit appends events, then another event to a new aggregate whether or not the first append
// succeeded, and commits. It returns the error of the first append and the error of the commit. The
// transactions of every other writer are of pgx.
func commit(ctx context.Context, db *sql.DB, writer int, expected store.ExpectedVersion, events []store.Event) (outcome, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	tx, err := either.Begin(ctx, conn, writer%2 == 1)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	err = in(tx, func(tx *sql.Tx) error {
		_, outcome = defaultStore.Append(ctx, tx, expected, events)
		_, err := defaultStore.Append(ctx, tx, store.NoStream(), newEvents(1, "Audit", uuid.NewString()))
		return err
	})
	if err != nil {
		return outcome, err
	}
	return outcome, tx.Commit()
}

func TestOneWinnerPerVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	const rounds = 25
	for version := range int64(rounds) {
		outcomes := make([]error, writers)
		together(func(i int) {
			var err error
			if outcomes[i], err = commit(t.Context(), db, i, store.Exact(version), newEvents(1, "Order", "1")); err != nil {
				t.Errorf("version %d: the transaction of writer %d: %v", version, i, err)
			}
		})
		winners := 0
		for _, err := range outcomes {
			var conflict *storepostgres.ConflictError
			switch {
			case err == nil:
				winners++
			case !errors.As(err, &conflict) || conflict.Err != nil || conflict.Actual != version+1:
				t.Errorf("version %d: a loser got %v", version, err)
			}
		}
		if winners != 1 {
			t.Fatalf("version %d: %d winners", version, winners)
		}
	}
	checkAggregateIsWhole(t, db, rounds)
	if n := count(t, db, `SELECT count(*) FROM events WHERE aggregate_type = 'Audit'`); n != rounds*writers {
		t.Errorf("%d audit events, want %d: losers' transactions go on", n, rounds*writers)
	}
}

func TestAppendAtAnyVersionNeverConflicts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	const rounds = 20
	together(func(i int) {
		for round := range rounds {
			outcome, err := commit(t.Context(), db, i, store.Any(), newEvents(1+round%3, "Order", "1"))
			if outcome != nil || err != nil {
				t.Errorf("writer %d, round %d: %v, %v", i, round, outcome, err)
				return
			}
		}
	})
	total := 0
	for round := range rounds {
		total += writers * (1 + round%3)
	}
	checkAggregateIsWhole(t, db, total)
}

// checkAggregateIsWhole checks that versions have no gaps, positions follow
// versions, and the head is the last version.
func checkAggregateIsWhole(t *testing.T, db *sql.DB, events int) {
	t.Helper()
	stream, err := defaultStore.ReadAggregateStream(t.Context(), db, "Order", "1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if stream.Len() != events {
		t.Errorf("%d events, want %d", stream.Len(), events)
	}
	for i, e := range stream.Events {
		if e.AggregateVersion != int64(i+1) {
			t.Fatalf("event %d has version %d", i, e.AggregateVersion)
		}
	}
	if !slices.IsSortedFunc(stream.Events, func(a, b store.PersistedEvent) int { return int(a.GlobalPosition - b.GlobalPosition) }) {
		t.Error("positions do not follow versions")
	}
	if head := count(t, db, `SELECT aggregate_version FROM aggregate_heads WHERE aggregate_type = 'Order' AND aggregate_id = '1'`); head != events {
		t.Errorf("the head is at %d, want %d", head, events)
	}
}

// A notification arrives with the commit, once for all appends of a transaction. A rollback
// sends none.
func TestNotification(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel("app_Events")))
	listener, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(context.WithoutCancel(t.Context()))
	if _, err := listener.Exec(t.Context(), `LISTEN "app_Events"`); err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		n, err := listener.WaitForNotification(t.Context())
		if err != nil {
			t.Fatalf("waiting for a notification: %v", err)
		}
		return n.Payload
	}
	mark := func(payload string) { d.Exec(t, `SELECT pg_notify('app_Events', $1)`, payload) }
	begin := func() *sql.Tx {
		tx, err := d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	appendTo := func(tx *sql.Tx, id string) {
		if _, err := s.Append(t.Context(), tx, store.NoStream(), newEvents(3, "Order", id)); err != nil {
			t.Fatal(err)
		}
	}

	committed, rolledBack := begin(), begin()
	defer committed.Rollback()
	defer rolledBack.Rollback()
	appendTo(committed, "1")
	appendTo(committed, "2")
	appendTo(rolledBack, "3")
	mark("appended")
	if err := rolledBack.Rollback(); err != nil {
		t.Fatal(err)
	}
	mark("rolled back")
	if err := committed.Commit(); err != nil {
		t.Fatal(err)
	}
	mark("committed")
	inTx(t, d.DB, func(tx *sql.Tx) {
		if _, err := s.Append(t.Context(), tx, store.NoStream(), newEvents(1, "Order", "1")); !errors.Is(err, store.ErrOptimisticConcurrency) {
			t.Fatalf("want a conflict, got %v", err)
		}
	})
	mark("refused")
	for _, want := range []string{"appended", "rolled back", "", "committed", "refused"} {
		if got := next(); got != want {
			t.Fatalf("notified of %q, want %q", got, want)
		}
	}
}
