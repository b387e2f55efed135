package runtime

import (
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// Observers passes the events of a worker to all its observers.
type Observers struct {
	calls      // running calls of observers and hooks
	conditions // reported conditions that have not ended
	worker     observe.Worker
	all        []observe.Observer
	unlogged   bool     // no observer logs: warnings and errors go to slog.Default
	panicked   sync.Map // an *atomic.Bool by hook
}

// NewObservers returns the Observers of a worker. loggers are observers that log. If there are
// none, warnings and errors go to slog.Default. A nil observer is left out.
func NewObservers(worker observe.Worker, loggers, others []observe.Observer) *Observers {
	all := slices.DeleteFunc(slices.Concat(others, loggers), func(o observe.Observer) bool { return o == nil })
	return &Observers{worker: worker, all: all, unlogged: len(loggers) == 0}
}

// Notify calls all observers with an event.
func (o *Observers) Notify(e observe.Event) {
	for _, observer := range o.all {
		o.notify(observer, e)
	}
	if o.unlogged && observe.Level(e) >= slog.LevelWarn {
		o.notify(observe.Log(nil), e)
	}
}

func (o *Observers) notify(observer observe.Observer, e observe.Event) {
	hook := reflect.TypeOf(e).Name()
	defer o.calls.begin(hook)()
	o.Call(hook, func() { observer(e) })
}

// Call calls a function of the program that no job or batch is to blame for. It reports
// whether the function has returned. The function may panic or call runtime.Goexit: neither
// ends a goroutine of the worker. The first such end of each hook is reported.
func (o *Observers) Call(hook string, f func()) (returned bool) {
	panicked := false
	exited := !Aside(func() {
		defer func() {
			if p := recover(); p != nil {
				panicked = true
				o.report(hook, errtext.Panic(p), errtext.Lines(debug.Stack()))
			}
		}()
		f()
	})
	if exited {
		o.report(hook, "it called runtime.Goexit", nil)
	}
	return !panicked && !exited
}

// report reports the first end of a hook by a panic or by runtime.Goexit.
func (o *Observers) report(hook, value string, stack []string) {
	reported, _ := o.panicked.LoadOrStore(hook, new(atomic.Bool))
	if reported.(*atomic.Bool).CompareAndSwap(false, true) {
		o.Notify(observe.HookPanicked{Worker: o.worker, Hook: hook, Panic: value, Stack: stack})
	}
}

// Aside calls f in its own goroutine, and waits for f. It reports whether f returned
// without a panic or runtime.Goexit.
func Aside(f func()) (returned bool) {
	ended := make(chan bool, 1)
	go func() {
		ok := false
		defer func() {
			_ = recover()
			ended <- ok
		}()
		f()
		ok = true
	}()
	return <-ended
}
