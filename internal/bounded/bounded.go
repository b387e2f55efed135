// Package bounded reads events of a log so that no read brings too many bytes.
package bounded

import (
	"context"
	"sync/atomic"

	"github.com/pgfrontier/worker/store"
)

// MaxBytes bounds the payload and metadata that one read brings. The last event
// of a read may go beyond it.
const MaxBytes = 8 << 20

// Reader bounds the reads of a log. A log that is a store.SizedReader ends each
// read itself. Of another, a read asks for as many events as stay below the
// bound if they are as large as those of the read before.
type Reader struct {
	width atomic.Int64 // bytes of an event of the last read, on average
}

// Events returns at most limit visible events above position after, of up to
// maxBytes. more reports that others may follow.
func (r *Reader) Events(ctx context.Context, log store.Log, q store.Querier, after int64, limit, maxBytes int) (events []store.PersistedEvent, more bool, err error) {
	if s, ok := log.(store.SizedReader); ok {
		events, more, err = s.ReadSized(ctx, q, after, limit, maxBytes)
	} else {
		limit = r.Limit(limit)
		events, err = log.ReadEvents(ctx, q, after, limit)
		more = len(events) >= limit
	}
	r.Took(events)
	return events, more, err
}

// Limit lowers a limit to what is likely to stay below the bound.
func (r *Reader) Limit(limit int) int {
	if width := r.width.Load(); width > 0 {
		return min(limit, max(1, int(MaxBytes/width)))
	}
	return limit
}

// Took takes note of what a read brought.
func (r *Reader) Took(events []store.PersistedEvent) {
	bytes := 0
	for i := range events {
		bytes += len(events[i].Payload) + len(events[i].Metadata)
	}
	if n := len(events); n > 0 {
		r.width.Store(int64(bytes / n))
	}
}
