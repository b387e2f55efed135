package table

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/hooks"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A worker that was given no logger writes warnings and errors to slog.Default, and nothing
// else. Not parallel: the logger is the process's.
func TestWarningsGoToTheDefaultLogger(t *testing.T) {
	usual := slog.Default()
	defer slog.SetDefault(usual)
	for name, c := range map[string]struct {
		observers []Observer
		want      bool
	}{
		"none":          {nil, true},
		"another":       {[]Observer{{JobDone: func(Done) {}}}, true},
		"one that logs": {[]Observer{{}, NewSlogObserver(slog.New(slog.DiscardHandler))}, false},
	} {
		var said pgtest.Lines
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
		v := newVoice(c.observers)
		done := func(state State, err error) {
			hooks.Tell(v, "JobDone", func(o *Observer) func(Done) { return o.done(state) }, Done{State: state, Err: err})
		}
		done(StateFailed, errors.New("boom"))
		if got := strings.Contains(said.String(), `msg="job failed"`) && strings.Contains(said.String(), "boom"); got != c.want {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
		done(StateCompleted, nil)
		hooks.Tell(v, "WorkerStarted", func(o *Observer) func(WorkerInfo) { return o.WorkerStarted }, WorkerInfo{})
		if strings.Count(said.String(), "\n") > 1 {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
	}
}
