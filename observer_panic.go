package worker

import (
	"context"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/hooks"
	"github.com/pgfrontier/worker/store"
)

// protection is what hooks are called with.
type protection struct {
	calls  *hooks.Calls // takes note of them
	report func(HookPanic)
}

// protected makes one Observer of several. Its hooks never panic. The first
// panic of each hook is told to all by HookPanicked; a hook that fails in every
// batch would fill the log. calls gets those that have not returned.
func protected(all []Observer, calls *hooks.Calls) (one Observer) {
	one = unite(all, &protection{calls, func(p HookPanic) { tell(one.HookPanicked, p) }})
	return one
}

// protect returns a hook that reports its first panic and goes on, hook itself
// without protection.
func protect[T any](p *protection, name string, hook func(T)) func(T) {
	if p == nil {
		return hook
	}
	var reported atomic.Bool
	return func(about T) {
		defer p.calls.Begin(name)()
		defer func() {
			if v := recover(); v != nil && reported.CompareAndSwap(false, true) {
				p.report(HookPanic{name, errtext.Panic(v), stack()})
			}
		}()
		hook(about)
	}
}

// stack returns where a panic that is being recovered came from, by line: a
// list stays on one line of a log that is text.
func stack() []string { return linesOf(debug.Stack()) }

func linesOf(stack []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(stack)), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

// protectedLogger is a Logger that never panics. The first panic is logged, if
// the Logger can do that much.
type protectedLogger struct {
	store.Logger
	once *sync.Once
}

func protectLogger(l store.Logger) store.Logger { return protectedLogger{l, new(sync.Once)} }

func (p protectedLogger) Debug(ctx context.Context, msg string, keyvals ...any) {
	defer p.survive("Debug", msg)
	p.Logger.Debug(ctx, msg, keyvals...)
}

func (p protectedLogger) Info(ctx context.Context, msg string, keyvals ...any) {
	defer p.survive("Info", msg)
	p.Logger.Info(ctx, msg, keyvals...)
}

func (p protectedLogger) Error(ctx context.Context, msg string, keyvals ...any) {
	defer p.survive("Error", msg)
	p.Logger.Error(ctx, msg, keyvals...)
}

// survive ends a panic of a method of the Logger, which was given msg.
func (p protectedLogger) survive(method, msg string) {
	if v := recover(); v != nil {
		p.once.Do(func() {
			defer func() { _ = recover() }() // there is nobody left to tell
			p.Logger.Error(context.Background(), "logger panicked, going on; further panics of it are not logged",
				"method", method, "message", msg, "panic", errtext.Panic(v), "stack", stack())
		})
	}
}
