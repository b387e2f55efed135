package consume

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// A worker without a logger writes warnings and errors to slog.Default, and nothing else.
// Not parallel: the logger is global.
func TestWarningsGoToTheDefaultLogger(t *testing.T) {
	usual := slog.Default()
	defer slog.SetDefault(usual)
	var named strings.Builder
	for name, c := range map[string]struct {
		opts []option
		want bool
	}{
		"no option":   {nil, true},
		"an observer": {[]option{func(c *Config) { c.Observers = append(c.Observers, observe.On(func(observe.ConsumerPaused) {})) }}, true},
		"another logger": {[]option{func(c *Config) {
			c.Loggers = append(c.Loggers, observe.Log(slog.New(slog.NewTextHandler(&named, nil))))
		}}, false},
		"a nil logger": {[]option{func(c *Config) { c.Loggers = append(c.Loggers, observe.LogTo(nil)) }}, false},
	} {
		w := newWorker(nil, nil, nil, c.opts...)
		var said pgtest.Lines
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil))) // also if it is set after New
		w.observers.Notify(observe.ConsumerPaused{Consumer: "totals", Reason: "lunch"})
		w.observers.Notify(observe.FrontierFailed{Err: errors.New("gone")})
		if got := strings.Contains(said.String(), `level=ERROR msg="consumer paused"`) && strings.Contains(said.String(), "gone"); got != c.want {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
		w.observers.Notify(observe.WorkerStarted{})
		if strings.Contains(said.String(), "worker started") {
			t.Errorf("%s: slog.Default has %q", name, said.String())
		}
	}
	if strings.Count(named.String(), "consumer paused") != 1 {
		t.Errorf("the named logger has %q", named.String())
	}
}

// selective is a consumer that uses every optional interface of a scope.
type selective struct{ consumer.Consumer }

func (selective) Name() string                    { return "totals" }
func (selective) AggregateTypes() []string        { return []string{"Order", "Invoice"} }
func (selective) StartAt() consumer.Start         { return consumer.AtHead() }
func (selective) Partitions() consumer.Partitions { return consumer.Partitions{Count: 4} }

func TestConsumerStartedReportsScope(t *testing.T) {
	t.Parallel()
	u, err := unitOf(selective{})
	if err != nil {
		t.Fatal(err)
	}
	var said pgtest.Lines
	observe.Log(slog.New(slog.NewTextHandler(&said, nil)))(u.started(7))
	if want := `msg="consumer started" consumer=totals types="[Invoice Order]" start=head batch_size=7 partitions=4`; !strings.Contains(said.String(), want) {
		t.Errorf("the log has %q, want %q", said.String(), want)
	}
}
