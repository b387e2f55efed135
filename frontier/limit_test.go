package frontier

import (
	"testing"
	"time"
)

// The bound of a statement doubles each time that it passes, up to the last,
// and begins again after a long time without that.
func TestLimitGrowsWhereItPasses(t *testing.T) {
	var l limit
	now := time.Now()
	for _, test := range []struct {
		after time.Duration
		want  time.Duration
	}{
		{0, 2 * firstLimit},
		{limitKept, 4 * firstLimit},
		{time.Second, lastLimit},
		{time.Second, lastLimit},
		{limitKept + 1, 2 * firstLimit},
	} {
		now = now.Add(test.after)
		if l.pass(now); l.get() != test.want {
			t.Errorf("%v after the bound passed before, it is %v, want %v", test.after, l.get(), test.want)
		}
	}
	if fresh := (&limit{}).get(); fresh != firstLimit {
		t.Errorf("the first bound is %v", fresh)
	}
}
