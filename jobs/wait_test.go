package jobs_test

import (
	"context"
	"errors"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := jobs.Wait[int](ctx, jobs.NewClient(s.d.OpenPQ(t)), id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %v", err)
	}
}
