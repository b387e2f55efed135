package e2e

import (
	"fmt"
	"reflect"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
)

// A worker has bounds that no option sets. A test of what happens at one of them does
// not wait for minutes, so it reaches into the worker.

// setTurn sets after what time a loop hangs.
func setTurn(w *worker.Worker, d time.Duration) { *field[time.Duration](w, "limits", "watchdog") = d }

// setLeave bounds the last statements when the worker stops.
func setLeave(w *worker.Worker, d time.Duration) { *field[time.Duration](w, "limits", "leave") = d }

// setGuard bounds, beyond two batches, the wait of a guard whose blocker is unknown.
func setGuard(w *worker.Worker, d time.Duration) { *field[time.Duration](w, "limits", "guard") = d }

// setShare sets the part of BatchTimeout after which no further event of a batch begins.
func setShare(w *worker.Worker, share float64) { *field[float64](w, "limits", "share") = share }

// setQuick bounds quick statements, from when the worker has started. A loop tries such a
// statement again, with more time. A start does not, so a short bound would end a worker on
// a slow machine.
func setQuick(w *worker.Worker, d time.Duration) {
	observers := field[[]observe.Observer](w, "observers", "all")
	*observers = append(*observers, observe.On(func(observe.WorkerStarted) {
		*field[time.Duration](w, "limits", "quick") = d
	}))
}

// field is an unexported field of a worker, or of a struct in it. It panics if there is none
// of this type.
func field[T any](w *worker.Worker, path ...string) *T {
	v := reflect.ValueOf(w).Elem().FieldByName("engine").Elem()
	for _, name := range path {
		v = reflect.Indirect(v).FieldByName(name)
	}
	if !v.IsValid() || v.Type() != reflect.TypeFor[T]() {
		panic(fmt.Sprintf("a worker has no field %v of type %v", path, reflect.TypeFor[T]()))
	}
	return (*T)(v.Addr().UnsafePointer())
}
