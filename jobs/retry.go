package jobs

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// RetryPolicy returns the delay after a failure. failures counts the failures of the job, including
// this one. err is what the handler has returned. A negative delay counts as 0.
type RetryPolicy func(failures int, err error) time.Duration

// defaultRetry allows fifteen attempts in about three days.
var defaultRetry = Exponential(15*time.Second, 24*time.Hour)

// Exponential doubles the delay from first up to limit. A delay is shortened by a random part of up
// to a half. So jobs that failed together do not retry together. The method is "equal jitter" of
// Brooker, Exponential Backoff And Jitter, 2015.
func Exponential(first, limit time.Duration) RetryPolicy {
	return func(failures int, _ error) time.Duration {
		return backoff.Delay(failures, first, limit, rand.Float64())
	}
}

// Steps uses the delays in order, and repeats the last delay. Up to a quarter of the delay is added
// at random.
func Steps(delays ...time.Duration) RetryPolicy {
	return func(failures int, _ error) time.Duration {
		if len(delays) == 0 {
			return 0
		}
		return spread(delays[min(max(failures, 1), len(delays))-1])
	}
}

// Fixed uses one delay for all failures. Up to a quarter of the delay is added at random.
func Fixed(delay time.Duration) RetryPolicy { return Steps(delay) }

func spread(d time.Duration) time.Duration {
	return d + min(time.Duration(rand.Float64()*float64(d)/4), math.MaxInt64-max(d, 0))
}
