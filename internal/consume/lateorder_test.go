package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// rangeLog is a store that cannot be bound, so that the wrapper of a test stays in place.
type rangeLog struct {
	store.Log
	store.RangeReader
	store.SequenceNamer
}

func newRangeLog() rangeLog {
	s := storepostgres.NewStore(nil)
	return rangeLog{s, s, s}
}

// interruptedLog calls a function after its next read.
type interruptedLog struct {
	rangeLog
	afterRead *func()
}

func (l interruptedLog) interrupt() {
	if do := *l.afterRead; do != nil {
		*l.afterRead = nil
		do()
	}
}

func (l interruptedLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	defer l.interrupt()
	return l.rangeLog.ReadEvents(ctx, q, after, limit)
}

func (l interruptedLog) ReadRanges(ctx context.Context, q store.Querier, ranges []store.Range, limit int) ([]store.PersistedEvent, error) {
	defer l.interrupt()
	return l.rangeLog.ReadRanges(ctx, q, ranges, limit)
}

// A store may draw a position before it locks the aggregate. Then the aggregate's next
// version can be among the new rows while the version before it is still open. Both commit
// between the two reads of one iteration: the late one must come first nevertheless.
func TestAggregateOrderWhenBothCommitDuringRead(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	afterRead := new(func())
	h := newStepper(t, d.DB, interruptedLog{newRangeLog(), afterRead},
		steppedConsumer{"all", nil, new(atomic.Bool)}, func(c *Config) { c.StaleGapThreshold = 10 * time.Millisecond })

	version1 := beginOne(t, d.DB, "late") // 1
	appendOne(t, d.DB, "other")           // 2
	h.stepFrontier(t, "a doubt", func(v *frontier.Value) bool { return v.Safe == 2 && len(v.Doubts) == 1 })
	h.handle(t) // passes position 1

	version2, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = version2.Rollback() }()                                                                   // no effect after Commit
	if _, err := version2.ExecContext(t.Context(), `SELECT nextval('events_global_position_seq')`); err != nil { // 3
		t.Fatal(err)
	}
	appendOne(t, d.DB, "other") // 4
	h.stepFrontier(t, "two doubts", func(v *frontier.Value) bool { return v.Safe == 4 && len(v.Doubts) == 2 })
	*afterRead = func() {
		if err := version1.Commit(); err != nil {
			t.Error(err)
		}
		if _, err := version2.ExecContext(t.Context(), `
INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
VALUES (3, 'A', 'late', 2, $1::uuid, 'happened', '')`, uuid.NewString()); err != nil {
			t.Error(err)
		}
		if err := version2.Commit(); err != nil {
			t.Error(err)
		}
	}
	h.handle(t)
	h.stepFrontier(t, "the doubts to end", func(v *frontier.Value) bool { return len(v.Doubts) == 0 })
	h.handle(t)

	var order string
	if err := d.DB.QueryRow(`SELECT string_agg(position::text, ' ' ORDER BY id) FROM ledger`).Scan(&order); err != nil || order != "2 1 4 3" {
		t.Fatalf("handled in the order %s, want 2 1 4 3; %v", order, err)
	}
}
