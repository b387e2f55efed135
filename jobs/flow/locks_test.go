package flow

import (
	"context"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
)

// Who takes note of an end waits for its run before it locks a step: somebody who has
// locked the run, as a cancellation does, finds all steps free.
func TestRunsAreLockedFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := b.begin(t, side())
	b.end(t, run, map[stepID]outcome{0: {state: "completed"}}, idOf(run, 0, 0))
	tx := must(b.d.DB.Begin())(t)
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, _, err := b.lock(t.Context(), tx, run); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- b.sql.advanceAll(context.Background(), b.d.DB, []int64{int64(idOf(run, 0, 0))}, nil) }()
	for deadline := time.Now().Add(pgtest.Patience); ; time.Sleep(time.Millisecond) {
		var waits bool
		if err := b.d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE a.datname = current_database() AND NOT l.granted)`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for the statement to wait for the run")
		}
	}
	if _, err := tx.Exec(`SELECT FROM jobs_flow_steps WHERE id >> 30 = $1 FOR UPDATE NOWAIT`, run); err != nil {
		t.Errorf("who waits for the run has locked steps: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
}
