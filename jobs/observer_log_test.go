package jobs

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
)

// Without a logger a worker writes only warnings and errors, to slog.Default. The test is not
// parallel, since the default logger belongs to the process.
func TestWarningsGoToTheDefaultLogger(t *testing.T) {
	usual := slog.Default()
	defer slog.SetDefault(usual)
	for name, c := range map[string]struct {
		opts []Option
		want bool
	}{
		"none":     {nil, true},
		"another":  {[]Option{WithObserver(observe.On(func(observe.JobDone) {}))}, true},
		"a logger": {[]Option{WithLogger(slog.New(slog.DiscardHandler))}, false},
	} {
		var said pgtest.Lines
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
		w := NewWorker(nil, NewHandlers(), c.opts...)
		w.observers.Notify(observe.JobDone{State: string(StateFailed), Err: errors.New("boom")})
		if got := strings.Contains(said.String(), `msg="job failed"`) && strings.Contains(said.String(), "boom"); got != c.want {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
		for _, e := range []observe.Event{
			observe.JobDone{State: string(StateCompleted)}, observe.FlowRunEnded{State: string(StateCompleted)},
			observe.FlowRunEnded{State: string(StateCancelled)}, observe.WorkerStarted{},
		} {
			w.observers.Notify(e)
		}
		if strings.Count(said.String(), "\n") > 1 {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
	}
}
