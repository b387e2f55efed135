package otel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
)

// scope is the instrumentation scope of the metrics and the spans.
const scope = "github.com/pgfrontier/worker/observe/otel"

// Telemetry is the telemetry of a worker of events, of one of jobs, or of both, and of
// workers of tables. Make it with [New]. Two workers of a kind in one process need two, of different
// MeterProviders: their series would be the same.
type Telemetry struct {
	recorder   *metrics.Recorder
	tracer     trace.Tracer
	eventSpans bool
	collecting metric.Registration
}

type config struct {
	meters     metric.MeterProvider
	tracers    trace.TracerProvider
	eventSpans bool
}

// Option changes one setting of a Telemetry.
type Option func(*config)

// WithMeterProvider sets where metrics go. The default is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where spans go. The default is the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithEventSpans makes a span for each call of a handler of events, below the batch's: one for
// each event, unless the consumer takes several at once. It has the links to the
// producers, too.
func WithEventSpans() Option { return func(c *config) { c.eventSpans = true } }

// New makes all instruments. It fails if the MeterProvider refuses one.
func New(options ...Option) (*Telemetry, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range options {
		o(&c)
	}
	if c.meters == nil || c.tracers == nil {
		return nil, errors.New("otel: a provider is nil: leave its option out to take the global one")
	}
	t := &Telemetry{tracer: c.tracers.Tracer(scope), eventSpans: c.eventSpans}
	if err := t.instrument(c.meters.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otel: make the instruments: %w", err)
	}
	return t, nil
}

// instrument makes the instruments. Those of counters are observed like gauges, so that the
// series of a consumer end some time after it has gone elsewhere.
func (t *Telemetry) instrument(meter metric.Meter) error {
	recorded, observed := histograms{}, map[*metrics.Metric]metric.Float64Observable{}
	var all []metric.Observable
	for _, m := range metrics.All() {
		var err error
		var o metric.Float64Observable
		switch m.Kind {
		case metrics.Histogram:
			recorded[m], err = meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help), metric.WithExplicitBucketBoundaries(m.Bounds...))
		case metrics.Counter:
			o, err = meter.Float64ObservableCounter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
		default:
			o, err = meter.Float64ObservableGauge(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
		}
		if err != nil {
			return err
		}
		if o != nil {
			observed[m], all = o, append(all, o)
		}
	}
	t.recorder = metrics.New(recorded)
	var err error
	t.collecting, err = meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		t.recorder.Collect(ctx, func(m *metrics.Metric, value float64, attributes ...string) {
			to.ObserveFloat64(observed[m], value, metric.WithAttributeSet(setOf(m, attributes)))
		})
		return nil
	}, all...)
	return err
}

// Close ends the collection of metrics. Spans go on.
func (t *Telemetry) Close() error { return t.collecting.Unregister() }

// Watch makes the metrics show the Status of a worker. A second call replaces the worker.
func (t *Telemetry) Watch(w *worker.Worker) { t.recorder.Watch(w) }

// WatchJobs makes the metrics show the Status of a worker of jobs. A second call replaces the
// worker. While the worker leads, a collection also reads queues, schedules and flows through o, at
// most once in ten seconds. If o is nil, it does not.
func (t *Telemetry) WatchJobs(w *jobs.Worker, o *ops.Jobs) { t.recorder.WatchJobs(w, o) }

// WatchTable makes the metrics show the Status of a worker of package jobs/table. name is the
// attribute table. A second call with a name replaces the worker.
func (t *Telemetry) WatchTable(name string, w *table.Worker) { t.recorder.WatchTable(name, w) }

// Options are the options of a worker: an observer and both kinds of middleware. They combine with
// other options: all observers are called, and middleware is nested, the first outermost.
func (t *Telemetry) Options() []worker.Option {
	return []worker.Option{worker.WithObserver(t.Observer()), worker.WithBatchMiddleware(t.Batch), worker.WithHandleMiddleware(t.Handle)}
}

// Observer counts the events of workers, Schedulers and VerifyEvery of package ops. Options and
// JobsOptions include it. Pass it to WithObserver of a Scheduler, and to VerifyEvery.
func (t *Telemetry) Observer() observe.Observer { return t.recorder.Observer() }

// JobsOptions are the options of a worker of jobs: an observer and middleware.
func (t *Telemetry) JobsOptions() []jobs.Option {
	return []jobs.Option{jobs.WithObserver(t.recorder.Observer()), jobs.WithMiddleware(t.Jobs)}
}

// TableObserver counts the events of a worker of package jobs/table, for Observers of its
// WorkerOptions. name is the attribute table.
func (t *Telemetry) TableObserver(name string) observe.Observer {
	return t.recorder.TableObserver(name)
}

// histograms are the instruments of the metrics that are measured.
type histograms map[*metrics.Metric]metric.Float64Histogram

// Open returns a function that records the values of a series.
func (h histograms) Open(m *metrics.Metric, attributes ...string) func(ctx context.Context, value float64) {
	instrument, with := h[m], []metric.RecordOption{metric.WithAttributeSet(setOf(m, attributes))}
	return func(ctx context.Context, value float64) { instrument.Record(ctx, value, with...) }
}

// Drop does nothing: the instruments of OpenTelemetry keep their series.
func (histograms) Drop(*metrics.Metric, ...string) {}

// setOf names the values of a series. An empty one is left out.
func setOf(m *metrics.Metric, values []string) attribute.Set {
	all := make([]attribute.KeyValue, 0, len(values))
	for i, v := range values {
		if v != "" {
			all = append(all, attribute.String(m.Attributes[i], v))
		}
	}
	return attribute.NewSet(all...)
}
