package runtime

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// Errors of a middleware that breaks its rules.
var (
	errNotCalled   = errors.New("the middleware did not call next, so nothing was done: it must call next once, or return an error")
	errCalledTwice = errors.New("the middleware has called next already: it must call next once")
	errCalledLate  = errors.New("the middleware has returned already, so next does nothing: call next before, and wait for it")
	errNilContext  = errors.New("the middleware called next with a nil context: pass on the one that it was given, or one made from it")
	errCutShort    = errors.New("a panic or runtime.Goexit in next has ended the call of the middleware")
)

// Recovered calls f and returns a panic of f as an error. The methods of the returned error, which
// errors.Is may call, do not panic.
func Recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Panicked(v)
		}
	}()
	return errtext.Sound(f())
}

// Panicked returns the error of a panic with the value v. Package pgxtx panics with such an error.
func Panicked(v any) *observe.PanicError {
	if p, ok := v.(*observe.PanicError); ok {
		return p
	}
	return &observe.PanicError{Value: v, Stack: debug.Stack()}
}

// Next is the next function of one call of a middleware. The middleware may use several
// goroutines. The zero value was not called.
type Next struct {
	mu                     sync.Mutex // held while the next function runs
	called, returned, over bool
}

// Call runs the next function. It returns an error if the middleware has called next before, has
// returned, or passes a nil context.
func (n *Next) Call(ctx context.Context, next func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.over:
		return errCalledLate
	case n.called:
		return errCalledTwice
	case ctx == nil:
		return errNilContext
	}
	n.called = true
	err := next()
	n.returned = true
	return err
}

// End returns an error if the middleware, which has returned, did not call next, or if next did
// not return. End waits for a running call of next, and no call can begin afterwards.
func (n *Next) End() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	switch {
	case !n.called:
		return errNotCalled
	case !n.returned:
		return errCutShort
	}
	return nil
}
