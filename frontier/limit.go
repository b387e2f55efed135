package frontier

import (
	"context"
	"time"
)

// Every statement has a time limit, since a connection whose peer vanished may never return an
// answer. The first limit is short, because all consumers wait for the statement.
const (
	firstLimit = 5 * time.Second
	lastLimit  = 30 * time.Second
	// limitKept is how long a doubled limit applies after the latest timeout.
	limitKept = 10 * time.Minute
)

// limit is the time limit of a statement. It doubles with each timeout, since a slow server is
// not a dead server.
type limit struct {
	current time.Duration // 0: firstLimit
	passed  time.Time     // the latest timeout
}

func (l *limit) get() time.Duration { return max(l.current, firstLimit) }

// pass records a timeout.
func (l *limit) pass(now time.Time) {
	if now.Sub(l.passed) > limitKept {
		l.current = firstLimit
	}
	l.current, l.passed = min(2*l.get(), lastLimit), now
}

// bounded limits a statement until the caller calls the returned function.
func (f *Frontier) bounded(ctx context.Context) (context.Context, func()) {
	bound, cancel := context.WithTimeout(ctx, f.limit.get())
	return bound, func() {
		if bound.Err() != nil && ctx.Err() == nil {
			f.limit.pass(time.Now())
		}
		cancel()
	}
}
