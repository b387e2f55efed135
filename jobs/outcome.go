package jobs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// These are the codes that the worker itself gives to failures. The code of a handler's error comes
// from its method Code() string, if the error, or an error that it wraps, has one. Some codes are
// reserved: the codes below, and SKIPPED, FORGOTTEN, NO_LIST and TOO_FEW, which only package flow
// gives. If a handler's error has a reserved code, it is stored with APP_ in front, such as
// APP_TIMEOUT.
const (
	CodePanic      = "PANIC"       // the handler panicked, or called runtime.Goexit
	CodeTimeout    = "TIMEOUT"     // the handler ran longer than its Timeout
	CodeArgs       = "ARGS"        // the arguments do not decode; not retried
	CodeResult     = "RESULT"      // PostgreSQL refused the result or the error; not retried
	CodeTxEnded    = "TX_ENDED"    // the handler ended its transaction; not retried
	CodeConnection = "CONNECTION"  // the run was lost with its connection; counts as a reset
	CodeLost       = "WORKER_LOST" // the run was lost with its worker; counts as a reset
)

// verdict is an error by which a handler chooses the outcome of its job.
type verdict struct {
	what  disposition
	delay time.Duration
	err   error
}

type disposition int

const (
	fails disposition = iota
	retries
	snoozes
	discards
)

func (v *verdict) Error() string {
	if v.err == nil {
		return [...]string{"the job has failed", "try again", "snoozed", "discarded"}[v.what]
	}
	return errtext.Of(v.err).Error()
}

func (v *verdict) Unwrap() error { return v.err }

// Fail makes the job fail for good, whatever attempts are left.
func Fail(err error) error { return &verdict{what: fails, err: err} }

// RetryAfter is a failure after which the job is retried in delay, instead of the delay of its
// RetryPolicy. The failure counts.
func RetryAfter(delay time.Duration, err error) error {
	return &verdict{what: retries, delay: max(delay, 0), err: err}
}

// Snooze runs the job again in delay. A snooze is no failure and does not count.
func Snooze(delay time.Duration) error { return &verdict{what: snoozes, delay: delay} }

// Discard cancels the job. Use it for a job that is not needed any more.
func Discard(err error) error { return &verdict{what: discards, err: err} }

// IsFailure reports whether an error that a handler returns is a failure of its job. After a
// failure the job is retried or has failed. Nil and the errors of [Snooze] and [Discard] are no
// failures.
func IsFailure(err error) bool {
	var v *verdict
	return err != nil && (!errors.As(err, &v) || v.what == fails || v.what == retries)
}

// reserved are the codes that only the worker and flows give.
var reserved = []string{
	CodePanic, CodeTimeout, CodeArgs, CodeResult, CodeTxEnded, CodeConnection, CodeLost,
	jobflow.CodeSkipped, jobflow.CodeForgotten, jobflow.CodeNoList, jobflow.CodeTooFew,
}

// codeOf returns the code of an error and the code to store. Both are "" if the error has no code.
// A reserved code of a handler's error is stored with APP_ in front, since statements decide by
// reserved codes.
func codeOf(err error) (code, stored string) {
	var with interface{ Code() string }
	if !errors.As(err, &with) {
		return "", ""
	}
	runtime.Aside(func() { code = errtext.Unquoted(with.Code()) })
	switch with.(type) {
	case *codedError, *observe.PanicError, jobflow.Skipped:
		return code, code
	}
	if slices.Contains(reserved, code) {
		return code, "APP_" + code
	}
	return code, code
}

// decide returns how to settle a job whose handler has returned err. cause is why the context of
// the run was ended, nil if it was not.
func (h *handler) decide(row queue.Job, result []byte, err, cause error) queue.End {
	end := queue.End{Run: row.Run, Most: h.maxAttempts}
	switch {
	case err == nil:
		end.To, end.Result = queue.Completed, result
		return end
	case errors.Is(cause, errStopping), errors.Is(cause, ErrCancelled), errors.Is(cause, ErrClaimLost):
		// The run ends here. If the job was cancelled, the statement makes it cancelled.
		end.To, end.Outcome, end.Error = queue.Available, queue.Released, errtext.Storable(cause)
		return end
	}
	var code string
	end.Error = errtext.Storable(err)
	code, end.Code = codeOf(err)
	var v *verdict
	if !errors.As(err, &v) {
		v = &verdict{what: retries, delay: -1}
		if slices.Contains(h.terminal, code) || len(h.only) > 0 && !slices.Contains(h.only, code) {
			v.what = fails
		}
	}
	switch v.what {
	case fails:
		end.To, end.Counts = queue.Failed, true
	case discards:
		end.To = queue.Cancelled
	case snoozes:
		end.To, end.Outcome, end.Delay = queue.Available, queue.Snoozed, microseconds(v.delay)
	case retries:
		if v.delay < 0 {
			v.delay = h.wait(row.Failures+1, err)
		}
		end.To, end.Outcome, end.Counts, end.Delay = queue.Available, queue.Erred, true, microseconds(v.delay)
	}
	return end
}

// wait returns the delay of the retry policy.
func (h *handler) wait(failures int, err error) (delay time.Duration) {
	if !runtime.Aside(func() { delay = h.retry(failures, err) }) {
		return defaultRetry(failures, err)
	}
	return delay
}

// longestDelay bounds delays: PostgreSQL's timestamps have an upper limit.
const longestDelay = 100 * 365 * 24 * time.Hour

func microseconds(d time.Duration) *int64 {
	n := min(max(d, 0), longestDelay).Microseconds()
	return &n
}

// codedError is a failure that the worker itself has detected.
type codedError struct {
	code     string
	terminal bool
	text     string
	err      error
}

func (e *codedError) Error() string { return e.text }

func (e *codedError) Code() string { return e.code }

func (e *codedError) Unwrap() error { return e.err }

// coded returns a failure that the worker has detected, in the form of a handler's error.
func coded(code string, terminal bool, err error, format string, args ...any) error {
	e := &codedError{code, terminal, errtext.Line(fmt.Sprintf(format, args...)), err}
	if terminal {
		return Fail(e)
	}
	return e
}
