package worker_test

import (
	"testing"

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
