package jobs

import (
	"testing"
	"time"
)

// A slow reconciliation delays the next one, since it may have read many dead entries. The delay is
// at most six heartbeats, since the reconciliation may have waited for its connection. While the
// answer of a claim is missing, there is no delay.
func TestReconcilePause(t *testing.T) {
	const beat = time.Second
	lost := time.Now()
	for _, c := range []struct {
		took  time.Duration
		doubt time.Time
		want  time.Duration
	}{
		{time.Millisecond, time.Time{}, beat},
		{100 * time.Millisecond, time.Time{}, 2 * beat},
		{2 * time.Second, time.Time{}, 6 * beat},
		{100 * time.Millisecond, lost, beat},
		{2 * time.Second, lost, beat},
	} {
		r := &reconciler{shared: &shared{cfg: &config{heartbeat: beat}}, doubt: c.doubt}
		if got := r.pause(c.took); got != c.want {
			t.Errorf("after a reconciliation of %v, a claim lost: %t, the next is due in %v, want %v", c.took, !c.doubt.IsZero(), got, c.want)
		}
	}
}
