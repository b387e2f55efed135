package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// fallsInto are the statements of a batch, by what they contain.
var fallsInto = map[string]string{
	"BEGIN":  "begin isolation level read committed",
	"load":   "'seen', to_jsonb",
	"read":   "octet_length(e.payload)", // not that of Start, which tries whether it may read
	"guard":  "guard AS (",
	"COMMIT": "commit\x00",
}

// swallowers say when a connection dies: before the server has a statement, or
// before its answer arrives.
var swallowers = map[string]func(h *pgtest.Hole, text string){
	"before": (*pgtest.Hole).Swallow,
	"after":  (*pgtest.Hole).SwallowAnswer,
}

// eachSilence runs a test for every statement whose connection may die.
func eachSilence(t *testing.T, test func(t *testing.T, d *pgtest.Database, db *sql.DB, h *pgtest.Hole)) {
	for statement, text := range fallsInto {
		for when, swallow := range swallowers {
			t.Run(when+" "+statement, func(t *testing.T) {
				t.Parallel()
				d := newLog(t)
				db, h := d.OpenHole(t)
				swallow(h, text)
				appendN(t, d.DB, "Order", "1", 5)
				test(t, d, db, h)
			})
		}
	}
}

func awaitFallen(t *testing.T, h *pgtest.Hole) {
	t.Helper()
	await(t, "a connection to die", func() bool { return h.Fallen() > 0 })
}

// A connection that dies in silence holds its consumer up for a moment. What
// the server still holds for it is ended.
func TestConnectionThatDiesInSilence(t *testing.T) {
	t.Parallel()
	eachSilence(t, func(t *testing.T, d *pgtest.Database, db *sql.DB, h *pgtest.Hole) {
		w := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "all"}}, append(quick(), worker.WithBatchTimeout(time.Second))...)
		setQuick(w, time.Second)
		runWorker(t, w)
		awaitFallen(t, h)
		awaitHandled(t, d.DB, "all", upTo(5)...)
	})
}

// Stop does not wait for a connection that has died in silence.
func TestStopWhileAConnectionIsSilent(t *testing.T) {
	t.Parallel()
	eachSilence(t, func(t *testing.T, _ *pgtest.Database, db *sql.DB, h *pgtest.Hole) {
		w := start(t, db, []consumer.Consumer{&ledger{name: "all"}}, worker.WithBatchTimeout(time.Hour), worker.WithShutdownTimeout(time.Second))
		awaitFallen(t, h)
		w.Stop()
		if err := w.result(t); err != nil {
			t.Errorf("Start returned %v", err)
		}
	})
}

// All connections of the pool die at once; new ones work. Every consumer goes
// on, and the worker sweeps the pool.
func TestAllConnectionsDieInSilence(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	db, h := d.OpenHole(t)
	const dead = 26
	db.SetMaxIdleConns(2 * dead)
	var consumers []consumer.Consumer
	for i := range 8 {
		consumers = append(consumers, &ledger{name: fmt.Sprint("c", i)})
	}
	appendN(t, d.DB, "Order", "1", 1)
	swept := make(chan struct{}, 1)
	start(t, db, consumers, worker.WithHeartbeatTimeout(30*time.Second), worker.WithObserver(observe.On(func(observe.PoolSwept) {
		select {
		case swept <- struct{}{}:
		default:
		}
	})))
	for _, c := range consumers {
		awaitHandled(t, d.DB, c.Name(), 1)
	}
	fillPool(t, db, dead)
	if n := h.SwallowAll(); n < dead {
		t.Fatalf("%d connections died, want %d at least", n, dead)
	}
	appendN(t, d.DB, "Order", "1", 1)
	for _, c := range consumers {
		awaitHandled(t, d.DB, c.Name(), 1, 2)
	}
	select {
	case <-swept:
	case <-time.After(pgtest.Patience):
		t.Error("no sweep is told")
	}
}

// Stop does not wait for connections that have all died in silence.
func TestStopWhenAllConnectionsAreSilent(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	db, h := d.OpenHole(t)
	appendN(t, d.DB, "Order", "1", 1)
	w := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "a"}, &ledger{name: "b"}}, quick()...)
	// Start waits for the coordinator for twice as long, and a lock is released within a second.
	setLeave(w, 2*time.Second)
	r := runWorker(t, w)
	// A COMMIT whose answer is still to come is waited for, up to BatchTimeout.
	await(t, "no batch to be in hand", func() bool { return statusOf(w, "a").Handled+statusOf(w, "b").Handled == 2 })
	h.SwallowAll()
	w.Stop()
	if err := r.result(t); err != nil {
		t.Errorf("Start returned %v", err)
	}
}

// fillPool makes a pool have that many connections at least.
func fillPool(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	conns := make([]*sql.Conn, n)
	for i := range conns {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// A guard waits for another transaction's lock for as long as it takes, longer
// than any bound, and says for whose.
func TestGuardWaitsForALock(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0)`)
	holder, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback() }() // a no-op after Commit
	var pid int
	if err := holder.QueryRow(`SELECT pg_backend_pid() FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	var log lines
	var retries atomic.Int32
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}, append(quick(), worker.WithBatchTimeout(2*time.Second), worker.WithHeartbeatTimeout(time.Minute), worker.WithLogger(&log),
		worker.WithObserver(observe.On(func(observe.Retrying) { retries.Add(1) })))...)
	setQuick(w, 4*time.Second)
	setGuard(w, 500*time.Millisecond) // 4.5 s with two batches: one poll without an answer does not end the guard
	runWorker(t, w)
	remedy := fmt.Sprintf("pg_terminate_backend(%d)", pid)
	says := func() bool {
		err := statusOf(w, "c").LastError
		return err != nil && strings.Contains(err.Error(), remedy) && strings.Contains(err.Error(), "idle in transaction")
	}
	await(t, "the status to say whose lock it is", says)
	await(t, "the log to say so several times", func() bool { return len(log.with(remedy)) >= 3 })
	await(t, "the guard to have waited longer than the bounds", func() bool {
		var long bool
		err := d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '5 seconds')`).Scan(&long)
		return err == nil && long
	})
	if err := holder.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "c", 1)
	await(t, "the status to say so no longer", func() bool { return statusOf(w, "c").LastError == nil })
	if n := retries.Load(); n != 0 {
		t.Errorf("the batch was tried again %d times", n)
	}
}

// A rollback into silence holds its consumer up for a moment, like any other
// statement.
func TestRollbackIntoSilence(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	db, h := d.OpenHole(t)
	var once sync.Once
	c := &ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) (err error) {
		once.Do(func() {
			h.Swallow("rollback")
			err = errRefused
		})
		return err
	}}
	w := worker.New(db, newStore(), []consumer.Consumer{c}, append(quick(), worker.WithBatchTimeout(time.Second))...)
	setQuick(w, time.Second)
	runWorker(t, w)
	awaitHandled(t, d.DB, "c", 1)
	if h.Fallen() != 1 {
		t.Errorf("%d connections died, want 1", h.Fallen())
	}
}
