package frontier

import (
	"context"
	"time"
)

// A statement has a bound: no answer may ever come to a connection that has died
// in silence. The bound is short at first, as every consumer waits meanwhile.
const (
	firstLimit = 5 * time.Second
	lastLimit  = 30 * time.Second
	// limitKept is how long a bound that has passed counts.
	limitKept = 10 * time.Minute
)

// limit is the bound of a statement. It doubles each time that it passes: slow
// is not dead.
type limit struct {
	current time.Duration // 0: firstLimit
	passed  time.Time     // latest
}

func (l *limit) get() time.Duration { return max(l.current, firstLimit) }

// pass takes note that the bound has passed.
func (l *limit) pass(now time.Time) {
	if now.Sub(l.passed) > limitKept {
		l.current = firstLimit
	}
	l.current, l.passed = min(2*l.get(), lastLimit), now
}

// bounded bounds a statement until the returned function is called.
func (f *Frontier) bounded(ctx context.Context) (context.Context, func()) {
	bound, cancel := context.WithTimeout(ctx, f.limit.get())
	return bound, func() {
		if bound.Err() != nil && ctx.Err() == nil {
			f.limit.pass(time.Now())
		}
		cancel()
	}
}
