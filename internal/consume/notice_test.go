package consume

import (
	"context"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A notification is why the frontier looks, whose own next look is an hour
// away.
func TestNoticeOfEventsMakesTheFrontierLook(t *testing.T) {
	d, h := newLedgerStepper(t, func(c *Config) { c.DispatcherInterval = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	for position := int64(1); position <= 3; position++ {
		appendOne(t, d.DB, "noticed")
		h.noticeEvents()
		for h.frontier.Value().Safe < position {
			if !h.session.Wait(ctx) {
				t.Fatalf("waited in vain for a look after the notice of position %d", position)
			}
			if err := h.session.Step(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
