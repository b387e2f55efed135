// Package hooks calls code of users at the edges of a worker: the hooks of observers,
// and others. Whatever that code does, the worker goes on.
package hooks

import (
	"sync"
	"sync/atomic"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Voice tells the observers of a worker, which are structs of hooks.
type Voice[O any] struct {
	Calls    // by Tell
	all      []O
	panicked sync.Map // an *atomic.Bool by hook
	report   func(v *Voice[O], hook, value string)
}

// New returns a Voice. report tells the observers of the first panic of each hook.
func New[O any](all []O, report func(v *Voice[O], hook, value string)) *Voice[O] {
	return &Voice[O]{all: all, report: report}
}

// Tell calls a hook of each observer that has it, in a goroutine of its own: the hook may
// end it, as FailNow of testing does.
func Tell[O, T any](v *Voice[O], hook string, of func(*O) func(T), about T) {
	for i := range v.all {
		if f := of(&v.all[i]); f != nil {
			end := v.Begin(hook)
			v.Aside(hook, func() { f(about) })
			end()
		}
	}
}

// Hears reports whether one of the observers has a hook.
func (v *Voice[O]) Hears(of func(*O) bool) bool {
	for i := range v.all {
		if of(&v.all[i]) {
			return true
		}
	}
	return false
}

// survive calls f, and reports whether that has not panicked.
func (v *Voice[O]) survive(hook string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil && v.first(hook) {
			v.report(v, hook, errtext.Panic(p))
		}
	}()
	f()
	return true
}

// Aside calls f, which may end its goroutine, in one of its own. It reports whether
// f has returned.
func (v *Voice[O]) Aside(hook string, f func()) (ok bool) {
	returned := Aside(func() { ok = v.survive(hook, f) })
	if !returned && v.first(hook) {
		v.report(v, hook, "it called runtime.Goexit")
	}
	return ok
}

// first reports whether this is the first panic of a hook.
func (v *Voice[O]) first(hook string) bool {
	told, _ := v.panicked.LoadOrStore(hook, new(atomic.Bool))
	return told.(*atomic.Bool).CompareAndSwap(false, true)
}

// Aside calls f in a goroutine of its own, and waits for it. It reports whether f
// has returned: a panic, and runtime.Goexit, end only that goroutine.
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
