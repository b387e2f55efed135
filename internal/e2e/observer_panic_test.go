package e2e

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// linesOf are the lines of a log.
func linesOf(log *pgtest.Lines) []string {
	return strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
}

// Workers whose observer panics at every call do their work and stop without an error.
func TestObserverThatPanics(t *testing.T) {
	t.Parallel()
	var s sightings
	var log pgtest.Lines
	causeEveryEvent(t, &s, worker.WithLogger(store.NewSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))),
		worker.WithObserver(func(e observe.Event) {
			s.saw(e)
			panic(errors.New("no such metric:\n" + typeOf(e)))
		}))
	told := map[string]int{}
	for _, line := range linesOf(&log) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of the log is broken: %s", line)
		}
		if !strings.Contains(line, "panicked") {
			continue
		}
		for _, hook := range eventTypes(t) {
			if strings.Contains(line, "hook="+hook+" ") {
				told[hook]++
			}
		}
		if !strings.Contains(line, "no such metric") || !strings.Contains(line, "observer_panic_test.go") {
			t.Errorf("it does not say what and where: %s", line)
		}
	}
	for _, hook := range eventTypes(t) {
		const workers = 4
		if elsewhere[hook] == "" && told[hook] < 1 || told[hook] > workers {
			t.Errorf("the log says %d times that %s panicked, want once for each of %d workers at most", told[hook], hook, workers)
		}
	}
}

// panickyLogger panics as its fields say, and keeps what it is told otherwise.
type panickyLogger struct {
	lines
	alsoErrors bool
}

func (*panickyLogger) Info(context.Context, string, ...any) { panic("no space left") }

func (l *panickyLogger) Error(ctx context.Context, msg string, kv ...any) {
	if l.alsoErrors {
		panic("no space left")
	}
	l.lines.Error(ctx, msg, kv...)
}

func TestLoggerThatPanics(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]*panickyLogger{"sometimes": {}, "always": {alsoErrors: true}} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 3)
			c := newRefusing("c", 2)
			w := start(t, d.DB, []consumer.Consumer{c}, worker.WithLogger(log))
			await(t, "a second try", func() bool { return c.tried(2) > 1 })
			c.refuses.Store(false)
			awaitHandled(t, d.DB, "c", upTo(3)...)
			w.Stop()
			if err := w.result(t); err != nil {
				t.Fatal(err)
			}
			panics := log.with("hook panicked")
			if log.alsoErrors {
				return
			}
			if len(panics) == 0 || !strings.Contains(panics[0], "no space left") || !strings.Contains(panics[0], "observer_panic_test.go") {
				t.Errorf("the log says %q, want the panic of Info", panics)
			}
		})
	}
}
