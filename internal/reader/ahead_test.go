package reader

import (
	"testing"

	"github.com/pgfrontier/worker/store"
)

// A stretch has as many pages as there is sight for, and always one.
func TestStretch(t *testing.T) {
	small := make([]store.PersistedEvent, 10)
	large := []store.PersistedEvent{{Payload: make([]byte, farBytes/100)}, {Metadata: make([]byte, farBytes/100)}}
	for _, c := range []struct {
		limit  int
		before []store.PersistedEvent
		pages  int
	}{
		{100, nil, farSight / 100}, {100, small, farSight / 100}, {1000, nil, farSight / 1000}, {farSight + 1, nil, 1},
		{10, large, 10}, {100, large, 1}, {101, large, 1},
	} {
		if got := stretch(c.limit, c.before); got != c.pages {
			t.Errorf("batches of %d, after %d events: %d pages, want %d", c.limit, len(c.before), got, c.pages)
		}
	}
}
