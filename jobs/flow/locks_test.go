package flow

import (
	"context"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A report of an end locks the run before a step. While a cancellation holds the run locked, all
// steps are unlocked and unchanged.
func TestRunsAreLockedFirst(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience) // a wrong order of locks would wait for ever
	defer cancel()
	run := b.begin(t, side())
	b.end(t, run, map[stepID]outcome{0: {state: "completed"}}, idOf(run, 0, 0))
	tx := must(b.d.DB.Begin())(t)
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, _, err := b.lock(ctx, tx, run); err != nil {
		t.Fatal(err)
	}
	r := b.sql.round(b.d.DB)
	if err := r.advance(ctx, []int64{int64(idOf(run, 0, 0))}); err != nil || len(r.held) != 1 {
		t.Fatalf("held is %v, %v", r.held, err)
	}
	var changed int
	if err := tx.QueryRow(`SELECT count(*) FROM jobs_flow_steps WHERE id >> 30 = $1 AND (finished_at IS NOT NULL OR need = 7)`, run).Scan(&changed); err != nil || changed != 0 {
		t.Errorf("%d steps of a locked run have changed, %v", changed, err)
	}
	// The transaction that has locked the run reports its end, and no other does.
	if err := b.sql.round(tx).advance(ctx, []int64{int64(idOf(run, 0, 0))}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.d.DB.Exec(`SELECT FROM jobs_flow_runs WHERE id = $1 FOR NO KEY UPDATE NOWAIT`, run); err == nil {
		t.Error("the run is free while its steps change")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}
