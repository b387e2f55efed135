package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/store"
)

// BatchConsumer is a Consumer that handles all events of a batch at once, to write in bulk.
// Workers call HandleBatch instead of Handle. A type that needs no Handle embeds [BatchOnly].
type BatchConsumer interface {
	Consumer
	// HandleBatch applies events, in order, under the rules of Handle. Late events come in a
	// separate call, before the other events of the same transaction. HandleBatch must neither
	// keep nor change the slice.
	//
	// Return an EventError to name the event that cannot be handled. After any other error, the
	// worker tries the batch again unchanged, then halves it until it has found the event. These
	// tries do not count as failures of the event.
	HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
}

// BatchOnly implements Handle for a BatchConsumer that needs no Handle:
//
//	type Totals struct{ consumer.BatchOnly }
//
//	func (Totals) Name() string { return "totals_v1" }
//	func (Totals) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
//
// Worker.Start refuses a consumer that embeds BatchOnly and has no HandleBatch.
type BatchOnly struct{}

// Handle returns an error. No worker calls Handle of a type that has a HandleBatch.
func (BatchOnly) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return errBatchOnly }

func (BatchOnly) batchOnly() {}

var errBatchOnly = errors.New("it embeds consumer.BatchOnly, and has no HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error: add it, or a Handle")

// Check returns an error for a consumer that embeds BatchOnly and has no HandleBatch, and for one
// whose own CheckConsumer returns an error.
func Check(c Consumer) error {
	if c, ok := c.(interface{ CheckConsumer() error }); ok {
		if err := c.CheckConsumer(); err != nil {
			return err
		}
	}
	_, bulk := c.(BatchConsumer)
	if _, only := c.(interface{ batchOnly() }); only && !bulk {
		return errBatchOnly
	}
	return nil
}

// EventError names the event of a batch that cannot be handled. The worker commits the events
// before it.
type EventError struct {
	Index int // in the events that HandleBatch was given
	Err   error
}

func (e *EventError) Error() string { return fmt.Sprintf("event %d of the batch: %v", e.Index, e.Err) }

// Unwrap returns Err.
func (e *EventError) Unwrap() error { return e.Err }
