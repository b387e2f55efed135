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
	defer cancel()
	for position := int64(1); position <= 3; position++ {
		appendOne(t, d.DB, "noticed")
		h.onEventsNotification()
		for h.frontier.Value().Safe < position {
			if !h.session.Wait(ctx) {
				t.Fatalf("waited in vain for a poll after the notification of position %d", position)
			}
			if err := h.session.Step(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
