package frontier

import (
	"testing"
	"time"
)

// The time limit doubles with each timeout, up to lastLimit. It starts again after limitKept
// without a timeout.
func TestLimitDoublesAfterATimeout(t *testing.T) {
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
			t.Errorf("%v after the latest timeout the limit is %v, want %v", test.after, l.get(), test.want)
		}
	}
	if fresh := (&limit{}).get(); fresh != firstLimit {
		t.Errorf("the first limit is %v", fresh)
	}
}
