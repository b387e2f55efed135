// Package delivery carries the running call of a handler in its context.
package delivery

import (
	"context"
	"database/sql"
	"sync"
)

type (
	key     struct{}
	connKey struct{}
)

type call struct {
	delivery any // a consumer.Delivery

	mu    sync.Mutex
	calls map[int64]int // calls of Next for each event
}

// Lender lends the connection of a handler's transaction. back ends the loan.
type Lender = func() (conn *sql.Conn, back func())

// LenderOf returns a Lender that does not record loans.
func LenderOf(conn *sql.Conn) Lender {
	return func() (*sql.Conn, func()) { return conn, func() {} }
}

// With returns a context for the other functions. d is a consumer.Delivery. lend is that of
// [WithConn].
func With(ctx context.Context, d any, lend Lender) context.Context {
	return context.WithValue(WithConn(ctx, lend), key{}, &call{delivery: d})
}

// WithConn returns a context for Conn. lend is nil if there is no connection.
func WithConn(ctx context.Context, lend Lender) context.Context {
	return context.WithValue(ctx, connKey{}, lend)
}

// Of returns the consumer.Delivery of With, or nil.
func Of(ctx context.Context) any {
	if c, ok := ctx.Value(key{}).(*call); ok {
		return c.delivery
	}
	return nil
}

// Conn calls the Lender of With or WithConn. Without one, conn is nil.
func Conn(ctx context.Context) (conn *sql.Conn, back func()) {
	if lend, _ := ctx.Value(connKey{}).(Lender); lend != nil {
		return lend()
	}
	return nil, func() {}
}

// Next numbers the calls that a handler makes for the event at a position, from 0. The same call
// gets the same number when the event is handled again. ok is false outside of a call.
func Next(ctx context.Context, position int64) (n int, ok bool) {
	c, ok := ctx.Value(key{}).(*call)
	if !ok {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[int64]int{}
	}
	n = c.calls[position]
	c.calls[position]++
	return n, true
}
