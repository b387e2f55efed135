package database

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// However an example ends, its database is gone, and its error is told, but for that of an
// interrupt.
func TestWith(t *testing.T) {
	d := pgtest.Empty(t)
	t.Setenv("DATABASE_URL", d.URL)
	broken := errors.New("the example is broken")
	for name, c := range map[string]struct {
		returns func(ctx context.Context, interrupt func()) error
		want    error
	}{
		"done":        {func(context.Context, func()) error { return nil }, nil},
		"failed":      {func(context.Context, func()) error { return broken }, broken},
		"interrupted": {func(ctx context.Context, interrupt func()) error { interrupt(); return ctx.Err() }, nil},
		"both":        {func(_ context.Context, interrupt func()) error { interrupt(); return broken }, broken},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var database string
			err := With(ctx, func(ctx context.Context, db *sql.DB) error {
				if err := db.QueryRowContext(ctx, `SELECT current_database()`).Scan(&database); err != nil {
					return err
				}
				return c.returns(ctx, interrupt)
			})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			var left int
			if err := d.DB.QueryRow(`SELECT count(*) FROM pg_database WHERE datname = $1::text`, database).Scan(&left); err != nil || left != 0 || database == "" {
				t.Errorf("%d databases %q are left, %v", left, database, err)
			}
		})
	}
}

// An example that is interrupted before there is a database does not run.
func TestWithoutTime(t *testing.T) {
	t.Setenv("DATABASE_URL", pgtest.Empty(t).URL)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	err := With(ctx, func(context.Context, *sql.DB) error { return errors.New("it has run") })
	if err != nil {
		t.Error(err)
	}
}
