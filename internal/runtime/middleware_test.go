package runtime

import (
	"context"
	"errors"
	"testing"
)

// A middleware calls next once, with a context, and before it returns.
func TestNext(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	calls := 0
	call := func(n *Next, ctx context.Context) error {
		return n.Call(ctx, func() error { calls++; return refused })
	}
	want := func(what string, got, want error, n int) {
		t.Helper()
		if got != want || calls != n {
			t.Errorf("%s: the error is %v after %d calls, want %v after %d", what, got, calls, want, n)
		}
	}
	var n Next
	want("no context", call(&n, nil), errNilContext, 0) //nolint:staticcheck // that is the test
	want("the first call", call(&n, t.Context()), refused, 1)
	want("another call", call(&n, t.Context()), errCalledTwice, 1)
	want("the end", n.End(), nil, 1)
	want("after the end", call(&n, t.Context()), errCalledLate, 1)

	var none Next
	want("no call", none.End(), errNotCalled, 1)
	want("a late call", call(&none, t.Context()), errCalledLate, 1)

	var cut Next
	func() {
		defer func() { _ = recover() }()
		_ = cut.Call(t.Context(), func() error { panic("boom") })
	}()
	want("a panic", cut.End(), errCutShort, 1)
}

// End waits for next if the middleware has not waited.
func TestNextIsWaitedFor(t *testing.T) {
	t.Parallel()
	var n Next
	runs, ends := make(chan struct{}), make(chan struct{})
	returned := false
	go func() {
		_ = n.Call(t.Context(), func() error {
			close(runs)
			<-ends
			returned = true
			return nil
		})
	}()
	<-runs
	go close(ends)
	if err := n.End(); err != nil || !returned {
		t.Errorf("the end: %v, next has returned: %t", err, returned)
	}
}
