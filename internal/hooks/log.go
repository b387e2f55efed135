package hooks

import (
	"context"
	"log/slog"
)

// WithLog returns the observers, and one more if none of them logs: without a word about logs,
// what is wrong still has a place where people look.
func WithLog[O any](all []O, logs func(O) bool, warnings func(*slog.Logger) O) []O {
	for _, o := range all {
		if logs(o) {
			return all
		}
	}
	return append(all[:len(all):len(all)], warnings(slog.New(least{slog.Default().Handler(), slog.LevelWarn})))
}

// least handles what is of a level at least.
type least struct {
	slog.Handler
	level slog.Level
}

func (h least) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && h.Handler.Enabled(ctx, l)
}

func (h least) WithAttrs(attrs []slog.Attr) slog.Handler {
	return least{h.Handler.WithAttrs(attrs), h.level}
}

func (h least) WithGroup(name string) slog.Handler { return least{h.Handler.WithGroup(name), h.level} }
