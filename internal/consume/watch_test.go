package consume

import "testing"

// A consumer is loaded again if another worker or an operator has moved it. That includes a
// move just after its loop has loaded it, while the revision was being read.
func TestMovedByOthers(t *testing.T) {
	for _, c := range []struct {
		before, known, now int64
		want               bool
	}{
		{3, 3, 3, false}, {3, 3, 4, true}, {3, 3, 2, true}, // a backup was restored
		{3, 4, 4, false}, {3, 5, 4, false}, // the loop's own move
		{3, 4, 5, true}, // a pause was loaded, and the consumer was resumed
		{noRevision, 4, 5, true}, {noRevision, 4, 4, false},
		{3, noRevision, 5, false}, {noRevision, noRevision, 5, false}, // the loop loads it anyway
	} {
		if got := movedByOthers(c.before, c.known, c.now); got != c.want {
			t.Errorf("before %d, known %d, now %d: %v", c.before, c.known, c.now, got)
		}
	}
}
