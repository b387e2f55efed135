// Package failure decides, without a clock or I/O, what follows from a consumer's failures.
package failure

// Kind is whose failure it is. It decides what counts.
type Kind int

const (
	// None: nothing has failed.
	None Kind = iota
	// Handler: the failure counts against the consumer.
	Handler
	// Conflict: PostgreSQL aborted the transaction, as after a deadlock or a serialization
	// failure. The conflict counts only if it repeats for the same batch.
	Conflict
	// Database: the server or a statement of the worker failed. Such failures never count
	// against the consumer.
	Database
	// Loss: a handler or the commit lost the connection, or met a temporary failure of the
	// server. The loss counts if it repeats at the same event while other connections
	// survive.
	Loss
	// Ended: the handler ended the transaction. The worker ends if the checkpoint's row
	// agrees.
	Ended
)
