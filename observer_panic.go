package worker

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// protected returns the Observer with hooks that never panic. The first panic
// of each hook is logged; a hook that fails in every batch would fill the log.
func (o Observer) protected(l store.Logger) Observer {
	return Observer{
		WorkerStarted:     protect(l, "WorkerStarted", o.WorkerStarted),
		WorkerStopped:     protect(l, "WorkerStopped", o.WorkerStopped),
		LeadershipChanged: protect(l, "LeadershipChanged", o.LeadershipChanged),
		ConsumerStarted:   protect(l, "ConsumerStarted", o.ConsumerStarted),
		ConsumerStopped:   protect(l, "ConsumerStopped", o.ConsumerStopped),
		ConsumerUnowned:   protect(l, "ConsumerUnowned", o.ConsumerUnowned),
		ConsumerPaused:    protect(l, "ConsumerPaused", o.ConsumerPaused),
		BatchStarted:      protect(l, "BatchStarted", o.BatchStarted),
		BatchDone:         protect(l, "BatchDone", o.BatchDone),
		HandlerOverdue:    protect(l, "HandlerOverdue", o.HandlerOverdue),
		Retrying:          protect(l, "Retrying", o.Retrying),
		DeadLettered:      protect(l, "DeadLettered", o.DeadLettered),
		FrontierBlocked:   protect(l, "FrontierBlocked", o.FrontierBlocked),
		FrontierFailed:    protect(l, "FrontierFailed", o.FrontierFailed),
		Skipped:           protect(l, "Skipped", o.Skipped),
		NotifyFailed:      protect(l, "NotifyFailed", o.NotifyFailed),
		Recovered:         protect(l, "Recovered", o.Recovered),
		Woken:             protect(l, "Woken", o.Woken),
	}
}

// protect returns a hook that logs its first panic, nil for nil.
func protect[T any](l store.Logger, name string, hook func(T)) func(T) {
	if hook == nil {
		return nil
	}
	var once sync.Once
	return func(about T) {
		defer func() {
			if v := recover(); v != nil {
				once.Do(func() {
					l.Error(context.Background(), "hook of the Observer panicked, going on; further panics of this hook are not logged",
						"hook", name, "panic", errtext.Panic(v), "stack", stack())
				})
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
	p.Logger.Debug(ctx, msg, inShort(keyvals)...)
}

func (p protectedLogger) Info(ctx context.Context, msg string, keyvals ...any) {
	defer p.survive("Info", msg)
	p.Logger.Info(ctx, msg, inShort(keyvals)...)
}

func (p protectedLogger) Error(ctx context.Context, msg string, keyvals ...any) {
	defer p.survive("Error", msg)
	p.Logger.Error(ctx, msg, inShort(keyvals)...)
}

// inShort puts errors on one line. The stack of a panic that is among them
// follows at the end.
func inShort(keyvals []any) []any {
	for i, v := range keyvals {
		err, is := v.(error)
		if !is {
			continue
		}
		keyvals[i] = errtext.Of(err)
		if p := (*PanicError)(nil); errors.As(err, &p) {
			keyvals = append(keyvals, "stack", linesOf(p.Stack))
		}
	}
	return keyvals
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
