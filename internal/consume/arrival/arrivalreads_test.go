package arrival

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
)

// However many callers wait for a consumer, they share one read in each interval. A read
// that its own caller has canceled costs the others an interval.
func TestArrivalReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 100 * time.Millisecond
		var l arrivalReads
		var reads atomic.Int64
		read := func(ctx context.Context, consumer string) (progress.Arrival, error) {
			n := reads.Add(1)
			select {
			case <-time.After(30 * time.Millisecond):
				return progress.Arrival{Position: n}, nil
			case <-ctx.Done():
				return progress.Arrival{}, ctx.Err()
			}
		}
		cut, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer end()
		if _, err := l.at(cut, "c", interval, read); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a canceled read returned %v", err)
		}
		time.Sleep(interval)
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				var last int64
				for range 10 {
					now, err := l.at(t.Context(), "c", interval, read)
					if err != nil || now.Position <= last {
						t.Errorf("after %d it is at %d, %v", last, now.Position, err)
					}
					last = now.Position
					time.Sleep(interval)
				}
			})
		}
		all.Wait()
		if n := reads.Load(); n != 11 {
			t.Errorf("%d reads in 10 intervals and one that was cut off", n)
		}
		if _, err := l.at(t.Context(), "d", interval, read); err != nil || reads.Load() != 12 {
			t.Errorf("another consumer is not read: %v", err)
		}
	})
}
