package jobrun_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
)

var errBoom, errEnded, errGoexit = errors.New("boom"), errors.New("ended"), errors.New("goexit")

// A function that returns, panics its goroutine away or ignores its context has one outcome.
func TestCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    func(ctx context.Context, release <-chan struct{}) error
		want []string
	}{
		"in time": {func(context.Context, <-chan struct{}) error { return errBoom }, []string{"finish boom"}},
		"goexit":  {func(context.Context, <-chan struct{}) error { runtime.Goexit(); return nil }, []string{"finish goexit"}},
		"after the end": {func(ctx context.Context, _ <-chan struct{}) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, []string{"finish ended"}},
		"given up": {func(_ context.Context, release <-chan struct{}) error { <-release; return errBoom }, []string{"give up ended", "late boom"}},
		"given up, goexit": {func(_ context.Context, release <-chan struct{}) error {
			<-release
			runtime.Goexit()
			return nil
		}, []string{"give up ended", "late goexit"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := jobrun.Bounded(t.Context(), 0, nil)
			defer cancel(nil)
			told, release := make(chan string, 9), make(chan struct{})
			call := &jobrun.Call{Grace: time.Millisecond, Goexit: errGoexit}
			call.Finish = func(err error) { told <- fmt.Sprint("finish ", err) }
			call.GiveUp = func(cause error) { told <- fmt.Sprint("give up ", cause); close(release) }
			call.Late = func(err error) { told <- fmt.Sprint("late ", err) }
			if len(c.want) == 1 {
				call.Grace = time.Hour
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				call.Do(ctx, func() error { return c.f(ctx, release) })
			}()
			cancel(errEnded)
			<-ended
			close(told)
			var got []string
			for one := range told {
				got = append(got, one)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) || !call.Over() {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// The context of a call ends with its limit, or as its cancel function says.
func TestBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := jobrun.Bounded(t.Context(), time.Nanosecond, errBoom)
	defer cancel(nil)
	<-ctx.Done()
	if err := jobrun.CauseOf(ctx); err != errBoom {
		t.Errorf("after the limit it is %v", err)
	}
	for _, limit := range []time.Duration{0, time.Hour} {
		ctx, cancel := jobrun.Bounded(t.Context(), limit, errBoom)
		before := jobrun.CauseOf(ctx)
		if cancel(errEnded); before != nil || jobrun.CauseOf(ctx) != errEnded {
			t.Errorf("limit %v: %v, and then %v", limit, before, jobrun.CauseOf(ctx))
		}
	}
}
