package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// named is a handler of pgx by a function.
type named struct {
	handle func(ctx context.Context, tx pgx.Tx, e store.PersistedEvent) error
}

func (named) Name() string { return "named" }

func (n named) Handle(ctx context.Context, tx pgx.Tx, e store.PersistedEvent) error {
	return n.handle(ctx, tx, e)
}

// inHandle runs f in the pgx.Tx of a Handle, and inspect in its *sql.Tx.
func inHandle(t *testing.T, db *sql.DB, f func(ctx context.Context, tx pgx.Tx) error, inspect func(tx *sql.Tx) error) error {
	t.Helper()
	c := pgxtx.Consumer(named{func(ctx context.Context, tx pgx.Tx, _ store.PersistedEvent) error { return f(ctx, tx) }})
	return workertest.Handle(t.Context(), db, c, []store.Event{order("1")}, inspect)
}

// All of pgx.Tx works in the transaction of a handler, in every mode: what it writes commits with
// the checkpoint, or is rolled back.
func TestIn(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	d.Exec(t, `CREATE TABLE seen (id text)`)
	write := func(ctx context.Context, tx pgx.Tx) error {
		add := func(tx pgx.Tx, id string) {
			if _, err := tx.Exec(ctx, `INSERT INTO seen VALUES ($1)`, id); err != nil {
				t.Error(err)
			}
		}
		add(tx, "exec")
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"seen"}, []string{"id"}, pgx.CopyFromRows([][]any{{"copy"}})); err != nil {
			t.Error(err)
		}
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO seen VALUES ('batch')`)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			t.Error(err)
		}
		if _, err := tx.Prepare(ctx, "own", `INSERT INTO seen VALUES ('prepared')`); err != nil {
			t.Error(err)
		}
		if _, err := tx.Exec(ctx, "own"); err != nil {
			t.Error(err)
		}
		if err := tx.Conn().Deallocate(ctx, "own"); err != nil {
			t.Error(err)
		}
		_ = pgx.BeginFunc(ctx, tx, func(outer pgx.Tx) error {
			add(outer, "outer")
			return pgx.BeginFunc(ctx, outer, func(inner pgx.Tx) error { add(inner, "inner"); return nil })
		})
		_ = pgx.BeginFunc(ctx, tx, func(outer pgx.Tx) error {
			add(outer, "kept")
			_ = pgx.BeginFunc(ctx, outer, func(inner pgx.Tx) error { add(inner, "undone"); return io.EOF })
			if _, err := outer.Exec(ctx, `SELECT 1/0`); err == nil {
				t.Error("1/0 is no error")
			}
			return io.EOF // so "kept" is undone, too
		})
		large := tx.LargeObjects()
		id, err := large.Create(ctx, 0)
		if err == nil {
			err = large.Unlink(ctx, id)
		}
		if err != nil {
			t.Error(err)
		}
		return pgxtx.Do(tx, func(tx *pgxtx.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO seen VALUES ('do')`)
			return err
		})
	}
	want := []string{"batch", "copy", "do", "exec", "inner", "outer", "prepared"}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		err := inHandle(t, d.OpenMode(t, mode), write, func(tx *sql.Tx) error {
			var got string
			err := tx.QueryRow(`SELECT string_agg(id, ' ' ORDER BY id) FROM seen`).Scan(&got)
			if got != strings.Join(want, " ") {
				t.Errorf("%s: it wrote %s, want %s", mode, got, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if n := count(t, d.DB, `SELECT count(*) FROM seen`); n != 0 {
		t.Errorf("%d rows stay of transactions that were rolled back", n)
	}
}

// Who ends the worker's transaction, leaves rows open or goes on after In gets an error.
func TestInRefuses(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	refused := func(what, says string, f func(ctx context.Context, tx pgx.Tx) error) {
		t.Helper()
		if err := inHandle(t, d.DB, f, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
	}
	refused("a commit", "belongs to the worker", func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) })
	refused("a rollback", "belongs to the worker", func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) })
	refused("rows left open", "left open", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
		return err
	})
	var kept, inner pgx.Tx
	refused("nothing", "kept", func(ctx context.Context, tx pgx.Tx) (err error) {
		kept = tx
		inner, err = tx.Begin(ctx)
		return errors.Join(err, errors.New("kept"))
	})
	ctx := t.Context()
	_, begin := kept.Begin(ctx)
	_, exec := kept.Exec(ctx, `SELECT 1`)
	rows, query := kept.Query(ctx, `SELECT 1`)
	_, collect := pgx.CollectRows(rows, pgx.RowTo[int])
	_, copied := kept.CopyFrom(ctx, pgx.Identifier{"seen"}, nil, pgx.CopyFromRows(nil))
	_, prepare := kept.Prepare(ctx, "p", `SELECT 1`)
	batch := &pgx.Batch{}
	batch.Queue(`SELECT 1`)
	for i, err := range []error{begin, exec, query, collect, copied, prepare, kept.QueryRow(ctx, `SELECT 1`).Scan(), kept.Commit(ctx), kept.SendBatch(ctx, batch).Close(), inner.Commit(ctx)} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("use %d after the handler has returned: %v", i, err)
		}
	}
	if err := inHandle(t, d.OpenPQ(t), func(context.Context, pgx.Tx) error { return nil }, nil); err == nil || !strings.Contains(err.Error(), "pgx/v5/stdlib") {
		t.Errorf("with lib/pq: %v", err)
	}
	if err := pgxtx.In(ctx, nil); err == nil {
		t.Error("outside of a handler there is a transaction")
	}
}

