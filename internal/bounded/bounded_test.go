package bounded

import (
	"context"
	"testing"

	"github.com/pgfrontier/worker/store"
)

// plainLog has endless events of a size, and records the requested limits.
type plainLog struct {
	store.Log
	size  int
	asked int
}

func (l *plainLog) ReadEvents(_ context.Context, _ store.Querier, after int64, limit int) (events []store.PersistedEvent, _ error) {
	l.asked = limit
	for range min(limit, 3) {
		after++
		events = append(events, store.PersistedEvent{GlobalPosition: after, Payload: make([]byte, l.size)})
	}
	return events, nil
}

// After large events, a log without a bound gets a lower limit, at least 1. After small events,
// it gets the original limit.
func TestReadsOfLogWithoutBound(t *testing.T) {
	l, r := &plainLog{}, &Reader{}
	for _, step := range []struct {
		size, asked int
		more        bool
	}{{1 << 20, 1000, false}, {3 * MaxBytes, 8, false}, {10, 1, true}, {10, 1000, false}} {
		l.size = step.size
		events, more, err := r.Events(t.Context(), l, nil, 0, 1000, MaxBytes)
		if err != nil || len(events) == 0 || l.asked != step.asked || more != step.more {
			t.Errorf("%d events of %d bytes, asked for %d, more: %v, %v; want %+v", len(events), step.size, l.asked, more, err, step)
		}
	}
}
