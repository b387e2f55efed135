package jobs

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// RetryPolicy says how long to wait after a failure: the failures of the job so
// far, this one included, and what the handler has returned. Below 0 counts as 0.
type RetryPolicy func(failures int, err error) time.Duration

// defaultRetry gives a job fifteen attempts in about three days.
var defaultRetry = Exponential(15*time.Second, 24*time.Hour)

// Exponential doubles the delay from first up to limit. A random half of each is
// left out, so that many who failed together do not come back together ("equal
// jitter", Brooker, Exponential Backoff And Jitter, 2015).
func Exponential(first, limit time.Duration) RetryPolicy {
	return func(failures int, _ error) time.Duration {
		return backoff.Delay(failures, first, limit, rand.Float64())
	}
}

// Steps takes the delays in turn, and the last again and again. Up to a quarter is
// added at random.
func Steps(delays ...time.Duration) RetryPolicy {
	return func(failures int, _ error) time.Duration {
		if len(delays) == 0 {
			return 0
		}
		return spread(delays[min(max(failures, 1), len(delays))-1])
	}
}

// Fixed is the same delay each time. Up to a quarter is added at random.
func Fixed(delay time.Duration) RetryPolicy { return Steps(delay) }

func spread(d time.Duration) time.Duration {
	return d + min(time.Duration(rand.Float64()*float64(d)/4), math.MaxInt64-max(d, 0))
}
