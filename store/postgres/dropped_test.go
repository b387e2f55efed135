package postgres_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v does not say %s on one line", err, want)
	}
}

// An append of which a trigger drops rows fails, and names the table.
func TestAppendOfDroppedRows(t *testing.T) {
	t.Parallel()
	const heads, events, both = "rows of aggregate_heads", "rows of events", `rows of aggregate_heads or events`
	for _, c := range []struct {
		on, table string
		expected  store.ExpectedVersion
		says      string
	}{
		{"INSERT", "aggregate_heads", store.Any(), heads},
		{"INSERT", "aggregate_heads", store.NoStream(), heads},
		{"UPDATE", "aggregate_heads", store.Any(), heads},
		{"UPDATE", "aggregate_heads", store.Exact(1), "unless a BEFORE trigger drops the change"},
		{"INSERT", "events", store.Any(), both},
	} {
		t.Run(c.on+" "+c.table+" "+c.expected.String(), func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			if c.on == "UPDATE" {
				mustAppend(t, defaultStore, d.DB, store.NoStream(), newEvent("Order", "1"))
			}
			d.DropRows(t, c.on, c.table)
			inTx(t, d.DB, func(tx *sql.Tx) {
				_, err := defaultStore.Append(t.Context(), tx, c.expected, []store.Event{newEvent("Order", "1")})
				says(t, err, c.says)
				if c.expected.IsExact() != errors.Is(err, store.ErrOptimisticConcurrency) {
					t.Errorf("it is a conflict, or none: %v", err)
				}
			})
		})
	}
}

// An append to tables that lack a part names the remedy.
func TestAppendToTablesThatLackAPart(t *testing.T) {
	t.Parallel()
	for drop, state := range map[string]string{
		`ALTER TABLE aggregate_heads DROP CONSTRAINT aggregate_heads_pkey`: "42P10",
		`ALTER TABLE events DROP COLUMN trace_id`:                          "42703",
		`DROP TABLE aggregate_heads`:                                       "42P01",
	} {
		d := pgtest.New(t)
		d.Exec(t, drop)
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = defaultStore.Append(t.Context(), tx, store.Any(), []store.Event{newEvent("Order", "1")})
		_ = tx.Rollback()
		says(t, err, state)
		says(t, err, "pgfrontier doctor says which")
	}
}