// A handler of a job has its pgx.Tx, in a worker and in a test of the handler alone.
func TestInAJob(t *testing.T) {
	t.Parallel()
	d, pool := newPool(t, pgx.QueryExecModeCacheStatement)
	d.Exec(t, `CREATE TABLE seen (id text)`)
	handlers := jobs.NewHandlers()
	jobs.RegisterTx(handlers, func(ctx context.Context, _ *pgxtx.Tx, job *jobs.Job[mail]) error {
		return pgxtx.In(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO seen VALUES ($1)`, job.Args.To)
			return err
		})
	})
	outcome, err := workertest.HandleJob(t.Context(), d.DB, handlers, mail{"ann"}, func(tx *sql.Tx) error {
		if n := count(t, tx, `SELECT count(*) FROM seen WHERE id = 'ann'`); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
		return nil
	})
	if err != nil || outcome.Err != nil {
		t.Error(outcome, err)
	}
	db := pgxtx.DB(pool)
	defer db.Close()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return pgxtx.Do(tx, func(tx *pgxtx.Tx) error {
			_, err := jobs.NewClient(db).Enqueue(t.Context(), tx, mail{"bob"})
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := workertest.Drain(t.Context(), db, handlers); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d.DB, `SELECT count(*) FROM seen WHERE id = 'bob'`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// full has all optional methods of a consumer, and writes down what is called.
type full struct{ bulk }

type bulk struct{ calls *[]string }

func (bulk) Name() string                    { return "full" }
func (bulk) AggregateTypes() []string        { return []string{"Order"} }
func (bulk) Version() int                    { return 3 }
func (bulk) Projection() string              { return "of it" }
func (bulk) StartAt() consumer.Start         { return consumer.After(7) }
func (bulk) Partitions() consumer.Partitions { return consumer.Partitions{Count: 4} }

func (b bulk) Forget(_ context.Context, tx pgx.Tx, aggregateType, aggregateID string) error {
	*b.calls = append(*b.calls, "forget "+aggregateID)
	return nil
}

func (b bulk) HandleBatch(ctx context.Context, tx pgx.Tx, events []store.PersistedEvent) error {
	*b.calls = append(*b.calls, "batch")
	return tx.QueryRow(ctx, `SELECT 1`).Scan(nil)
}

func (f full) Handle(context.Context, pgx.Tx, store.PersistedEvent) error {
	*f.calls = append(*f.calls, "event")
	return nil
}

// A consumer has the optional methods of its handler, and those only.
func TestConsumer(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	for _, mode := range []string{"batch", "both"} {
		var calls []string
		c := pgxtx.Consumer(full{bulk{&calls}})
		if mode == "batch" {
			c = pgxtx.BatchConsumer(bulk{&calls})
		}
		if n := c.(consumer.Partitioned).Partitions().Count; n != 4 {
			t.Errorf("%s: %d partitions, want 4", mode, n)
		}
		if v := c.(consumer.Versioned).Version(); v != 3 {
			t.Errorf("%s: version %d, want 3", mode, v)
		}
		if p := c.(consumer.Projected).Projection(); p != "of it" {
			t.Errorf("%s: projection %q", mode, p)
		}
		if after, _ := c.(consumer.Starter).StartAt().Position(); after != 7 {
			t.Errorf("%s: it starts after %d, want 7", mode, after)
		}
		if types := c.(consumer.ScopedConsumer).AggregateTypes(); !slices.Equal(types, []string{"Order"}) {
			t.Errorf("%s: types %q", mode, types)
		}
		if err := workertest.Handle(t.Context(), d.DB, c, []store.Event{order("1")}, nil); err != nil || !slices.Equal(calls, []string{"batch"}) {
			t.Errorf("%s: %v, called %q", mode, err, calls)
		}
		if err := consumer.Check(c); err != nil {
			t.Error(err)
		}
	}
	plain := pgxtx.Consumer(named{})
	if _, ok := plain.(consumer.Partitioned); ok {
		t.Error("a handler without Partitions is partitioned")
	}
	if _, ok := plain.(consumer.BatchConsumer); ok {
		t.Error("a handler without HandleBatch handles batches")
	}
}

// forgetsBySQL was not changed as a whole to pgx.
type forgetsBySQL struct{ named }

func (forgetsBySQL) Forget(context.Context, *sql.Tx, string, string) error { return nil }

type batchesBySQL struct{ named }

func (batchesBySQL) HandleBatch(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil }

// Start refuses a handler with a method that nobody would call.
func TestConsumerWithMethodsOfSQL(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	for what, h := range map[string]pgxtx.Handler{"Forget": forgetsBySQL{}, "HandleBatch": batchesBySQL{}} {
		err := worker.New(d.DB, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{pgxtx.Consumer(h)}).Start(t.Context())
		if !errors.Is(err, worker.ErrInvalidConfig) || !strings.Contains(err.Error(), what+" that takes a *sql.Tx") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// DB uses all connections of a pool but one, tells a worker how many these are, and leaves the pool open.
func TestDB(t *testing.T) {
	t.Parallel()
	_, pool := newPool(t, pgx.QueryExecModeCacheStatement)
	db := pgxtx.DB(pool)
	if n := db.Stats().MaxOpenConnections; n != 9 {
		t.Errorf("it may use %d connections of 10, want 9", n)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	none := pgxtx.DB(nil)
	defer none.Close()
	if err := none.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "pool is nil") {
		t.Errorf("without a pool: %v", err)
	}
}

// recovers is a handler that goes on after a panic of its part in pgx.
type recovers struct {
	f     func(tx pgx.Tx) error
	value *any
}

func (recovers) Name() string { return "recovers" }

func (r recovers) Handle(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
	defer func() { *r.value = recover() }()
	return pgxtx.In(ctx, r.f)
}

// A panic goes on with its stack, and the transaction is not the handler's any more.
func TestInEndsWithAPanic(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	var kept pgx.Tx
	var value any
	err := workertest.Handle(t.Context(), d.DB, recovers{func(tx pgx.Tx) error { kept = tx; panic("a mistake") }, &value}, []store.Event{order("1")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := value.(*observe.PanicError); !ok || p.Value != "a mistake" || !strings.Contains(p.Error(), "in_test.go") {
		t.Errorf("the panic goes on as %v", value)
	}
	if _, err := kept.Exec(t.Context(), `SELECT 1`); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a use after the panic: %v", err)
	}
}

// LargeObjects with open rows panics in its methods, and leaves the transaction as it is.
func TestLargeObjectsWithOpenRows(t *testing.T) {
	t.Parallel()
	d, _ := newPool(t, pgx.QueryExecModeCacheStatement)
	err := inHandle(t, d.DB, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
		if err != nil {
			return err
		}
		large := tx.LargeObjects()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_, _ = large.Create(ctx, 0)
		}()
		rows.Close()
		_, err = tx.Exec(ctx, `SELECT 1`)
		return err
	}, nil)
	if err != nil {
		t.Error(err)
	}
}
