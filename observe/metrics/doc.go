// Package metrics makes metrics of what workers tell, for whatever library brings them to
// where they are kept. The modules otel and prometheus beside this one do that: programs
// use these. A [Recorder] is the base of another such adapter.
//
// What a worker counts comes from its hooks, and what it is now comes from its Status, read
// when somebody collects. Of a consumer, only the worker that runs it has series, so that a
// deployment of many workers and consumers has each once. No attribute is of a set without
// bounds: no position, aggregate, error or worker's id is among them.
package metrics

import ()

import ()
