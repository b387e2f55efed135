package hooks

import (
	"context"
	"log/slog"
)

// WithLog returns the observers, and if none of them logs, one more, which writes warnings and
// errors to slog.Default.
func WithLog[O any](all []O, logs func(O) bool, warnings func(*slog.Logger) O) []O {
	for _, o := range all {
		if logs(o) {
			return all
		}
	}
	usual := func() slog.Handler { return slog.Default().Handler() }
	return append(all[:len(all):len(all)], warnings(slog.New(atLeast{slog.LevelWarn, usual})))
}

// atLeast passes records of at least a level on to a handler, which it asks for each time: a
// program may call slog.SetDefault after it has made its workers.
type atLeast struct {
	level slog.Level
	to    func() slog.Handler
}

func (h atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && h.to().Enabled(ctx, l)
}

func (h atLeast) Handle(ctx context.Context, r slog.Record) error { return h.to().Handle(ctx, r) }

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.level, func() slog.Handler { return h.to().WithAttrs(attrs) }}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.level, func() slog.Handler { return h.to().WithGroup(name) }}
}
