package otel_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/observe/otel"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// subject is a Telemetry whose metrics the SDK collects.
func subject(t *testing.T) metricstest.Subject {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() {
		if err := provider.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	telemetry, err := otel.New(otel.WithMeterProvider(provider))
	if err != nil {
		t.Fatal(err)
	}
	return metricstest.Subject{Adapter: telemetry, Read: func(t testing.TB) metricstest.Values { return read(t, collect(t, reader)) }}
}

// collect returns the metrics by name.
func collect(t testing.TB, reader *sdk.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	found := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != "github.com/pgfrontier/worker/observe/otel" {
			t.Errorf("the scope is %q", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// read names the series as the library does.
func read(t testing.TB, found map[string]metricdata.Metrics) metricstest.Values {
	t.Helper()
	all := metricstest.Values{}
	for _, m := range metrics.All() {
		got, is := found[m.Name]
		if !is {
			continue
		}
		delete(found, m.Name)
		if got.Unit != m.Unit || got.Description != m.Help {
			t.Errorf("%s: %q in %s, want %q in %s", m.Name, got.Description, got.Unit, m.Help, m.Unit)
		}
		key := func(set attribute.Set) string {
			return metricstest.Key(m, func(name string) string {
				v, _ := set.Value(attribute.Key(name))
				return v.AsString()
			})
		}
		kind := metrics.Gauge
		switch data := got.Data.(type) {
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				all[key(p.Attributes)] = p.Value
			}
		case metricdata.Sum[float64]:
			if kind = metrics.Counter; !data.IsMonotonic {
				t.Errorf("%s may fall", m.Name)
			}
			for _, p := range data.DataPoints {
				all[key(p.Attributes)] = p.Value
			}
		case metricdata.Histogram[float64]:
			kind = metrics.Histogram
			for _, p := range data.DataPoints {
				if all[key(p.Attributes)] = float64(p.Count); len(p.Bounds) != len(m.Bounds) {
					t.Errorf("%s has the bounds %v, want %v", m.Name, p.Bounds, m.Bounds)
				}
			}
		}
		if kind != m.Kind {
			t.Errorf("%s is a %v, want a %v", m.Name, kind, m.Kind)
		}
	}
	for name := range found {
		t.Errorf("%s is no metric of the library", name)
	}
	return all
}

// Each metric moves in what the SDK collects, when a real worker does what it counts.
func TestEvents(t *testing.T) { metricstest.Events(t, subject) }

func TestJobs(t *testing.T) { metricstest.Jobs(t, subject) }

// After Close nothing is collected.
func TestClose(t *testing.T) {
	reader := sdk.NewManualReader()
	telemetry, err := otel.New(otel.WithMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader))))
	if err != nil {
		t.Fatal(err)
	}
	telemetry.Observer()(wakeup)
	if n := len(collect(t, reader)); n != 1 {
		t.Errorf("%d metrics, want one", n)
	}
	if err := telemetry.Close(); err != nil {
		t.Fatal(err)
	}
	if found := collect(t, reader); len(found) > 0 {
		t.Errorf("after Close: %v", found)
	}
}

// What cannot work is refused.
func TestNewRefuses(t *testing.T) {
	if _, err := otel.New(otel.WithMeterProvider(nil)); err == nil || !strings.Contains(err.Error(), "provider is nil") {
		t.Errorf("a nil provider: %v", err)
	}
	if _, err := otel.New(otel.WithMeterProvider(noop.NewMeterProvider())); err != nil {
		t.Errorf("a provider that does nothing: %v", err)
	}
}
