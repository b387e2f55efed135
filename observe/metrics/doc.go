// Package metrics makes metrics of the events and the Status of workers, for any metrics
// library. Programs use the modules observe/otel and observe/prometheus. A [Recorder] is the base
// of an adapter for another library.
//
// Counters come from a worker's events. Gauges come from its Status, read at a collection. A
// consumer has series only in the worker that runs it. No attribute is unbounded: no position,
// aggregate, error or worker id.
package metrics
