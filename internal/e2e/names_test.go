package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// foreignLog hides that a store can be bound, as one of somebody else's could
// not.
type foreignLog struct {
	store.Log
	store.SequenceNamer
}

// A handler that changes its session leaves the change behind in the pool. No
// name of the worker may mean another table there.
func TestASessionThatAHandlerChangedLeadsToTheSameTables(t *testing.T) {
	t.Parallel()
	logs := map[string]store.Log{"bound": newStore(), "asked after each read": foreignLog{newStore(), newStore()}}
	for change, statements := range map[string]string{
		"search path": `SET search_path = tenant, public`,
		"temporary tables": `
CREATE TEMPORARY TABLE IF NOT EXISTS events (LIKE public.events);
CREATE TEMPORARY TABLE IF NOT EXISTS consumer_checkpoints (LIKE public.consumer_checkpoints);
CREATE TEMPORARY TABLE IF NOT EXISTS consumer_checkpoints_token (LIKE public.consumer_checkpoints_token)`,
	} {
		for name, log := range logs {
			t.Run(change+", "+name, func(t *testing.T) { handlerChangesItsSession(t, statements, log) })
		}
	}
}

func handlerChangesItsSession(t *testing.T, statements string, log store.Log) {
	d := newLog(t)
	d.Exec(t, `CREATE SCHEMA tenant`)
	for _, table := range []string{"events", "consumer_checkpoints", "consumer_assignments", "consumer_gap_skips", "consumer_checkpoints_token"} {
		d.Exec(t, fmt.Sprintf(`CREATE TABLE tenant.%s (LIKE public.%[1]s)`, table))
	}
	const n = 200
	appendN(t, d.DB, "Order", "1", n)
	var some []consumer.Consumer
	for i := range 3 {
		l := ledger{name: fmt.Sprint("c", i), before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) (err error) {
			if e.GlobalPosition%10 != 1 {
				return nil
			}
			for statement := range strings.SplitSeq(statements, ";") {
				if err == nil {
					_, err = tx.ExecContext(ctx, statement)
				}
			}
			return err
		}}
		some = append(some, &scopedLedger{l})
		if i == 0 {
			l.types = []string{"Order"}
			some[i] = &scopedLedger{l}
		}
	}
	runWorker(t, worker.New(d.DB, log, some, append(quick(), worker.WithBatchSize(10))...))
	control := d.OpenPQ(t) // whose sessions no handler has changed
	atEnd := func() {
		t.Helper()
		for _, c := range some {
			await(t, "the end of "+c.Name(), func() bool { return checkpoint(t, control, c.Name()) == n })
		}
	}
	atEnd()
	// Once more, now that the pool's sessions are changed.
	o, err := ops.New(control)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range some {
		if err := o.Reset(t.Context(), c.Name(), 0, by); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the second time to begin", func() bool { return len(handled(t, control, "c0")) > n })
	atEnd()
	for _, c := range some {
		var got, void int64
		if err := control.QueryRow(`SELECT count(*) FROM public.ledger WHERE consumer = $1`, c.Name()).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if err := control.QueryRow(`SELECT coalesce(sum(missing), 0)::bigint FROM public.consumer_gap_skips WHERE consumer_name = $1`, c.Name()).Scan(&void); err != nil {
			t.Fatal(err)
		}
		if got != 2*n || void != 0 {
			t.Errorf("%s handled %d events of %d, twice, and skipped %d positions", c.Name(), got, n, void)
		}
	}
}

// A session in which the worker's own statements fail leaves the pool: who meets
// it there has done nothing.
func TestARoleLeftBehindStopsNobodyElse(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP ROLE `+role) })
	const n = 100
	good := &ledger{name: "good"}
	bad := &ledger{name: "bad", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		if _, err := tx.ExecContext(ctx, `SET ROLE `+role); err != nil {
			return err
		}
		return errNotWritten
	}}
	db := d.OpenMode(t, pgx.QueryExecModeCacheStatement)
	db.SetMaxOpenConns(5)
	db.SetMaxIdleConns(5)
	start(t, db, []consumer.Consumer{bad, good}, worker.WithBatchSize(5))
	for range n / 10 {
		appendN(t, d.DB, "Order", "1", 10)
	}
	awaitHandled(t, d.DB, "good", upTo(n)...)
	await(t, "the other one", func() bool { return checkpoint(t, d.DB, "bad") == n })
}

// What a handler begins on the worker's connection and leaves open keeps that
// connection from everybody, and the worker says so instead of waiting for it.
func TestAHandlerThatLeavesATransactionOpenOnTheConnection(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	left := make(chan *sql.Tx, 1)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		conn, _ := consumer.Conn(ctx)
		tx, err := conn.BeginTx(context.Background(), nil)
		if err != nil {
			return err
		}
		left <- tx
		return errNotWritten
	}}})
	appendN(t, d.DB, "Order", "1", 1)
	tx := <-left
	defer tx.Rollback()
	err := w.result(t)
	if e := (*worker.ConsumerError)(nil); !errors.As(err, &e) || e.Consumer != "c" || !strings.Contains(err.Error(), "left a transaction open") {
		t.Errorf("Start: %v", err)
	}
}

// A name that leads to the wrong table is an error at the start.
func TestStartRefusesTheWrongTables(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, says string }{
		"another table": {`CREATE SCHEMA tenant; CREATE TABLE tenant.events (global_position BIGSERIAL PRIMARY KEY)`, `leads to table tenant.events, which lacks the columns aggregate_version, aggregate_type,`},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			d.Exec(t, c.before)
			d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = tenant, public', current_database()); END $$`)
			err := worker.New(d.OpenPQ(t), newStore(), []consumer.Consumer{&ledger{name: "c"}}).Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Start: %v, want an error that says: %s", err, c.says)
			}
		})
	}
}
