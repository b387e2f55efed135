// Package backoff computes pauses between tries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delay returns the pause after the n-th failure in a row, counted from 1. The pause doubles
// from first up to limit. A random part, at most half of the pause, is left out. So callers
// that failed together do not retry together. Source: "equal jitter", Brooker, Exponential
// Backoff And Jitter, 2015. random is in [0, 1).
func Delay(n int, first, limit time.Duration, random float64) time.Duration {
	d := Doubled(n-1, first, limit)
	return d/2 + time.Duration(random*float64(d-d/2))
}

// Doubled returns first, doubled times times, and limit at most.
func Doubled(times int, first, limit time.Duration) time.Duration {
	d := first
	for i := 0; i < times && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}

// Infrastructure returns the pause after the n-th failure in a row of the connection or the
// server. It doubles from 500 ms to 30 s.
func Infrastructure(n int) time.Duration {
	return Delay(n, 500*time.Millisecond, 30*time.Second, rand.Float64())
}

// Session returns the pause after the n-th failure in a row of a session that a worker keeps. It
// doubles from 500 ms to 5 s. It is short, so that the worker notices soon when the server is back.
func Session(n int) time.Duration {
	return Delay(n, 500*time.Millisecond, 5*time.Second, rand.Float64())
}

// SleepUntil waits for d, for the close of wake, or for the end of ctx. A nil wake does not
// end the wait.
func SleepUntil(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// Sleep waits for d. It reports whether d passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
