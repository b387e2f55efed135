package queue

import (
	"strings"
	"testing"
)

// A job does not end without a trace: if a trigger drops its row of the history, the statement fails.
func TestDroppedRowsOfTheHistory(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(s *stage, j Job) error{
		"settle": func(s *stage, j Job) error {
			_, err := s.Settle(t.Context(), s.d.DB, []End{{Run: j.Run, To: Failed, Code: "C"}})
			return err
		},
		"cancel": func(s *stage, _ Job) error {
			id := s.add(NewJob{Kind: "b"})[0]
			_, err := s.Cancel(t.Context(), s.d.DB, id)
			return err
		},
		"reset": func(s *stage, j Job) error {
			s.d.Exec(t, `UPDATE jobs SET max_resets = 0, started_at = clock_timestamp()`)
			_, _, err := s.Reset(t.Context(), s.d.DB, []int64{j.ID}, deadSQL, s.me.String())
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			s.add(NewJob{Kind: "a"})
			j := s.claim(s.demand(1, "a"))[0]
			s.d.DropRows(t, "INSERT", "jobs_history")
			if err := end(s, j); err == nil || !strings.Contains(err.Error(), "leaves out rows of jobs_history without an error: a BEFORE trigger") {
				t.Errorf("%v does not name the table", err)
			}
			s.want("no job is gone", "true", `SELECT count(*) > 0 FROM jobs WHERE id = $1`, j.ID)
		})
	}
}
