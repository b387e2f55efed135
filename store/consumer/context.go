package consumer

import (
	"context"
	"database/sql"
)

// Delivery describes the call of Handle that a context belongs to.
type Delivery struct {
	Consumer string
	// Attempt counts the tries of this batch from 1.
	Attempt int
	// Late tells that the consumer has gone past the event's position before:
	// it became visible only afterwards, or it was a dead letter.
	Late bool
}

type deliveryKey struct{}

type delivery struct {
	Delivery
	conn func() *sql.Conn
}

// WithDelivery returns a context that Info and Conn answer from. Each call of
// Conn calls conn; without a connection, conn is nil. Workers and test harnesses
// call WithDelivery; consumers have no need to.
func WithDelivery(ctx context.Context, d Delivery, conn func() *sql.Conn) context.Context {
	return context.WithValue(ctx, deliveryKey{}, delivery{d, conn})
}

// Info describes the running call of Handle; ok is false outside of one.
func Info(ctx context.Context) (d Delivery, ok bool) {
	v, ok := ctx.Value(deliveryKey{}).(delivery)
	return v.Delivery, ok
}

// Conn returns the connection on which the transaction given to Handle runs,
// so that a driver's own features (COPY, for one) can be used inside it. It
// is valid until Handle returns; ok is false outside of Handle. Do not close it:
// Close waits for the end of the transaction, and Handle for Close, until
// BatchTimeout ends both.
func Conn(ctx context.Context) (conn *sql.Conn, ok bool) {
	v, _ := ctx.Value(deliveryKey{}).(delivery)
	if v.conn == nil {
		return nil, false
	}
	return v.conn(), true
}
