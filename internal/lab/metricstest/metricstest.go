// Package metricstest runs real workers on a real server and sees each metric move, whatever
// brings it out: package metrics itself, or one of the modules on it.
package metricstest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
)

// Adapter brings out the metrics of a worker.
type Adapter interface {
	Options() []worker.Option
	JobsOptions() []jobs.Option
	Observer() observe.Observer
	TableObserver(name string) observe.Observer
	Watch(w *worker.Worker)
	WatchJobs(w *jobs.Worker, o *ops.Jobs)
	WatchTable(name string, w *table.Worker)
}

// Values are what an adapter brings out, by [Key]. Of a histogram it is how many values
// were recorded.
type Values map[string]float64

// Subject is an adapter, and what reads its values.
type Subject struct {
	Adapter
	Read func(t testing.TB) Values
}

// Key names a series, such as "pgfrontier.consumer.events{consumer=a,late=true}". Attributes
// that are empty are left out.
func Key(m *metrics.Metric, attribute func(name string) string) string {
	var all []string
	for _, name := range m.Attributes {
		if v := attribute(name); v != "" {
			all = append(all, name+"="+v)
		}
	}
	return m.Name + "{" + strings.Join(all, ",") + "}"
}

// KeyOf is Key with the values in the order of the metric's attributes.
func KeyOf(m *metrics.Metric, values []string) string {
	return Key(m, func(name string) string { return values[slices.Index(m.Attributes, name)] })
}

// probe waits for values, and notes which metrics it has seen.
type probe struct {
	t testing.TB
	Subject
	seen map[string]bool
}

func (p *probe) read() Values {
	all := p.Read(p.t)
	for key := range all {
		name, _, _ := strings.Cut(key, "{")
		p.seen[name] = true
	}
	return all
}

// patience bounds every wait.
const patience = 2 * time.Minute

// await waits until each series is as wanted: "3", "> 0", "none". Series are without the
// common prefix.
func (p *probe) await(what string, want map[string]string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		all, wrong := p.read(), ""
		for key, w := range want {
			value, is := all["pgfrontier."+key]
			if !fits(value, is, w) {
				wrong += fmt.Sprintf("\n%s is %v (%v), want %s", key, value, is, w)
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: waited in vain:%s\nof\n%s", what, wrong, all)
		}
	}
}

func fits(value float64, is bool, want string) bool {
	var limit float64
	switch {
	case want == "none":
		return !is
	case !is:
		return false
	case strings.HasPrefix(want, "> "):
		_, err := fmt.Sscan(want[2:], &limit)
		return err == nil && value > limit
	}
	_, err := fmt.Sscan(want, &limit)
	return err == nil && value == limit
}

// String lists the series, one a line.
func (v Values) String() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(v)) {
		fmt.Fprintf(&b, "%s %v\n", key, v[key])
	}
	return b.String()
}

// all demands that each metric of a list was seen, and no others.
func (p *probe) all(is func(m *metrics.Metric) bool) {
	p.t.Helper()
	for _, m := range metrics.All() {
		if is(m) && !p.seen[m.Name] {
			p.t.Errorf("no worker exposes %s", m.Name)
		}
		delete(p.seen, m.Name)
	}
	if len(p.seen) > 0 {
		p.t.Errorf("unknown metrics: %v", slices.Sorted(maps.Keys(p.seen)))
	}
}

func ofJobs(m *metrics.Metric) bool { return strings.HasPrefix(m.Name, "pgfrontier.jobs.") }

// run runs something until the test ends, or end is called.
func run(t testing.TB, start func(ctx context.Context) error, stop func()) (end func()) {
	done := make(chan error, 1)
	go func() { done <- start(context.Background()) }()
	ended := false
	end = func() {
		t.Helper()
		if ended {
			return
		}
		ended = true
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the worker ended with: %v", err)
			}
		case <-time.After(patience):
			t.Errorf("waited in vain for the worker to stop")
		}
	}
	t.Cleanup(end)
	return end
}
