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

// With returns a context for the other functions. d is a consumer.Delivery. conn is that of
// [WithConn].
func With(ctx context.Context, d any, conn func() *sql.Conn) context.Context {
	return context.WithValue(WithConn(ctx, conn), key{}, &call{delivery: d})
}

// WithConn returns a context for Conn. Each call of Conn calls conn, which is nil if there is no
// connection.
func WithConn(ctx context.Context, conn func() *sql.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// Of returns the consumer.Delivery of With, or nil.
func Of(ctx context.Context) any {
	if c, ok := ctx.Value(key{}).(*call); ok {
		return c.delivery
	}
	return nil
}

// Conn returns the connection of With or WithConn, or nil.
func Conn(ctx context.Context) *sql.Conn {
	if conn, _ := ctx.Value(connKey{}).(func() *sql.Conn); conn != nil {
		return conn()
	}
	return nil
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
