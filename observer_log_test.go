package worker

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/pgtest"
)

// Without a word about logs, what is wrong goes to slog.Default, and nothing else does. Not
// parallel: the logger is the process's.
func TestWarningsGoToTheDefaultLogger(t *testing.T) {
	usual := slog.Default()
	defer slog.SetDefault(usual)
	var named strings.Builder
	for name, c := range map[string]struct {
		opts []Option
		want bool
	}{
		"no option":          {nil, true},
		"an observer":        {[]Option{WithObserver(Observer{ConsumerPaused: func(ConsumerInfo) {}})}, true},
		"another logger":     {[]Option{WithSlog(slog.New(slog.NewTextHandler(&named, nil)))}, false},
		"an observer of one": {[]Option{WithObserver(Tee(Observer{}, NewSlogObserver(slog.New(slog.DiscardHandler))))}, false},
		"logs to nobody":     {[]Option{WithLogger(nil)}, false},
	} {
		var said pgtest.Lines
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
		w := New(nil, nil, nil, c.opts...)
		tell(w.observer.ConsumerPaused, ConsumerInfo{Consumer: "totals", Reason: "lunch"})
		tell(w.observer.FrontierFailed, errors.New("gone"))
		if got := strings.Contains(said.String(), `msg="consumer paused"`) && strings.Contains(said.String(), "gone"); got != c.want {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
		tell(w.observer.WorkerStarted, WorkerInfo{})
		if strings.Contains(said.String(), "worker started") {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
		if w := New(nil, nil, nil, c.opts...); name == "no option" && (w.observer.BatchDone != nil || w.observer.BatchStarted != nil) {
			t.Error("batches are told to a log that does not want them")
		}
	}
	if strings.Count(named.String(), "consumer paused") != 1 {
		t.Errorf("the named logger has %q", named.String())
	}
}
