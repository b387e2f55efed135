package e2e

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// What a batch sets, it sets for its transaction. The pool is the program's
// own: its sessions must come back as they were, or a transaction of the
// program that sits idle for longer than a batch may would be ended.
func TestBatchLeavesNoSettingBehind(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.DB.SetMaxIdleConns(50)
	before := settings(t, d.DB)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "a"}, &ledger{name: "b"}})
	for range 20 {
		appendN(t, d.DB, "Order", "1", 1)
		head := latestPosition(t, d.DB)
		for _, name := range []string{"a", "b"} {
			if err := w.WaitFor(t.Context(), name, head); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	idle := d.DB.Stats().Idle
	if idle == 0 {
		t.Fatal("the worker left no connection in the pool")
	}
	for range idle { // taken, and kept, one after the other: all of them
		conn, err := d.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for name, value := range settings(t, conn) {
			if value != before[name] {
				t.Errorf("a session of the pool has %s = %q, want %q", name, value, before[name])
			}
		}
	}
}

// settings are all of a session.
func settings(t *testing.T, q store.Querier) map[string]string {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), `SELECT name, coalesce(setting, '') FROM pg_settings`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			t.Fatal(err)
		}
		all[name] = value
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// Workers that start at once, where transactions are stricter than read committed by default:
// a statement that waits for the same of another worker is sacrificed, and made again.
func TestStartUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			other, err := d.DB.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer other.Rollback()
			if _, err := other.Exec(`INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0)`); err != nil {
				t.Fatal(err)
			}
			w := runWorker(t, worker.New(d.OpenSet(t, "default_transaction_isolation", level), newStore(), []consumer.Consumer{&ledger{name: "c"}}))
			pgtest.AwaitBlocked(t, d.DB)
			if err := other.Commit(); err != nil {
				t.Fatal(err)
			}
			appendN(t, d.DB, "Order", "1", 1)
			await(t, "the event to be handled, or the worker to end", func() bool { return checkpoint(t, d.DB, "c") > 0 || len(w.done) > 0 })
			w.Stop()
			if err := w.result(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// What pgx cannot read under the settings of the role, it is not started with.
func TestStartRefusesFormatsThatTheDriverCannotRead(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	for setting, value := range map[string]string{"DateStyle": "SQL, DMY", "bytea_output": "escape"} {
		db := d.InMode(pgx.QueryExecModeExec).OpenSet(t, setting, value)
		err := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "c"}}).Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), "set DateStyle to ISO and bytea_output to hex") {
			t.Errorf("%s = %s: Start returned %v", setting, value, err)
		}
	}
}
