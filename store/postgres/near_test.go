package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

// recordingDB records the statements of a database.
type recordingDB struct {
	*sql.DB
	texts []string
}

func (r *recordingDB) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	r.texts = append(r.texts, text)
	return r.DB.QueryContext(ctx, text, args...)
}

// For many types, ReadScoped scans the events of all types if this costs less than an index
// lookup for each type. The scan is cheaper in a short range, and where a scan has found a page
// before.
func TestReadScopedScansForManyTypes(t *testing.T) {
	t.Parallel()
	const dense, head = 100, 401 // up to dense, the events have eight types; up to head, another one
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, CASE WHEN i <= $1::int OR i = $2::int THEN (i % 8)::text ELSE 'other' END, i::text, 1, gen_random_uuid(), 'Happened', ''
		  FROM generate_series(1, $2::int) AS i`, dense, head)
	s := NewStore(DefaultStoreConfig())
	near, index := s.sql.scopedNear.plain, s.sql.scoped.plain
	types := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
	read := func(what string, r store.ScopedRange, events int, through int64, want ...string) {
		t.Helper()
		q := &recordingDB{DB: d.DB}
		r.Limit = 10
		if r.Types == nil {
			r.Types = types
		}
		page, err := s.ReadScoped(t.Context(), q, r)
		if err != nil || len(page.Events) != events || page.Through != through {
			t.Errorf("%s: %d events, through %d, %v; want %d and %d", what, len(page.Events), page.Through, err, events, through)
		}
		if !slices.Equal(q.texts, want) {
			t.Errorf("%s: the statements are %q, want %q", what, q.texts, want)
		}
	}
	long, short := store.ScopedRange{UpTo: head}, store.ScopedRange{After: head - 32, UpTo: head}
	read("a page is near", long, 10, 10, near)
	read("a short range", short, 1, head, near)
	read("no page is near", store.ScopedRange{After: dense, UpTo: head}, 1, head, near, index)
	for i := range 64 {
		read(fmt.Sprintf("read %d after that", i), long, 10, 10, index)
	}
	read("a short range of a log that is sparse", short, 1, head, near)
	read("read 64 after that", long, 10, 10, near)
	read("few types", store.ScopedRange{UpTo: head, Types: types[:7]}, 10, 11, index)
}
