package hooks_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/internal/hooks"
)

type observer struct{ happened func(int) }

// Each observer is told, also after another has panicked, or has ended its goroutine. The first panic of each
// hook is reported.
func TestVoice(t *testing.T) {
	var told []int
	var reported []string
	v := hooks.New([]observer{
		{func(n int) {
			if n == 0 {
				panic("boom")
			}
			runtime.Goexit()
		}},
		{},
		{func(n int) {
			if n == 2 {
				runtime.Goexit()
			}
			told = append(told, n)
		}},
	}, func(_ *hooks.Voice[observer], hook, value string) { reported = append(reported, hook+": "+value) })
	for n := range 3 {
		hooks.Tell(v, "happened", func(o *observer) func(int) { return o.happened }, n)
	}
	if !v.Aside("fine", func() {}) || v.Aside("exits", runtime.Goexit) || v.Aside("exits", runtime.Goexit) || v.Aside("panics", func() { panic(7) }) {
		t.Error("Aside does not report what has returned")
	}
	if !slices.Equal(told, []int{0, 1}) || !slices.Equal(reported, []string{"happened: boom", "exits: it called runtime.Goexit", "panics: 7"}) {
		t.Errorf("told %v, reported %q", told, reported)
	}
	if !v.Hears(func(o *observer) bool { return o.happened != nil }) || v.Hears(func(*observer) bool { return false }) {
		t.Error("Hears is wrong")
	}
}

// The hook that was called first, and has not returned, is known.
func TestLongest(t *testing.T) {
	v := hooks.New([]observer{{}, {func(n int) {
		if n > 0 {
			runtime.Goexit()
		}
	}}}, func(*hooks.Voice[observer], string, string) {})
	tell := func(hook string, during func()) {
		hooks.Tell(v, hook, func(*observer) func(int) { return func(int) { during() } }, 0)
	}
	longest := func(want string) {
		t.Helper()
		if hook, lasts := v.Longest(); hook != want || lasts < 0 {
			t.Errorf("%q for %v, want %q", hook, lasts, want)
		}
	}
	longest("")
	leave, left := make(chan struct{}), make(chan struct{})
	entered := make(chan struct{}, 2)
	go func() {
		defer close(left)
		tell("first", func() {
			entered <- struct{}{}
			<-leave
		})
	}()
	<-entered
	tell("second", func() { longest("first") })
	close(leave)
	<-left
	tell("third", func() { longest("third") })
	hooks.Tell(v, "exits", func(o *observer) func(int) { return o.happened }, 1)
	longest("")
}

// A trouble that has begun ends once.
func TestTroubles(t *testing.T) {
	var all hooks.Troubles[string]
	if _, was := all.End("a"); was {
		t.Error("nothing had begun")
	}
	all.Begin("a")
	all.Begin("a")
	if _, was := all.End("b"); was {
		t.Error("another one ends")
	}
	if lasted, was := all.End("a"); !was || lasted < 0 {
		t.Errorf("it lasted %v, was there: %t", lasted, was)
	}
	if _, was := all.End("a"); was {
		t.Error("it ends twice")
	}
}
