package store_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/pgfrontier/worker/store"
)

func TestSlogLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := store.NewSlogLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	l.Debug(t.Context(), "one", "a", 1)
	l.Info(t.Context(), "two", "b", "x y")
	l.Error(t.Context(), "three")
	want := "level=DEBUG msg=one a=1\nlevel=INFO msg=two b=\"x y\"\nlevel=ERROR msg=three\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if store.NewSlogLogger(nil) == nil {
		t.Error("no logger for nil")
	}
}
