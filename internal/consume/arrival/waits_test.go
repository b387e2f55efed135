package arrival

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
)

// However many callers wait for one consumer, each polls by itself when it begins and when
// the position is reached. In between they share reads. The reads are frequent at first, so
// that a short wait is short, and later once in each interval.
func TestWaitForPollsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, interval = 500, 200 * time.Millisecond
		var at, own, shared atomic.Int64
		w := Waits{Callers: NewCallers(), First: PartPoll, Every: interval, Arrived: func(_ context.Context, name string, position int64) (progress.Arrival, error) {
			if position < 1000 {
				own.Add(1)
			} else {
				shared.Add(1)
			}
			return progress.Arrival{Consumer: name, Position: at.Load(), Handled: at.Load() >= position}, nil
		}}
		wait := func() (took time.Duration) {
			began := time.Now()
			if err := w.Until(t.Context(), "c", 7); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		var all sync.WaitGroup
		for range callers {
			all.Go(func() { wait() })
		}
		time.Sleep(10 * time.Second)
		if n := shared.Load(); own.Load() != callers || n < 50 || n > 60 {
			t.Errorf("%d reads of %d callers and %d shared ones in 10 s", own.Load(), callers, n)
		}
		at.Store(7)
		all.Wait()
		if own.Load() != 2*callers {
			t.Errorf("%d reads of %d callers that came and went", own.Load(), callers)
		}
		at.Store(6)
		time.AfterFunc(20*time.Millisecond, func() { at.Store(7) })
		if took := wait(); took > 40*time.Millisecond {
			t.Errorf("waited %v for a consumer that was there after 20 ms", took)
		}
	})
}
