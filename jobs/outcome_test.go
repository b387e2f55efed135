package jobs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/observe"
)

type codedTest string

func (c codedTest) Error() string { return "failed with " + string(c) }
func (c codedTest) Code() string  { return string(c) }

// The returned error and the cause of the context's end decide the outcome of a job.
func TestDecide(t *testing.T) {
	t.Parallel()
	h := &handler{maxAttempts: 3, retry: func(n int, _ error) time.Duration { return time.Duration(n) * time.Second }, terminal: []string{"FATAL"}}
	only := *h
	OnlyRetry("BUSY").applyHandler(&only)
	both := *h
	both.terminal = []string{CodeTimeout}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		h          *handler
		err, cause error
		want       string
	}{
		"nil":                      {h, nil, nil, "completed false  "},
		"nil after a cancel":       {h, nil, ErrCancelled, "completed false  "},
		"an error":                 {h, boom, nil, "available true error 3s "},
		"a code":                   {h, codedTest("X"), nil, "available true error 3s X"},
		"a terminal code":          {h, fmt.Errorf("wrapped: %w", codedTest("FATAL")), nil, "failed true  FATAL"},
		"a code to retry":          {&only, codedTest("BUSY"), nil, "available true error 3s BUSY"},
		"no code to retry":         {&only, boom, nil, "failed true  "},
		"Fail":                     {h, Fail(boom), nil, "failed true  "},
		"Fail, wrapped":            {h, fmt.Errorf("wrapped: %w", Fail(codedTest("Y"))), nil, "failed true  Y"},
		"RetryAfter":               {h, RetryAfter(time.Minute, boom), nil, "available true error 1m0s "},
		"RetryAfter in the past":   {h, RetryAfter(-time.Minute, boom), nil, "available true error 0s "},
		"Snooze":                   {h, Snooze(time.Hour), nil, "available false snoozed 1h0m0s "},
		"Discard":                  {h, Discard(boom), nil, "cancelled false  "},
		"cancelled":                {h, boom, ErrCancelled, "available false released "},
		"stopping":                 {h, boom, errStopping, "available false released "},
		"stopping, and it says so": {h, Snooze(time.Hour), errStopping, "available false released "},
		"a code of the worker's":   {h, codedTest(CodeLost), nil, "available true error 3s APP_WORKER_LOST"},
		"a code of a flow's":       {h, Discard(codedTest("SKIPPED")), nil, "cancelled false  APP_SKIPPED"},
		"a code in both lists":     {&both, codedTest(CodeTimeout), nil, "failed true  APP_TIMEOUT"},
		"skipped by a flow":        {h, Discard(jobflow.Skipped{}), nil, "cancelled false  SKIPPED"},
		"a time-out":               {h, coded(CodeTimeout, false, boom, "boom"), nil, "available true error 3s TIMEOUT"},
		"a panic":                  {h, &observe.PanicError{Value: 1}, nil, "available true error 3s PANIC"},
	} {
		e := c.h.decide(queue.Job{Failures: 2}, nil, c.err, c.cause)
		got := fmt.Sprintf("%s %v %s ", e.To, e.Counts, e.Outcome)
		if e.Delay != nil {
			got += (time.Duration(*e.Delay) * time.Microsecond).String() + " "
		}
		if got += e.Code; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if failed := e.Counts || e.To == queue.Failed; c.cause == nil && IsFailure(c.err) != failed {
			t.Errorf("%s: IsFailure is %t, and the job becomes %s", name, !failed, got)
		}
	}
}

// Each failure of a job divides the size of its next batch by four.
func TestBatchAfterFailures(t *testing.T) {
	t.Parallel()
	h := &handler{batch: 32}
	for failures, want := range []int{32, 8, 2, 1, 1} {
		if n := h.batchAfter(failures); n != want {
			t.Errorf("a job with %d failures is in a batch of %d, want %d", failures, n, want)
		}
	}
}

// A retry policy that panics, or returns an absurd delay, does not prevent the next attempt.
func TestRetryPolicyThatPanics(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 100).Draw(t, "failures")
		d := time.Duration(rapid.Int64().Draw(t, "delay"))
		for _, p := range []RetryPolicy{Exponential(time.Second, time.Hour), Steps(time.Second, time.Minute), Fixed(time.Minute), Steps(),
			func(int, error) time.Duration { return d }, func(int, error) time.Duration { panic("no") }} {
			h := &handler{maxAttempts: 1000, retry: p}
			e := h.decide(queue.Job{Failures: n - 1}, nil, errors.New("boom"), nil)
			if e.Delay == nil || *e.Delay < 0 || *e.Delay > longestDelay.Microseconds() {
				t.Fatalf("the delay after %d failures is %v", n, e.Delay)
			}
		}
		if d >= 0 && (Fixed(d)(n, nil) < d || Steps(d)(n, nil) < d) {
			t.Fatalf("fixed at %v, it is %v", d, Fixed(d)(n, nil))
		}
		if s := Steps(time.Second, time.Minute)(n, nil); n == 1 && (s < time.Second || s > 5*time.Second/4) || n > 1 && (s < time.Minute || s > 5*time.Minute/4) {
			t.Fatalf("step %d is %v", n, s)
		}
	})
}
