// Package bounded bounds the bytes of reads of a log.
package bounded

import (
	"context"
	"sync/atomic"

	"github.com/pgfrontier/worker/store"
)

// MaxBytes bounds the payload and metadata of one read, in bytes. The last event of a read may
// exceed it.
const MaxBytes = 8 << 20

// Reader bounds the reads of a log. A store.SizedReader bounds each read itself. For any other log,
// Reader lowers the number of events. It expects events of the average size of the last read.
type Reader struct {
	width atomic.Int64 // average bytes of an event in the last read
}

// Events returns at most limit visible events above position after, up to maxBytes. more
// reports whether further events may follow.
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

// Limit lowers a limit so that the read probably stays below MaxBytes.
func (r *Reader) Limit(limit int) int {
	if width := r.width.Load(); width > 0 {
		return min(limit, max(1, int(MaxBytes/width)))
	}
	return limit
}

// Took records the sizes of the events of a read.
func (r *Reader) Took(events []store.PersistedEvent) {
	bytes := 0
	for i := range events {
		bytes += len(events[i].Payload) + len(events[i].Metadata)
	}
	if n := len(events); n > 0 {
		r.width.Store(int64(bytes / n))
	}
}
