package consumer

import (
	"context"
	"database/sql"
	"sync"
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
	// the consumer back. During a replay, write the consumer's tables again, but do not repeat
	// external effects such as mail. All events of one call have the same Replay.
	Replay bool
}

type deliveryKey struct{}

type delivery struct {
	Delivery
	conn  func() *sql.Conn
	calls *calls
}

// WithDelivery returns a context for Info and Conn. Each call of Conn calls conn, which is nil if
// there is no connection. Workers and test harnesses call WithDelivery; consumers do not need it.
func WithDelivery(ctx context.Context, d Delivery, conn func() *sql.Conn) context.Context {
	return context.WithValue(ctx, deliveryKey{}, delivery{d, conn, new(calls)})
}

// Info returns the running call of Handle. ok is false outside of Handle.
func Info(ctx context.Context) (d Delivery, ok bool) {
	v, ok := ctx.Value(deliveryKey{}).(delivery)
	return v.Delivery, ok
}

// Conn returns the connection of the transaction that was passed to Handle. The driver's own
// features, such as COPY, run there in the same transaction. The connection is valid until
// Handle returns. ok is false outside of Handle.
//
// Do not close the connection. Close waits for the end of the transaction, and Handle waits for
// Close, until BatchTimeout ends both. Do not use the transaction inside of conn.Raw either.
// Raw holds the connection, and each statement of the transaction waits for the connection.
func Conn(ctx context.Context) (conn *sql.Conn, ok bool) {
	v, _ := ctx.Value(deliveryKey{}).(delivery)
	if v.conn == nil {
		return nil, false
	}
	return v.conn(), true
}

// NextCall numbers the calls that a handler makes for the event at a position, from 0. The same
// call gets the same number when the event is handled again. Package jobs uses NextCall. ok is
// false outside of Handle.
func NextCall(ctx context.Context, position int64) (n int, ok bool) {
	v, ok := ctx.Value(deliveryKey{}).(delivery)
	if !ok {
		return 0, false
	}
	return v.calls.next(position), true
}

// calls counts the calls of NextCall for each event of a delivery.
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
