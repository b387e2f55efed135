// Package otel exports to OpenTelemetry what workers report: metrics, and traces that link the
// producer of an event or a job to its handler.
//
//	t, err := otel.New()
//	w := worker.New(db, events, consumers, t.Options()...)
//	t.Watch(w)
//
// The providers are the global ones unless options name others. docs/observing.md of the library has
// all metrics. The package starts no goroutine.
//
// # Traces
//
// Each batch has a span of the kind consumer, and so has each call of a job's handler. A span
// begins a trace of its own, since a batch has many producers and a job may run days later. It is
// linked to the spans of at most [MaxLinks] producers with sampled traces. A producer puts its
// span into the event with [Inject], or into the job with [Meta].
package otel
