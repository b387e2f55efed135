package batch

import (
	"context"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
)

// middlewareCall is one call of a middleware. The middleware may use several goroutines.
type middlewareCall struct {
	mu                     sync.Mutex // held while the next function runs
	called, returned, over bool
}

// run runs the wrapped function. It returns an error if the middleware has called next
// before, has returned, or passes a nil context.
func (p *middlewareCall) run(ctx context.Context, next func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
		return errCalledLate
	case p.called:
		return errCalledTwice
	case ctx == nil:
		return errNilContext
	}
	p.called = true
	err := next()
	p.returned = true
	return err
}

// end returns an error if the middleware, which returned err, did not call next, or if next
// did not return. It waits for a running call of next, and no call can begin afterwards.
func (p *middlewareCall) end(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	switch {
	case !p.called:
		return errtext.Join(errNotCalled, err)
	case !p.returned:
		return errtext.Join(errCutShort, err)
	}
	return nil
}
