package frontier

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A session proves that the server worked between two times only if the session and the
// server's incarnation lasted throughout.
func TestOutlived(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]struct {
		statement string
		args      []any
	}{
		"the session ends":          {`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'frontier'`, nil},
		"only the incarnation ends": {`UPDATE consumer_checkpoints_token SET token = $1::uuid`, []any{uuid.New()}},
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, poolNamed(t, d.URL, "frontier"))
			cfg.Interval = time.Hour // the frontier reads only when woken
			f, _ := run(t, cfg)
			awaitSettled(t, f, 0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			awaitOutlived(t, f, time.Now())
			before := time.Now()
			if !f.Outlived(ctx, before) {
				t.Fatal("Outlived returned false while the session works")
			}
			exec(t, d.DB, harm.statement, harm.args...)
			if f.Outlived(ctx, before) {
				t.Fatal("Outlived returned true after the session ended")
			}
			awaitOutlived(t, f, time.Now())
			if f.Outlived(ctx, before) {
				t.Fatal("Outlived returned true for a time before the next session")
			}
		})
	}
}

// awaitOutlived waits until the frontier has a working session.
func awaitOutlived(t *testing.T, f *Frontier, from time.Time) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f.Outlived(t.Context(), from); from = time.Now() {
		if time.Now().After(deadline) {
			t.Fatal("no session worked in time")
		}
		time.Sleep(time.Millisecond)
	}
}

// Outlived returns when its context ends.
func TestOutlivedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, poolNamed(t, d.URL, "frontier"))
	cfg.Interval = time.Hour // the frontier reads only when woken
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
			t.Error("Outlived returned true while the session waits for a lock")
		}
	case <-time.After(patience):
		t.Error("Outlived did not return after its context ended")
	}
}
