package consume

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/store"
)

// The event at a checkpoint may be unreadable, and an operator may have skipped it: its
// read is optional. A temporary failure is retried. Otherwise an unchanged log would not be
// recognized.
func TestOptionalReads(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	of := func(code string) error { return fmt.Errorf("read: %w", &pgconn.PgError{Code: code}) }
	for name, c := range map[string]struct {
		ctx   context.Context
		err   error
		again bool
	}{
		"none":                       {t.Context(), nil, false},
		"a value that is none":       {t.Context(), errors.New("cannot scan NULL"), false},
		"corrupted data":             {t.Context(), of("XX001"), false},
		"a file":                     {t.Context(), of("58030"), false},
		"an invalid value":           {t.Context(), of("22P02"), false},
		"a plan that has outlived":   {t.Context(), of("0A000"), true},
		"no right":                   {t.Context(), of("42501"), true},
		"a time-out":                 {t.Context(), of("57014"), true},
		"no memory":                  {t.Context(), of("53200"), true},
		"another server":             {t.Context(), store.ErrIncarnation, true},
		"a lost connection":          {t.Context(), driver.ErrBadConn, true},
		"the end of the worker":      {ended, errors.New("canceled"), true},
		"a server that is shut down": {t.Context(), of("57P01"), true},
	} {
		if err := optional(c.ctx, c.err); (err != nil) != c.again {
			t.Errorf("%s: %v", name, err)
		}
	}
}
