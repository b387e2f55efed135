package table_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

var errRefused = errors.New("refused")

// permanent is an error with a method NonRetryable.
type permanent struct{}

func (permanent) Error() string      { return "gone for good" }
func (permanent) NonRetryable() bool { return true }

// The behaviour of a handler decides the outcome of its job.
func TestStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func(ctx context.Context, j *table.Job[example]) error
		want   string // state, failures, message
	}{
		"nil": {func(context.Context, *table.Job[example]) error { return nil }, "completed 0 -"},
		"an error once": {func(_ context.Context, j *table.Job[example]) error {
			if j.NumFailures == 0 {
				return errRefused
			}
			return nil
		}, "completed 1 -"},
		"an error each time":   {func(context.Context, *table.Job[example]) error { return errRefused }, "failed 3 refused"},
		"an error for good":    {func(context.Context, *table.Job[example]) error { return table.NonRetryable(errRefused) }, "failed 1 refused"},
		"one that says so":     {func(context.Context, *table.Job[example]) error { return fmt.Errorf("oh: %w", permanent{}) }, "failed 1 oh: gone for good"},
		"a panic":              {func(context.Context, *table.Job[example]) error { panic("boom") }, "failed 3 boom"},
		"an exit":              {func(context.Context, *table.Job[example]) error { runtime.Goexit(); return nil }, "failed 3 runtime.Goexit"},
		"text that is no text": {func(context.Context, *table.Job[example]) error { return table.NonRetryable(errors.New("a\x00b\xff")) }, `failed 1 a\0b`},
		"requeued once": {func() func(context.Context, *table.Job[example]) error {
			var before atomic.Bool
			return func(context.Context, *table.Job[example]) error {
				if before.Swap(true) {
					return nil
				}
				return fmt.Errorf("not yet: %w", table.RequeueAfter(time.Millisecond))
			}
		}(), "completed 0 -"},
		"too slow": {func(ctx context.Context, _ *table.Job[example]) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), table.ErrTimeout) {
				return table.NonRetryable(context.Cause(ctx))
			}
			return ctx.Err()
		}, "failed 3 longer than 100ms (MaximumRuntimePerJob)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			done := make(chan observe.JobDone, 10)
			s.h.Handle = c.handle
			s.run(func(o *table.WorkerOptions) {
				o.MaximumRuntimePerJob = 100 * time.Millisecond
				o.Observers = []observe.Observer{observe.On(func(d observe.JobDone) { done <- d })}
			})
			id := s.add("")
			first, _, _ := strings.Cut(c.want, " ")
			state := table.State(first)
			s.becomes(id, state)
			got := s.text(`SELECT state || ' ' || num_failures || ' ' || coalesce(failure_message, '-') FROM example_jobs WHERE id = $1`, id)
			if !contains(got, c.want) {
				t.Errorf("it is %q, want %q", got, c.want)
			}
			s.want("what is left", "true true true", `SELECT (started_at IS NOT NULL) || ' ' || (finished_at >= started_at) || ' ' || (worker_hostname LIKE 'here/%') FROM example_jobs WHERE id = $1`, id)
			last := observe.JobDone{}
			s.until("the last run to be reported", func() bool {
				select {
				case last = <-done:
				default:
				}
				return last.State == string(state)
			})
			if last.ID != id || (last.Err == nil) != (state == table.StateCompleted) {
				t.Errorf("reported: %+v", last)
			}
		})
	}
}

// contains reports whether got has the wanted state and count, and contains the wanted message.
func contains(got, want string) bool {
	a, b := strings.SplitN(got, " ", 3), strings.SplitN(want, " ", 3)
	return a[0] == b[0] && a[1] == b[1] && strings.Contains(a[2], b[2])
}
