package reader

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/store"
)

// Appeared reports whether an event is visible in one of the ranges, which are ascending and
// disjoint. Each of its reads may see more than the read before.
func Appeared(ctx context.Context, log store.Log, q store.Querier, ranges []store.Range) (bool, error) {
	if len(ranges) == 0 {
		return false, nil
	}
	if r, ok := log.(store.RangeReader); ok {
		events, err := r.ReadRanges(ctx, q, ranges, 1)
		return len(events) > 0, err
	}
	for _, r := range ranges {
		events, err := log.ReadEvents(ctx, q, r.First-1, 1)
		if err != nil || len(events) > 0 && events[0].GlobalPosition <= r.Last {
			return err == nil, err
		}
	}
	return false, nil
}

// readOpen returns at most limit visible events in the open ranges, in order of position and
// from one snapshot. So of two late events of one aggregate, the second never shows without
// the first.
func readOpen(ctx context.Context, conn Conn, log store.Log, open []store.Range, limit int) ([]store.PersistedEvent, error) {
	if r, ok := log.(store.RangeReader); ok {
		return r.ReadRanges(ctx, conn, open, limit)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after Commit
	var late []store.PersistedEvent
	for _, o := range open {
		for after := o.First - 1; after < o.Last && len(late) < limit; {
			events, err := log.ReadEvents(ctx, tx, after, limit-len(late))
			if err != nil {
				return nil, err
			}
			after = o.Last // unless the range may have more events
			for i := range events {
				if events[i].GlobalPosition > o.Last {
					break
				}
				late = append(late, events[i])
			}
		}
	}
	return late, tx.Commit()
}
