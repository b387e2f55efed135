//go:build unix

package otel_test

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/observe/otel"
	"github.com/pgfrontier/worker/store"
)

// What telemetry costs a consumer that does nothing else:
//
//	go test -run '^$' -bench . -benchtime 50000x -count 5
func BenchmarkCatchUp(b *testing.B) {
	var event store.Event
	if err := otel.Inject(in(spanContext(1, true, "")), &event); err != nil {
		b.Fatal(err)
	}
	sampled, not := sdk.WithSampler(sdk.AlwaysSample()), sdk.WithSampler(sdk.NeverSample())
	for _, c := range []struct {
		name    string
		tracers *sdk.TracerProvider
		options []otel.Option
	}{
		{"without", nil, nil},
		{"metrics", sdk.NewTracerProvider(not), nil},
		{"spans", sdk.NewTracerProvider(sampled), nil},
		{"event spans", sdk.NewTracerProvider(sampled), []otel.Option{otel.WithEventSpans()}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var a metricstest.Adapter
			if c.tracers != nil {
				meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
				telemetry, err := otel.New(append(c.options, otel.WithTracerProvider(c.tracers), otel.WithMeterProvider(meters))...)
				if err != nil {
					b.Fatal(err)
				}
				a = telemetry
			}
			metricstest.CatchUp(b, a, event.Metadata)
		})
	}
}
