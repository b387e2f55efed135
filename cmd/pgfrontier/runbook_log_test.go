package main

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
)

// soon is late for those alarms that time alone makes true.
const soon = 300 * time.Millisecond

// strict is a worker that waits for each open transaction.
func strict(t *testing.T, s *scene) {
	s.work(t, counter{}, worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(soon))
}

// stayOpen draws a position, and appends behind it.
func stayOpen(t *testing.T, s *scene) {
	s.keep(t, s.begin(t, "x", 1))
	s.append(t, 1)
}

// keep records the session of an open transaction.
func (s *scene) keep(t *testing.T, tx *sql.Tx) {
	t.Helper()
	var pid int
	if err := tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	s.vars["PID"] = fmt.Sprint(pid)
}

// logAlarms are about the log, which all consumers read.
var logAlarms = []alarm{
	{
		name: "A transaction stays open", age: soon,
		start: strict, happen: stayOpen,
	},
	{
		name: "A prepared transaction was forgotten", age: soon,
		start: strict,
		happen: func(t *testing.T, s *scene) {
			s.vars["GID"] = "order 4711 of " + value[string](t, s.site, `SELECT current_database()`)
			s.Exec(t, `BEGIN; SELECT nextval('events_global_position_seq'); PREPARE TRANSACTION '`+s.vars["GID"]+`'`)
			s.append(t, 1)
		},
	},
	{
		name: "The log was altered", age: soon,
		happen: func(t *testing.T, s *scene) {
			s.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 32`)
			s.append(t, 1)
		},
	},
	{
		name: "A consumer waits for ranges in doubt", age: soon,
		start: func(t *testing.T, s *scene) {
			s.work(t, counter{}, worker.WithStaleGapThreshold(50*time.Millisecond), worker.WithMaxOpenRanges(100))
		},
		happen: func(t *testing.T, s *scene) {
			s.keep(t, s.begin(t, "x", 1))
			// Behind each event is a position that nobody uses. While the transaction is
			// open, each of these may be its own.
			s.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
				SELECT 'a', 'many', i, gen_random_uuid(), 't', convert_to(nextval('events_global_position_seq')::text, 'UTF8') FROM generate_series(1, 200) AS i`)
		},
	},
	{
		name: "A transaction holds back vacuum", age: soon,
		happen: func(t *testing.T, s *scene) {
			tx, err := s.DB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			s.keep(t, tx)
		},
	},
}
