package jobs

import (
	"cmp"
	"context"

	"github.com/pgfrontier/worker/internal/runtime"
)

// wrapped calls f through the middleware. If the middleware returns nil, the error of f stands.
func (s *calls) wrapped(ctx context.Context, runs []*run, f func(context.Context) error) error {
	if len(s.middleware) == 0 {
		return f(ctx)
	}
	headers := make([]Header, len(runs))
	for i, r := range runs {
		headers[i] = r.header
	}
	var once runtime.Next
	var failed error
	next := func(ctx context.Context) error {
		return once.Call(ctx, func() error {
			failed = f(ctx)
			return failed
		})
	}
	for i := len(s.middleware) - 1; i >= 0; i-- {
		m, inner := s.middleware[i], next
		next = func(ctx context.Context) error { return m(ctx, headers, inner) }
	}
	err := next(ctx)
	missing := once.End()
	return cmp.Or(err, missing, failed)
}
