package jobs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
)

// A read that the end of ctx cuts off returns the error of ctx, whatever the driver returns.
func TestWaitIsCutOff(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.add(task{})
	tx, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM jobs WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// lib/pq asks the server once to end the statement, in vain if that has not begun.
	go func() { pgtest.AwaitBlocked(t, s.d.DB); cancel() }()
	if _, err := jobs.Wait[int](ctx, jobs.NewClient(s.d.OpenPQ(t)), id); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returned %v", err)
	}
}
