package queue

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A row that a trigger drops without an error is an error, which names the table.
func TestEnqueueOfDroppedRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, table string
		enqueue     func(s *stage) error
	}{
		{"one job", "jobs", func(s *stage) error {
			_, err := s.Enqueue(t.Context(), s.d.DB, []NewJob{{Kind: "a"}})
			return err
		}},
		{"different jobs", "jobs", func(s *stage) error {
			_, err := s.Enqueue(t.Context(), s.d.DB, []NewJob{{Kind: "a"}, {Kind: "b", UniqueKey: "k"}})
			return err
		}},
		{"once", "jobs", func(s *stage) error {
			_, err := s.EnqueueOnce(t.Context(), s.d.DB, NewJob{Kind: "a"}, Once{Key: "k"})
			return err
		}},
		{"for an event", "jobs", func(s *stage) error {
			_, err := s.Emit(t.Context(), s.d.DB, NewJob{Kind: "a"}, "mailer", 1, 1)
			return err
		}},
		{"for an event, its key", "jobs_emitted", func(s *stage) error {
			_, err := s.Emit(t.Context(), s.d.DB, NewJob{Kind: "a"}, "mailer", 1, 1)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			if err := c.enqueue(s); err != nil {
				t.Fatalf("without a trigger: %v", err)
			}
			s.d.Exec(t, `TRUNCATE jobs, jobs_once, jobs_emitted`)
			s.d.DropRows(t, "INSERT", c.table)
			err := c.enqueue(s)
			if want := "leaves out rows of " + c.table; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "trigger") {
				t.Errorf("%v does not say %s", err, want)
			}
		})
	}
}

// Another emitter that commits the same key meanwhile is no trigger.
func TestEmitBesideTheSameEmitter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	other, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	if _, err := s.Emit(t.Context(), other, NewJob{Kind: "a"}, "mailer", 1, 1); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		id  int64
		err error
	}
	emitted := make(chan answer, 1)
	go func() {
		id, err := s.Emit(t.Context(), s.d.DB, NewJob{Kind: "a"}, "mailer", 1, 1)
		emitted <- answer{id, err}
	}()
	if !pgtest.Poll(func() bool {
		var waits bool
		err := s.d.DB.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`).Scan(&waits)
		return err == nil && waits
	}) {
		t.Fatal("waited in vain for the second emitter to wait for the first")
	}
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := <-emitted; got.id != 0 || got.err != nil {
		t.Errorf("the second emitter gets job %d, %v", got.id, got.err)
	}
}
