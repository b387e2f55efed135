// Package control lets cmd/bench measure what a part of the worker saves: it
// runs once with it and once without.
package control

import "sync/atomic"

// ReadApart makes each consumer read for itself, also at the end of the log:
// frontiers made from then on keep no recent events.
var ReadApart atomic.Bool
