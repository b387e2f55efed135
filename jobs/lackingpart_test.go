package jobs_test

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
)

// Enqueue says the remedy if its tables lack a part.
func TestEnqueueWithoutAPartOfItsTables(t *testing.T) {
	t.Parallel()
	for drop, option := range map[string]jobs.EnqueueOption{
		`DROP INDEX jobs_unique_key_idx`:                       jobs.Unique("k"),
		`ALTER TABLE jobs_once DROP CONSTRAINT jobs_once_pkey`: jobs.Once("k", 0),
		`ALTER TABLE jobs DROP COLUMN max_resets`:              jobs.Priority(1),
		`DROP TABLE jobs_wanted`:                               jobs.Priority(1),
	} {
		s := newStage(t)
		s.d.Exec(t, drop)
		_, err := s.Enqueue(t.Context(), nil, task{}, option)
		if want := "pgfrontier doctor says which, and how to create it"; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("after %s: %v does not say %s", drop, err, want)
		}
	}
}
