package observe

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// Log returns an Observer that logs every event to l; nil stands for [slog.Default]. The
// handler of l decides which levels are written. Each error is one line. The stack of a
// panic follows as the attribute "stack".
//
// The options WithSlog and WithLogger of the workers add such an Observer. They also switch
// off the warnings that a worker without a logger writes to slog.Default.
func Log(l *slog.Logger) Observer {
	if l == nil {
		l = slog.Default()
	}
	return func(e Event) {
		ctx, level := context.Background(), e.level()
		if l.Enabled(ctx, level) {
			message, attrs := e.line()
			l.LogAttrs(ctx, level, message, oneLine(attrs)...)
		}
	}
}

// LogTo returns an Observer that logs every event to l. A [store.Logger] has no level for
// warnings, so it gets them as errors. nil logs nothing.
func LogTo(l store.Logger) Observer {
	if l == nil {
		return func(Event) {}
	}
	if l, is := l.(interface{ Slog() *slog.Logger }); is {
		return Log(l.Slog())
	}
	return func(e Event) {
		message, attrs := e.line()
		var keyvals []any
		for _, a := range oneLine(attrs) {
			keyvals = append(keyvals, a.Key, a.Value.Any())
		}
		switch ctx := context.Background(); e.level() {
		case slog.LevelDebug:
			l.Debug(ctx, message, keyvals...)
		case slog.LevelInfo:
			l.Info(ctx, message, keyvals...)
		default:
			l.Error(ctx, message, keyvals...)
		}
	}
}

// oneLine returns the attributes with each error on one line, and without nil values. The
// stack of a panic among the errors follows at the end.
func oneLine(attrs []slog.Attr) []slog.Attr {
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Any() == nil })
	for i, a := range attrs {
		err, is := a.Value.Any().(error)
		if !is {
			continue
		}
		attrs[i].Value = slog.AnyValue(errtext.Of(err))
		if p := (*PanicError)(nil); errors.As(err, &p) {
			attrs = append(attrs, slog.Any("stack", errtext.Lines(p.Stack)))
		}
	}
	return attrs
}
