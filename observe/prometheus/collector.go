package prometheus

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
)

// collectLimit bounds a collection, which has no context of its own. Only the leader of
// jobs asks the database then.
const collectLimit = 5 * time.Second

// Collector has the metrics of a worker of events, a worker of jobs, or both, and of workers of
// tables. Make it with [New] and register it. Two Collectors of a process have the same series:
// register the second with prometheus.WrapRegistererWith and a label.
type Collector struct {
	recorder   *metrics.Recorder
	histograms histograms
	gauges     map[*metrics.Metric]*prometheus.Desc // and counters
}

// Option changes one setting of a Collector.
type Option func(*Collector)

// WithExemplars sets a function that returns labels for the exemplars of delivery durations, such
// as the trace of a batch's context. It is called once an event. nil: no exemplar.
func WithExemplars(f func(ctx context.Context) prometheus.Labels) Option {
	return func(c *Collector) { c.histograms.exemplar = f }
}

// New returns a Collector.
func New(options ...Option) *Collector {
	c := &Collector{gauges: map[*metrics.Metric]*prometheus.Desc{}, histograms: histograms{of: map[*metrics.Metric]*prometheus.HistogramVec{}}}
	for _, o := range options {
		o(c)
	}
	for _, m := range metrics.All() {
		if m.Kind == metrics.Histogram {
			c.histograms.of[m] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Prometheus(), Help: m.Help, Buckets: m.Bounds}, m.Attributes)
		} else {
			c.gauges[m] = prometheus.NewDesc(m.Prometheus(), m.Help, m.Attributes, nil)
		}
	}
	c.recorder = metrics.New(c.histograms)
	return c
}

// Watch makes the metrics show the Status of a worker. A second call replaces the worker.
func (c *Collector) Watch(w *worker.Worker) { c.recorder.Watch(w) }

// WatchJobs makes the metrics show the Status of a worker of jobs. A second call replaces the
// worker. While the worker leads, a collection also reads queues, schedules and flows through o, at
// most once in ten seconds. If o is nil, it does not.
func (c *Collector) WatchJobs(w *jobs.Worker, o *ops.Jobs) { c.recorder.WatchJobs(w, o) }

// WatchTable makes the metrics show the Status of a worker of package jobs/table. name is the
// attribute table. A second call with a name replaces the worker.
func (c *Collector) WatchTable(name string, w *table.Worker) { c.recorder.WatchTable(name, w) }

// Options are the options of a worker: an observer and both kinds of middleware. They combine with
// other options: all observers are called, and middleware is nested, the first outermost.
func (c *Collector) Options() []worker.Option {
	return []worker.Option{worker.WithObserver(c.Observer()), worker.WithBatchMiddleware(c.Batch), worker.WithHandleMiddleware(c.Handle)}
}

// Observer counts the events of workers, Schedulers and VerifyEvery of package ops. Options and
// JobsOptions include it. Pass it to WithObserver of a Scheduler, and to VerifyEvery.
func (c *Collector) Observer() observe.Observer { return c.recorder.Observer() }

// Batch measures how old events are when they have been handled. See [Collector.Options].
func (c *Collector) Batch(next worker.BatchFunc) worker.BatchFunc { return c.recorder.Batch(next) }

// Handle records the events. See [Collector.Options].
func (c *Collector) Handle(next worker.HandleFunc) worker.HandleFunc { return c.recorder.Handle(next) }

// JobsOptions are the options of a worker of jobs: an observer.
func (c *Collector) JobsOptions() []jobs.Option {
	return []jobs.Option{jobs.WithObserver(c.recorder.Observer())}
}

// TableObserver counts the events of a worker of package jobs/table, for Observers of its
// WorkerOptions. name is the attribute table.
func (c *Collector) TableObserver(name string) observe.Observer {
	return c.recorder.TableObserver(name)
}

// Describe describes all metrics, for a registry.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.gauges {
		to <- d
	}
	for _, h := range c.histograms.of {
		h.Describe(to)
	}
}

// Collect collects all metrics, for a registry.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectLimit)
	defer cancel()
	c.recorder.Collect(ctx, func(m *metrics.Metric, value float64, attributes ...string) {
		kind := prometheus.GaugeValue
		if m.Kind == metrics.Counter {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(c.gauges[m], kind, value, attributes...)
	})
	for _, h := range c.histograms.of {
		h.Collect(to)
	}
}

// histograms are the metrics that are measured.
type histograms struct {
	of       map[*metrics.Metric]*prometheus.HistogramVec
	exemplar func(ctx context.Context) prometheus.Labels
}

// Open returns a function that records the values of a series.
func (h histograms) Open(m *metrics.Metric, attributes ...string) func(ctx context.Context, value float64) {
	series := h.of[m].WithLabelValues(attributes...)
	return func(ctx context.Context, value float64) {
		if h.exemplar != nil {
			if labels := h.exemplar(ctx); labels != nil {
				series.(prometheus.ExemplarObserver).ObserveWithExemplar(value, labels)
				return
			}
		}
		series.Observe(value)
	}
}

// Drop forgets a series.
func (h histograms) Drop(m *metrics.Metric, attributes ...string) {
	h.of[m].DeleteLabelValues(attributes...)
}
