package consume

import (
	"context"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
)

// passage is the way of one call through a middleware. The middleware may be in
// several goroutines.
type passage struct {
	mu                     sync.Mutex // held while the next function runs
	called, returned, over bool
}

// through runs the next function of a middleware, unless that has called it already, has
// returned, or gives no context.
func (p *passage) through(ctx context.Context, next func() error) error {
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

// broken returns what is wrong with a middleware that has returned err without having
// let the call through; nil if it has. It waits for a call that runs, and there is none after it.
func (p *passage) broken(err error) error {
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
