package metrics_test

import (
	"context"
	"sync"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe/metrics"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// counts are histograms that count what they are given.
type counts struct {
	mu  sync.Mutex
	all metricstest.Values
}

func (c *counts) Open(m *metrics.Metric, attributes ...string) func(context.Context, float64) {
	key := metricstest.KeyOf(m, attributes)
	return func(_ context.Context, value float64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.all[key]++; value < 0 {
			panic("a duration is negative")
		}
	}
}

func (c *counts) Drop(m *metrics.Metric, attributes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, metricstest.KeyOf(m, attributes))
}

// plain is the Recorder without a library of metrics.
type plain struct {
	*metrics.Recorder
	counts *counts
}

func newPlain() plain {
	c := &counts{all: metricstest.Values{}}
	return plain{metrics.New(c), c}
}

func (p plain) Options() []worker.Option {
	return []worker.Option{worker.WithObserver(p.Observer()), worker.WithBatchMiddleware(p.Batch), worker.WithHandleMiddleware(p.Handle)}
}

func (p plain) JobsOptions() []jobs.Option {
	return []jobs.Option{jobs.WithObserver(p.Observer())}
}

func (p plain) read(t testing.TB) metricstest.Values {
	all := metricstest.Values{}
	p.Collect(t.Context(), func(m *metrics.Metric, value float64, attributes ...string) {
		key := metricstest.KeyOf(m, attributes)
		if _, twice := all[key]; twice || len(attributes) != len(m.Attributes) {
			t.Errorf("%s is there twice, or has not all attributes: %q", key, attributes)
		}
		all[key] = value
	})
	p.counts.mu.Lock()
	defer p.counts.mu.Unlock()
	for key, n := range p.counts.all {
		all[key] = n
	}
	return all
}
