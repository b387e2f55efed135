package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
)

// The codes that the worker itself gives to failures. Those of handlers come from
// their errors: an error with a method Code() string has one. If an error of a handler has
// a code of this list, or one that only package flow gives (SKIPPED, FORGOTTEN, NO_LIST,
// TOO_FEW), its code is stored with APP_ in front, such as APP_TIMEOUT.
const (
	CodePanic      = "PANIC"       // the handler panicked, or called runtime.Goexit
	CodeTimeout    = "TIMEOUT"     // it ran longer than its Timeout
	CodeArgs       = "ARGS"        // the arguments do not decode; not tried again
	CodeResult     = "RESULT"      // PostgreSQL refused the result or the error; not tried again
	CodeTxEnded    = "TX_ENDED"    // the handler ended its transaction; not tried again
	CodeConnection = "CONNECTION"  // the run was lost with its connection; counts as a reset
	CodeLost       = "WORKER_LOST" // the run was lost with its worker; counts as a reset
)

// verdict is an error by which a handler says what becomes of its job.
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

// Fail makes the job fail for good, whatever attempts it has left.
func Fail(err error) error { return &verdict{what: fails, err: err} }

// RetryAfter is a failure after which the job is tried again in this time, instead
// of what its RetryPolicy says. It counts.
func RetryAfter(delay time.Duration, err error) error {
	return &verdict{what: retries, delay: max(delay, 0), err: err}
}

// Snooze runs the job again in this time. It is no failure and does not count.
func Snooze(delay time.Duration) error { return &verdict{what: snoozes, delay: delay} }

// Discard cancels the job: it is not needed any more, and nobody has to look at it.
func Discard(err error) error { return &verdict{what: discards, err: err} }

// IsFailure reports whether an error that a handler returns is a failure of its job,
// which is tried again or has failed. Nil is none, nor is [Snooze] or [Discard].
func IsFailure(err error) bool {
	var v *verdict
	return err != nil && (!errors.As(err, &v) || v.what == fails || v.what == retries)
}

// reserved are the codes that only the worker and flows give.
var reserved = []string{
	CodePanic, CodeTimeout, CodeArgs, CodeResult, CodeTxEnded, CodeConnection, CodeLost,
	jobflow.CodeSkipped, jobflow.CodeForgotten, jobflow.CodeNoList, jobflow.CodeTooFew,
}

// codeOf is the code of an error, "" if it has none, and how it is stored: a handler's error
// has none of the reserved codes, since statements decide by them.
func codeOf(err error) (code, stored string) {
	var with interface{ Code() string }
	if !errors.As(err, &with) {
		return "", ""
	}
	runtime.Aside(func() { code = errtext.Unquoted(with.Code()) })
	switch with.(type) {
	case *codedError, *PanicError, jobflow.Skipped:
		return code, code
	}
	if slices.Contains(reserved, code) {
		return code, "APP_" + code
	}
	return code, code
}

// decide says what becomes of a job whose handler has returned err. cause is why
// its context was ended, nil if it was not.
func (h *handler) decide(row queue.Job, result []byte, err, cause error) queue.End {
	end := queue.End{Run: row.Run, Most: h.maxAttempts}
	switch {
	case err == nil:
		end.To, end.Result = queue.Completed, result
		return end
	case errors.Is(cause, errStopping), errors.Is(cause, ErrCancelled), errors.Is(cause, ErrClaimLost):
		// It ends here, and is cancelled if somebody has asked for that.
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

// wait asks the policy for a delay.
func (h *handler) wait(failures int, err error) (delay time.Duration) {
	if !runtime.Aside(func() { delay = h.retry(failures, err) }) {
		return defaultRetry(failures, err)
	}
	return delay
}

// longestDelay bounds delays: PostgreSQL's timestamps end.
const longestDelay = 100 * 365 * 24 * time.Hour

func microseconds(d time.Duration) *int64 {
	n := min(max(d, 0), longestDelay).Microseconds()
	return &n
}

// codedError is a failure that the worker itself has found.
type codedError struct {
	code     string
	terminal bool
	text     string
	err      error
}

func (e *codedError) Error() string { return e.text }

func (e *codedError) Code() string { return e.code }

func (e *codedError) Unwrap() error { return e.err }

// coded returns an error of the worker's own, as a handler could have returned it.
func coded(code string, terminal bool, err error, format string, args ...any) error {
	e := &codedError{code, terminal, errtext.Line(fmt.Sprintf(format, args...)), err}
	if terminal {
		return Fail(e)
	}
	return e
}

// causeOf is why a run's context has ended, nil if it has not.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
