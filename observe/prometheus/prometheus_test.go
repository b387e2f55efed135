package prometheus_test

import (
	"context"
	"database/sql"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/metrics"
	pgprometheus "github.com/pgfrontier/worker/observe/prometheus"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// subject is a Collector that is scraped as Prometheus does.
func subject(t *testing.T) metricstest.Subject {
	c := pgprometheus.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	return metricstest.Subject{Adapter: c, Read: func(t testing.TB) metricstest.Values { return read(t, scrape(t, registry)) }}
}

func scrape(t testing.TB, registry *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil || answer.Code != 200 {
		t.Fatalf("a scrape answers %d, %v", answer.Code, err)
	}
	return families
}

// read names the series as the library does.
func read(t testing.TB, families map[string]*dto.MetricFamily) metricstest.Values {
	t.Helper()
	all := metricstest.Values{}
	for _, m := range metrics.All() {
		family := families[m.Prometheus()]
		delete(families, m.Prometheus())
		if family == nil {
			continue
		}
		if family.GetHelp() != m.Help || strings.ToLower(family.GetType().String()) != m.Kind.String() {
			t.Errorf("%s: %q of the type %v, want %q, %v", m.Name, family.GetHelp(), family.GetType(), m.Help, m.Kind)
		}
		for _, s := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range s.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			all[metricstest.Key(m, func(name string) string { return labels[name] })] = s.GetGauge().GetValue() + s.GetCounter().GetValue() + float64(s.GetHistogram().GetSampleCount())
		}
	}
	for name := range families {
		t.Errorf("%s is no metric of the library", name)
	}
	return all
}

// Each metric moves in what Prometheus is served, when a real worker does what it counts.
func TestEvents(t *testing.T) { metricstest.Events(t, subject) }

func TestJobs(t *testing.T) { metricstest.Jobs(t, subject) }

// The names are as Prometheus wants them.
func TestNames(t *testing.T) {
	d := pgtest.New(t)
	c := pgprometheus.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	metricstest.Start(t, d.DB, c, []consumer.Consumer{nothing{}})
	metricstest.Commit(t, metricstest.Append(t, d.DB, "a", store.Event{}))
	awaitDelivery(t, registry)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// nothing is the consumer "a", which takes several events at once.
type nothing struct{ consumer.BatchOnly }

func (nothing) Name() string { return "a" }

func (nothing) HandleBatch(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil }

// awaitDelivery waits until one event was delivered.
func awaitDelivery(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	for deadline := time.Now().Add(pgtest.Patience); read(t, scrape(t, registry))["pgfrontier.delivery.duration{consumer=a}"] != 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for a delivery")
		}
	}
}

// A delivery has what names the trace of its batch, in the format that can say so.
func TestExemplars(t *testing.T) {
	d := pgtest.New(t)
	type key struct{}
	c := pgprometheus.New(pgprometheus.WithExemplars(func(ctx context.Context) prometheus.Labels {
		trace, _ := ctx.Value(key{}).(string)
		return prometheus.Labels{"trace_id": trace}
	}))
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	metricstest.Start(t, d.DB, c, []consumer.Consumer{nothing{}}, worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		next = c.Batch(next)
		return func(ctx context.Context, b observe.Batch) error {
			return next(context.WithValue(ctx, key{}, "4bf92f"), b)
		}
	}))
	metricstest.Commit(t, metricstest.Append(t, d.DB, "a", store.Event{}))
	awaitDelivery(t, registry)
	request := httptest.NewRequest("GET", "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, request)
	if !strings.Contains(answer.Body.String(), `# {trace_id="4bf92f"}`) {
		t.Errorf("no exemplar in\n%s", answer.Body)
	}
}
