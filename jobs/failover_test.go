package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// The server that was found before a failure of the session does not count: the new session may be
// on another server.
func TestFailedSessionForgetsTheServer(t *testing.T) {
	t.Parallel()
	w := NewWorker(pgtest.Empty(t).DB, NewHandlers())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w.failover.Watch(ctx, w.pool, time.Millisecond, time.Minute, func(err error) {
		if err != nil {
			t.Errorf("the read of the server failed: %v", err)
		}
		stop()
	})
	another := "1"
	if !w.failover.Beat(another) {
		t.Error("heartbeats on another server go unnoticed")
	}
	w.coordination().OnFailure(errors.New("the session ended"))
	if w.failover.Beat(another) {
		t.Error("the new session is taken for one on another server")
	}
}
