package consumer

import (
	"context"
	"database/sql"
	"sync"
)

// Delivery describes the call of Handle that the context belongs to.
type Delivery struct {
	Consumer string
	// Partition names the part of a [Partitioned] consumer's keys that the call
	// handles, such as "400-7ff"; empty for all of them. No two calls of the same
	// part run at the same time. The parts change with the number of partitions.
	Partition string
	// Attempt counts the tries of this batch from 1.
	Attempt int
	// Late reports that the consumer has passed the event's position before.
	// The event became visible only afterwards, or it was a dead letter.
	Late bool
	// Replay reports that the consumer has had the event's effects before: it has handled
	// the event, and an operator has set it back. Rebuild what Handle keeps, and send no
	// mail again. Events of one call have the same.
	Replay bool
}

type deliveryKey struct{}

type delivery struct {
	Delivery
	conn  func() *sql.Conn
	calls *calls
}

// WithDelivery returns a context from which Info and Conn answer. Each call of
// Conn calls conn, which is nil where there is no connection. Workers and test
// harnesses call WithDelivery; consumers have no need to.
func WithDelivery(ctx context.Context, d Delivery, conn func() *sql.Conn) context.Context {
	return context.WithValue(ctx, deliveryKey{}, delivery{d, conn, new(calls)})
}

// Info returns the running call of Handle; ok is false outside of one.
func Info(ctx context.Context) (d Delivery, ok bool) {
	v, ok := ctx.Value(deliveryKey{}).(delivery)
	return v.Delivery, ok
}

// Conn returns the connection of the transaction that Handle was given. The
// driver's own features, such as COPY, work there in the same transaction. It
// is valid until Handle returns; ok is false outside of Handle.
//
// Do not close it. Close waits for the end of the transaction, and Handle for
// Close, until BatchTimeout ends both. Do not use the transaction inside of conn.Raw
// either: Raw holds the connection, and each statement of the transaction waits for it.
func Conn(ctx context.Context) (conn *sql.Conn, ok bool) {
	v, _ := ctx.Value(deliveryKey{}).(delivery)
	if v.conn == nil {
		return nil, false
	}
	return v.conn(), true
}

// NextCall numbers what a handler does for the event at a position, from 0: the
// same call gets the same number when the event is handled again. Package jobs
// uses it. ok is false outside of Handle.
func NextCall(ctx context.Context, position int64) (n int, ok bool) {
	v, ok := ctx.Value(deliveryKey{}).(delivery)
	if !ok {
		return 0, false
	}
	return v.calls.next(position), true
}

// calls counts the calls for each event of a delivery.
type calls struct {
	mu sync.Mutex
	of map[int64]int
}

func (c *calls) next(position int64) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[int64]int{}
	}
	n = c.of[position]
	c.of[position]++
	return n
}
