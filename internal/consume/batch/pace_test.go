package batch

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
		var p Pace
		for range 30 {
			n := rapid.IntRange(1, p.Size(batchSize, timeout)).Draw(t, "events")
			took := time.Duration(0)
			for range min(n, 50) {
				took += time.Duration(rapid.Int64Range(int64(event)/2, int64(event)).Draw(t, "took"))
			}
			took = took / time.Duration(min(n, 50)) * time.Duration(n)
			if took > timeout {
				t.Fatalf("a batch of %d events takes %v", n, took)
			}
			p = p.Handled(n, took)
		}
		if want := min(batchSize, max(int(timeout/paceShare/max(event, 1)), 1)); p.Size(batchSize, timeout) < min(want, batchSize) {
			t.Errorf("batches have %d events, %d would end in time", p.Size(batchSize, timeout), want)
		}
	})
}

// A batch that exceeded BatchTimeout is followed by one with at most half as many events,
// down to one.
func TestPaceAfterATimeout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(24*time.Hour)).Draw(t, "timeout"))
		p := Pace{}.Handled(rapid.IntRange(0, 100).Draw(t, "events"), time.Duration(rapid.Int64Range(0, int64(timeout)).Draw(t, "took")))
		for n := p.Size(100_000, timeout); n > 1; {
			p = p.TimedOut(rapid.IntRange(1, n).Draw(t, "begun"), timeout)
			next := p.Size(100_000, timeout)
			if next > max(n/2, 1) {
				t.Fatalf("after %d events there are %d", n, next)
			}
			n = next
		}
	})
}

// A handler that was slow once gets full batches again.
func TestPaceRecovers(t *testing.T) {
	p := Pace{}.TimedOut(100, 30*time.Second).TimedOut(2, 30*time.Second)
	if n := p.Size(100, 30*time.Second); n != 1 {
		t.Fatalf("batches of %d events, want 1", n)
	}
	for n := 0; n < 20; n++ {
		p = p.Handled(p.Size(100, 30*time.Second), time.Millisecond)
	}
	if n := p.Size(100, 30*time.Second); n != 100 {
		t.Errorf("after 20 fast batches they have %d events, want 100", n)
	}
}
