package consume

import (
	"testing"
)

// A consumer is loaded again if somebody else has moved it: also if its loop has loaded it
// just before that, while the revision was asked for.
func TestIsNews(t *testing.T) {
	for _, c := range []struct {
		before, known, now int64
		want               bool
	}{
		{3, 3, 3, false}, {3, 3, 4, true}, {3, 3, 2, true}, // a backup was restored
		{3, 4, 4, false}, {3, 5, 4, false}, // the loop itself
		{3, 4, 5, true}, // a pause was loaded, and it was resumed
		{noRevision, 4, 5, true}, {noRevision, 4, 4, false},
		{3, noRevision, 5, false}, {noRevision, noRevision, 5, false}, // the loop loads it anyway
	} {
		if got := isNews(c.before, c.known, c.now); got != c.want {
			t.Errorf("before %d, known %d, now %d: %v", c.before, c.known, c.now, got)
		}
	}
}
