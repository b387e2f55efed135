package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// recoveries counts, by condition, how often its end was told.
type recoveries struct {
	mu sync.Mutex
	n  map[observe.Condition]int
}

func (r *recoveries) add(about observe.Recovered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[observe.Condition]int{}
	}
	r.n[about.Condition]++
}

func (r *recoveries) of(trouble observe.Condition) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[trouble]
}

// Each kind of condition is told, ends, and its end is told once, by the Observer
// and in the log.
func TestTheEndOfEachConditionIsTold(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var fails atomic.Int32
	release, deaf := make(chan struct{}), atomic.Bool{}
	c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		if deaf.CompareAndSwap(true, false) {
			<-release
			return ctx.Err()
		}
		if fails.Add(-1) >= 0 {
			return errors.New("refused")
		}
		return nil
	}}
	var cut cutter
	var log lines
	var over recoveries
	w := start(t, cut.open(t, d), []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(3),
		worker.WithHeartbeatTimeout(time.Minute), worker.WithBatchTimeout(5*time.Second), worker.WithStaleGapThreshold(stale), worker.WithMaxOpenRanges(1), worker.WithLogger(&log),
		worker.WithObserver(observe.On(over.add)))
	want := map[observe.Condition]int{}
	ended := func(trouble observe.Condition) {
		t.Helper()
		want[trouble]++
		await(t, fmt.Sprintf("the troubles %v to be over", want), func() bool {
			for trouble, n := range want {
				if over.of(trouble) < n {
					return false
				}
			}
			return true
		})
	}
	says := func(text string) func() bool {
		return func() bool {
			s := statusOf(w.Worker, "c")
			return s.LastError != nil && strings.Contains(s.LastError.Error(), text)
		}
	}
	more := func() { t.Helper(); appendN(t, d.DB, "Order", "1", 1) }

	more()
	await(t, "the consumer to run", func() bool { return len(handled(t, d.DB, "c")) == 1 })
	fails.Store(2)
	more()
	ended(observe.ConditionBatch)

	fails.Store(3)
	more()
	await(t, "the pause", func() bool { return statusOf(w.Worker, "c").Paused != nil })
	if err := operator(t, d).Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	want[observe.ConditionPaused]++
	ended(observe.ConditionBatch)

	cut.before.Store(1)
	more()
	ended(observe.ConditionDatabase)

	lock, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(`SELECT FROM consumer_checkpoints FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	more()
	await(t, "the wait for a lock to be told", says("waits for a lock"))
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	ended(observe.ConditionLock)

	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	await(t, "the frontier to fail", func() bool { return w.Status().FrontierError != nil })
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	ended(observe.ConditionFrontier)

	before := len(log.with("transaction stays open")) // on a slow machine, some that commit do for a moment
	first := beginAppend(t, d.DB, "Order", "first", 1)
	more()
	second := beginAppend(t, d.DB, "Order", "second", 1)
	more()
	await(t, "the consumer to wait for a doubt to end", says("WithMaxOpenRanges"))
	await(t, "both transactions to be told", func() bool { return len(log.with("transaction stays open")) >= before+2 })
	if err := errors.Join(first.Rollback(), second.Rollback()); err != nil {
		t.Fatal(err)
	}
	want[observe.ConditionTransaction] = before + 2
	ended(observe.ConditionDoubts)

	d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	ended(observe.ConditionCoordination)

	deaf.Store(true)
	more()
	await(t, "the handler to be overdue", func() bool { return errors.Is(statusOf(w.Worker, "c").LastError, worker.ErrHandlerOverdue) })
	close(release)
	want[observe.ConditionOverdue]++
	ended(observe.ConditionBatch)

	w.end(t)
	lines := log.with("recovered")
	total := 0
	for trouble, n := range want {
		told := over.of(trouble)
		total += told
		if got := len(log.with("recovered condition " + string(trouble))); got != told {
			t.Errorf("the log tells of the end of %s %d times, the Observer %d times", trouble, got, told)
		}
		if trouble != observe.ConditionTransaction && told != n {
			t.Errorf("the end of %s is told %d times, want %d", trouble, told, n)
		}
	}
	if len(lines) != total {
		t.Errorf("the log tells of %d ends, want %d: %v", len(lines), total, lines)
	}
}
