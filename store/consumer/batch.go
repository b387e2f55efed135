package consumer

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// BatchConsumer is a Consumer that takes all events of a batch at once, so
// that it can write in bulk. Workers call HandleBatch in place of Handle.
type BatchConsumer interface {
	Consumer
	// HandleBatch applies events, in order, under the rules of Handle. Late
	// events come in a call of their own, before the others of the same
	// transaction. It must not keep the slice.
	//
	// Return an EventError to name the event that cannot be handled. After any
	// other error the batch is halved until the event is found.
	HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
}

// EventError names the event of a batch that cannot be handled: what comes
// before it can be committed without it.
type EventError struct {
	Index int // in the events that HandleBatch was given
	Err   error
}

func (e *EventError) Error() string { return fmt.Sprintf("event %d of the batch: %v", e.Index, e.Err) }

// Unwrap gives the cause.
func (e *EventError) Unwrap() error { return e.Err }
