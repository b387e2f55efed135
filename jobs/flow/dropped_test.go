package flow_test

import (
	"strings"
	"testing"
)

// Start says the remedy if its tables lack a part, a trigger drops the run, or no ID is left.
func TestStartWithoutAPartOfItsTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says   string
		damage func(s *stage)
	}{
		{"pgfrontier doctor says which, and how to create it", func(s *stage) { s.d.Exec(t, `DROP INDEX jobs_flow_runs_flow_key_idx`) }},
		{"restart the sequence of jobs_flow_runs", func(s *stage) { s.d.Exec(t, `SELECT setval('jobs_flow_runs_id_seq', 8589934591)`) }},
		{"rows of jobs_flow_runs", func(s *stage) { s.d.DropRows(t, "INSERT", "jobs_flow_runs") }},
	} {
		s := newStage(t)
		o := newOrder(s)
		c.damage(s)
		_, err := o.Start(t.Context(), s.Client, nil, 1)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v does not say %s", err, c.says)
		}
	}
}
