package jobs

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
)

// A look that took long puts the next one off, for it may have walked over many dead
// entries; but no farther than six heartbeats, for it may have waited for its connection,
// and not at all while a claim may be under way whose answer was lost.
func TestSlowLookDelaysNoOtherForLong(t *testing.T) {
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
		l := &loop{w: &Worker{observers: &runtime.Observers{}, cfg: config{heartbeat: beat}}, doubt: c.doubt}
		if got := l.lookPause(c.took); got != c.want {
			t.Errorf("after a look of %v, a claim lost: %t, the next is due in %v, want %v", c.took, !c.doubt.IsZero(), got, c.want)
		}
	}
}
