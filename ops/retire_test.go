package ops_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/ops"
)

// leftOf counts the rows of the consumer "c" in every table.
const leftOf = `SELECT (SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'c')
	+ (SELECT count(*) FROM consumer_assignments WHERE consumer_name = 'c')
	+ (SELECT count(*) FROM consumer_gap_skips WHERE consumer_name = 'c')
	+ (SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'c')
	+ (SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'c')
	+ (SELECT count(*) FROM worker_nodes WHERE 'c' = ANY (consumers))`

// Retire refuses while a worker has code for the consumer. Afterwards only the consumer's
// operations are left, and other consumers are unchanged.
func TestRetire(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2)
	stop := s.work(t, &ledger{})
	s.awaitHandled(t, "1 2")
	err := s.Retire(t.Context(), "c", by)
	registered := (*ops.RegisteredError)(nil)
	if !errors.As(err, &registered) {
		t.Fatalf("while a worker runs it: %v", err)
	}
	for _, says := range []string{registered.Worker.String(), "has code for it", "stop that worker", "DELETE FROM"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	stop()
	other := uuid.New() // of another library, at almost the longest HeartbeatTimeout
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at) VALUES ($1, clock_timestamp() - interval '23 hours')`, other)
	if err := s.Retire(t.Context(), "c", by); !errors.As(err, &registered) || registered.Worker != other {
		t.Fatalf("while a worker runs that may have code for it: %v", err)
	}
	s.Exec(t, `DELETE FROM worker_nodes`)

	dead := uuid.New()
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, consumers) VALUES ($1, clock_timestamp() - interval '25 hours', '{b,c,d}')`, dead)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', $1), ('d', $1)`, dead)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 2)`)
	s.deadLetter(t, 1, "a", 1)
	s.deadLetter(t, 2, "a", 0)
	s.open(t, 3, 4)
	for _, unit := range []string{"c", "c#000-7ff", "d"} {
		s.receive(t, unit, 1, 2, 2)
	}
	if err := s.Retire(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	if left := s.count(t, leftOf); left != 0 {
		t.Errorf("%d rows are left", left)
	}
	if others := s.count(t, strings.ReplaceAll(leftOf, "'c'", "'d'")); others != 4 {
		t.Errorf("%d rows of another consumer are left, want 4", others)
	}
	var detail struct {
		Position int64
		Audit    int64 `json:"audit_rows_deleted"`
		Letters  int64 `json:"dead_letters_deleted"`
	}
	if op := s.last(t, &detail); op.Kind != ops.KindRetire || op.By != by || fmt.Sprint(detail) != "{2 1 2}" {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	if err := s.Retire(t.Context(), "c", by); !errors.Is(err, ops.ErrNoCheckpoint) {
		t.Errorf("again: %v", err)
	}

	s.Exec(t, `DELETE FROM ledger`)
	s.work(t, &ledger{})
	s.awaitHandled(t, "1 2") // a new consumer of this name
}

// A worker that registers during a Retire keeps its code.
func TestRetireWhileAWorkerRegisters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 3)
	held := s.begin(t, "held", 1) // any transaction
	if _, err := held.ExecContext(t.Context(), `LOCK TABLE consumer_receipts`); err != nil {
		t.Fatal(err)
	}
	retired := make(chan error, 1)
	go func() { retired <- s.Retire(t.Context(), "c", by) }()
	await(t, "the retirement to wait for the table", func() bool {
		return s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers) VALUES ($1, '{c}')`, uuid.New())
	end(t, held.Commit)
	if err := <-retired; err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM worker_nodes WHERE 'c' = ANY (consumers)`); n != 1 {
		t.Error("the worker has lost its code")
	}
}
