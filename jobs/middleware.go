package jobs

import (
	"context"
	"errors"
	"sync"
)

var (
	errNotCalled   = errors.New("the middleware returned nil and did not call next: it must call it once, or return an error such as Snooze")
	errCalledTwice = errors.New("the middleware called next twice: it must call it once")
	errNilContext  = errors.New("the middleware gave next a nil context: it must give its own, or one made of it")
	errCutShort    = errors.New("the middleware returned nil before next had returned")
)

// wrapped calls f through the middleware.
func (w *Worker) wrapped(ctx context.Context, runs []*run, f func(context.Context) error) error {
	if len(w.cfg.middleware) == 0 {
		return f(ctx)
	}
	headers := make([]Header, len(runs))
	for i, r := range runs {
		headers[i] = r.header
	}
	in := &innermost{f: f}
	next := in.call
	for i := len(w.cfg.middleware) - 1; i >= 0; i-- {
		m, inner := w.cfg.middleware[i], next
		next = func(ctx context.Context) error { return m(ctx, headers, inner) }
	}
	return in.outcome(next(ctx))
}

// innermost is the innermost next function of the middleware: it calls the handler.
type innermost struct {
	f func(context.Context) error

	mu       sync.Mutex
	called   bool
	returned bool
	err      error
}

func (n *innermost) call(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	n.mu.Lock()
	twice := n.called
	n.called = true
	n.mu.Unlock()
	if twice {
		return errCalledTwice
	}
	err := n.f(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.returned, n.err = true, err
	return err
}

// outcome returns the outcome of the call. err is what the middleware has returned. If err is nil,
// the error of the handler stands.
func (n *innermost) outcome(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err != nil:
		return err
	case !n.called:
		return errNotCalled
	case !n.returned:
		return errCutShort
	}
	return n.err
}
