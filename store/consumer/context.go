package consumer

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/internal/delivery"
)

// Delivery describes the call of Handle to which a context belongs.
type Delivery struct {
	Consumer string
	// Partition names the part of a [Partitioned] consumer's keys that the call handles, such
	// as "400-7ff". It is empty for all keys. No two calls of the same part run at the same
	// time. The parts change with the number of partitions.
	Partition string
	// Attempt counts the tries of this batch from 1.
	Attempt int
	// Late reports whether the consumer had passed the event's position before. A late event
	// became visible only afterwards, or was a dead letter.
	Late bool
	// Replay reports whether the consumer has handled the event before, and an operator has set
	// the consumer back. If Shadow is set, so is Replay. During a replay, write the consumer's
	// tables again, but do not repeat external effects such as mail. All events of one call are
	// alike.
	Replay bool
	// Shadow reports that another consumer has had the external effects, or will have them: this
	// consumer is a shadow, or was one, see ops.Operator.Shadow. Replay is then set.
	Shadow bool
}

// Info returns the running call of Handle. ok is false outside of Handle.
func Info(ctx context.Context) (d Delivery, ok bool) {
	d, ok = delivery.Of(ctx).(Delivery)
	return d, ok
}

// Conn returns the connection of the transaction that was passed to Handle, or to a handler of
// jobs.RegisterTx. The driver's own features, such as COPY, run there in the same transaction. The
// connection is valid until the handler returns. ok is false outside of a handler.
//
// Do not close the connection. Close waits for the end of the transaction, and Handle waits for
// Close, until BatchTimeout ends both. Do not use the transaction inside of conn.Raw either.
// Raw holds the connection, and a statement of the transaction waits for the connection.
func Conn(ctx context.Context) (conn *sql.Conn, ok bool) {
	conn, _ = delivery.Conn(ctx) // the handler may use it until it returns
	return conn, conn != nil
}
