package consume

import (
	"context"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A notification makes the frontier poll, whose own next poll is an hour away.
func TestEventNotificationWakesFrontier(t *testing.T) {
	d, h := newLedgerStepper(t, func(c *Config) { c.DispatcherInterval = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	end := make(chan error, 1)
	go func() { end <- h.frontier.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
	}()
	for position := int64(1); position <= 3; position++ {
		appendOne(t, d.DB, "noticed")
		h.onEventsNotification()
		for {
			changed := h.frontier.Changed()
			if h.frontier.Value().Safe >= position {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("waited in vain for a poll after the notification of position %d", position)
			}
		}
	}
}
