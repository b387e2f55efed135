package txcheck

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// An outcome lookup, and a lookup during the shutdown, last as long as the last statements of a
// worker may.
func TestLookupLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped, stop := context.WithCancel(t.Context())
		stop()
		c := Check{unit: Unit{Leave: 5 * time.Second, Stop: func() context.Context { return stopped }}}
		for name, bound := range map[string]func(context.Context) (context.Context, context.CancelFunc){"an outcome lookup": c.lookupContext, "the shutdown deadline": c.shutdownDeadline} {
			began := time.Now()
			ctx, cancel := bound(t.Context())
			if <-ctx.Done(); time.Since(began) != 5*time.Second {
				t.Errorf("%s lasts %v, want 5s", name, time.Since(began))
			}
			cancel()
		}
	})
}
