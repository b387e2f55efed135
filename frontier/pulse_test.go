package frontier

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A session proves that the server has been well from one time to another only
// if it lived through both, and the server did.
func TestOutlived(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]struct {
		statement string
		args      []any
	}{
		"its session ends":                      {`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'frontier'`, nil},
		"the incarnation ends, not the session": {`UPDATE consumer_checkpoints_token SET token = $1::uuid`, []any{uuid.New()}},
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, poolNamed(t, d.URL, "frontier"))
			cfg.Interval = time.Hour // it reads when it is asked to
			f, _ := run(t, cfg)
			awaitSettled(t, f, 0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			awaitOutlived(t, f, time.Now())
			before := time.Now()
			if !f.Outlived(ctx, before) {
				t.Fatal("nothing has happened, and the session has not outlived it")
			}
			exec(t, d.DB, harm.statement, harm.args...)
			if f.Outlived(ctx, before) {
				t.Fatal("it has outlived its end")
			}
			awaitOutlived(t, f, time.Now())
			if f.Outlived(ctx, before) {
				t.Fatal("the next session takes itself for the one before")
			}
		})
	}
}

// awaitOutlived waits until the frontier has a session that works.
func awaitOutlived(t *testing.T, f *Frontier, from time.Time) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f.Outlived(t.Context(), from); from = time.Now() {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for a session")
		}
		time.Sleep(time.Millisecond)
	}
}

// Who asks does not wait for longer than it wants to.
func TestOutlivedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, poolNamed(t, d.URL, "frontier"))
	cfg.Interval = time.Hour // it reads when it is asked to
	f, _ := run(t, cfg)
	awaitSettled(t, f, 0)
	awaitOutlived(t, f, time.Now())
	before := time.Now()
	exec(t, begin(t, d.DB), `LOCK TABLE events IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer := make(chan bool, 1)
	go func() { answer <- f.Outlived(ctx, before) }()
	pgtest.AwaitBlocked(t, d.DB)
	cancel()
	select {
	case outlived := <-answer:
		if outlived {
			t.Error("a session that waits for a lock has answered")
		}
	case <-time.After(patience):
		t.Error("it still waits for an answer")
	}
}
