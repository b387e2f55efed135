package store

import (
	"context"
	"log/slog"
)

// Logger receives the log messages of the store and the worker. keyvals are alternating keys
// and values.
type Logger interface {
	Debug(ctx context.Context, msg string, keyvals ...any)
	Info(ctx context.Context, msg string, keyvals ...any)
	Error(ctx context.Context, msg string, keyvals ...any)
}

// NoOpLogger discards all messages.
type NoOpLogger struct{}

// Debug discards its arguments.
func (NoOpLogger) Debug(context.Context, string, ...any) {}

// Info discards its arguments.
func (NoOpLogger) Info(context.Context, string, ...any) {}

// Error discards its arguments.
func (NoOpLogger) Error(context.Context, string, ...any) {}

type slogLogger struct{ l *slog.Logger }

// NewSlogLogger adapts l; nil stands for slog.Default().
func NewSlogLogger(l *slog.Logger) Logger {
	if l == nil {
		l = slog.Default()
	}
	return slogLogger{l}
}

// Slog returns the adapted logger.
func (s slogLogger) Slog() *slog.Logger { return s.l }

func (s slogLogger) Debug(ctx context.Context, msg string, keyvals ...any) {
	s.l.DebugContext(ctx, msg, keyvals...)
}

func (s slogLogger) Info(ctx context.Context, msg string, keyvals ...any) {
	s.l.InfoContext(ctx, msg, keyvals...)
}

func (s slogLogger) Error(ctx context.Context, msg string, keyvals ...any) {
	s.l.ErrorContext(ctx, msg, keyvals...)
}
