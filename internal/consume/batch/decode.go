package batch

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/store"
)

// decode returns the events as the handler gets them. A nil decoder changes nothing. If a
// decoder fails, at is the index of the event.
func decode(ctx context.Context, decoder Decoder, events []store.PersistedEvent) (decoded []store.PersistedEvent, at int, err error) {
	if decoder == nil {
		return events, 0, nil
	}
	decoded = slices.Clone(events)
	for i := range decoded {
		err := runtime.Recovered(func() (err error) {
			decoded[i], err = decoder(ctx, events[i])
			return err
		})
		if err == nil {
			err = sameEvent(&events[i], &decoded[i])
		}
		if ctx.Err() != nil {
			return nil, i, context.Cause(ctx) // also if the decoder ignores its context
		}
		if err != nil {
			return nil, i, fmt.Errorf("decode the event (WithDecoder): %w", err)
		}
	}
	return decoded, 0, nil
}

// sameEvent returns an error if a decoder has changed the identity of an event. Its
// position and its aggregate decide the order, the checkpoint and the dead letters.
func sameEvent(stored, decoded *store.PersistedEvent) error {
	changed := func(what string, from, to any) error {
		return fmt.Errorf("the decoder has changed the event's %s from %s to %s: return the event that it was given, with another type, version, payload or metadata",
			what, errtext.Value(fmt.Sprint(from)), errtext.Value(fmt.Sprint(to)))
	}
	switch {
	case decoded.GlobalPosition != stored.GlobalPosition:
		return changed("GlobalPosition", stored.GlobalPosition, decoded.GlobalPosition)
	case decoded.EventID != stored.EventID:
		return changed("EventID", stored.EventID, decoded.EventID)
	case decoded.AggregateType != stored.AggregateType:
		return changed("AggregateType", stored.AggregateType, decoded.AggregateType)
	case decoded.AggregateID != stored.AggregateID:
		return changed("AggregateID", stored.AggregateID, decoded.AggregateID)
	case decoded.AggregateVersion != stored.AggregateVersion:
		return changed("AggregateVersion", stored.AggregateVersion, decoded.AggregateVersion)
	case decoded.TraceID != stored.TraceID:
		return changed("TraceID", stored.TraceID, decoded.TraceID)
	case decoded.CorrelationID != stored.CorrelationID:
		return changed("CorrelationID", stored.CorrelationID, decoded.CorrelationID)
	case decoded.CausationID != stored.CausationID:
		return changed("CausationID", stored.CausationID, decoded.CausationID)
	}
	return nil
}
