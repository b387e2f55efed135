package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/observe"
)

// An observer that panics or ends its goroutine does not keep events from other observers.
// It is reported once for each type of event.
func TestObserversSurvive(t *testing.T) {
	var seen, reported []string
	o := NewObservers(observe.Worker{Kind: observe.KindJobs}, []observe.Observer{func(observe.Event) {}}, []observe.Observer{
		observe.On(func(observe.ConsumerStarted) { panic("boom") }),
		observe.On(func(observe.ConsumerStopped) { goruntime.Goexit() }),
		func(e observe.Event) { seen = append(seen, fmt.Sprintf("%T", e)) },
		observe.On(func(p observe.HookPanicked) {
			reported = append(reported, fmt.Sprint(p.Kind, " ", p.Hook, ": ", p.Panic, ", ", len(p.Stack) > 0))
		}),
	})
	for range 2 {
		o.Notify(observe.ConsumerStarted{})
		o.Notify(observe.ConsumerStopped{})
	}
	want := []string{"observe.HookPanicked", "observe.ConsumerStarted", "observe.HookPanicked", "observe.ConsumerStopped", "observe.ConsumerStarted", "observe.ConsumerStopped"}
	if !slices.Equal(seen, want) {
		t.Errorf("the next observer has seen %v", seen)
	}
	if want := []string{"jobs ConsumerStarted: boom, true", "jobs ConsumerStopped: it called runtime.Goexit, false"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if !o.Call("fine", func() {}) || o.Call("exits", goruntime.Goexit) || o.Call("panics", func() { panic(7) }) {
		t.Error("Call does not report which function has returned")
	}
}

func TestNilObserverIsLeftOut(t *testing.T) {
	seen := 0
	o := NewObservers(observe.Worker{}, []observe.Observer{nil}, []observe.Observer{nil, func(observe.Event) { seen++ }})
	o.Notify(observe.ConsumerStarted{})
	if seen != 1 {
		t.Errorf("%d events, want 1 and no panic of the nil observers", seen)
	}
}

func TestObserverOfPanicsThatPanics(t *testing.T) {
	calls := 0
	o := NewObservers(observe.Worker{}, []observe.Observer{func(observe.Event) { calls++; panic("always") }}, nil)
	o.Notify(observe.ConsumerStarted{})
	if calls != 3 { // the event, its panic, and the panic during that report
		t.Errorf("%d calls", calls)
	}
}

// Without a logger, warnings and errors go to the slog.Default of the moment.
func TestUnloggedWarningsGoToSlogDefault(t *testing.T) {
	usual := slog.Default()
	defer slog.SetDefault(usual)
	o := NewObservers(observe.Worker{}, nil, nil)
	var log strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	o.Notify(observe.ConsumerStarted{})
	o.Notify(observe.FrontierFailed{Err: errors.New("gone")})
	o.Notify(observe.UnknownKinds{Queue: "q", Kinds: []string{"odd"}})
	if strings.Count(log.String(), "\n") != 2 || !strings.Contains(log.String(), "gone") || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("slog.Default has %q", log.String())
	}
}

func TestEndReportsOnce(t *testing.T) {
	var ends []observe.Recovered
	o := NewObservers(observe.Worker{Kind: observe.KindTable}, nil, []observe.Observer{observe.On(func(r observe.Recovered) { ends = append(ends, r) })})
	s := Subject{Condition: observe.ConditionQueue, Queue: "q"}
	o.End(s)
	o.Begin(s, errors.New("first"))
	o.Begin(s, errors.New("last"))
	o.End(s)
	o.End(s)
	if len(ends) != 1 || ends[0].Kind != observe.KindTable || ends[0].Queue != "q" || ends[0].Err.Error() != "last" || ends[0].Lasted < 0 {
		t.Errorf("reported %+v", ends)
	}
}

// Longest names the hook that has been running for the longest time.
func TestLongest(t *testing.T) {
	var c calls
	if hook, lasts := c.Longest(); hook != "" || lasts != 0 {
		t.Errorf("%q for %v", hook, lasts)
	}
	endFirst, endSecond := c.begin("first"), c.begin("second")
	if hook, _ := c.Longest(); hook != "first" {
		t.Errorf("%q, want first", hook)
	}
	endFirst()
	if hook, _ := c.Longest(); hook != "second" {
		t.Errorf("%q, want second", hook)
	}
	endSecond()
}
