package consume

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A handler with a steady time for an event never exceeds BatchTimeout, unless a single
// event takes too long. A fast handler soon gets full batches.
func TestPaceKeepsBatchesInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(time.Hour)).Draw(t, "timeout"))
		batchSize := rapid.IntRange(1, 100_000).Draw(t, "batch size")
		event := time.Duration(rapid.Int64Range(0, int64(timeout)/firstBatch-1).Draw(t, "one event"))
		var p pace
		for range 30 {
			n := rapid.IntRange(1, p.size(batchSize, timeout)).Draw(t, "events")
			took := time.Duration(0)
			for range min(n, 50) {
				took += time.Duration(rapid.Int64Range(int64(event)/2, int64(event)).Draw(t, "took"))
			}
			took = took / time.Duration(min(n, 50)) * time.Duration(n)
			if took > timeout {
				t.Fatalf("a batch of %d events takes %v", n, took)
			}
			p = p.handled(n, took)
		}
		if want := min(batchSize, max(int(timeout/paceShare/max(event, 1)), 1)); p.size(batchSize, timeout) < min(want, batchSize) {
			t.Errorf("batches have %d events, %d would end in time", p.size(batchSize, timeout), want)
		}
	})
}

// A batch that exceeded BatchTimeout is followed by one with at most half as many events,
// down to one.
func TestPaceAfterATimeout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(24*time.Hour)).Draw(t, "timeout"))
		p := pace{}.handled(rapid.IntRange(0, 100).Draw(t, "events"), time.Duration(rapid.Int64Range(0, int64(timeout)).Draw(t, "took")))
		for n := p.size(100_000, timeout); n > 1; {
			p = p.timedOut(rapid.IntRange(1, n).Draw(t, "begun"), timeout)
			next := p.size(100_000, timeout)
			if next > max(n/2, 1) {
				t.Fatalf("after %d events there are %d", n, next)
			}
			n = next
		}
	})
}

// A handler that was slow once gets full batches again.
func TestPaceRecovers(t *testing.T) {
	p := pace{}.timedOut(100, 30*time.Second).timedOut(2, 30*time.Second)
	if n := p.size(100, 30*time.Second); n != 1 {
		t.Fatalf("batches of %d events, want 1", n)
	}
	for n := 0; n < 20; n++ {
		p = p.handled(p.size(100, 30*time.Second), time.Millisecond)
	}
	if n := p.size(100, 30*time.Second); n != 100 {
		t.Errorf("after 20 fast batches they have %d events, want 100", n)
	}
}
