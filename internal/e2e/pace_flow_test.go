package e2e

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// waits returns a handler that takes some time for each event.
func waits(each time.Duration, calls *atomic.Int64) func(context.Context, *sql.Tx, store.PersistedEvent) error {
	return func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		calls.Add(1)
		select {
		case <-time.After(each): // the handler's work
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Events that take longer together than a batch may take are handled in smaller batches,
// from the start.
func TestSlowHandlerHasSmallBatches(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 60)
	var calls atomic.Int64
	start(t, d.DB, []consumer.Consumer{&ledger{name: "slow", before: waits(40*time.Millisecond, &calls)}}, worker.WithBatchTimeout(2*time.Second))
	awaitHandled(t, d.DB, "slow", upTo(60)...)
	if n := calls.Load(); n > 90 {
		t.Errorf("%d calls for 60 events", n)
	}
}

// The first batch of a very slow handler does not end in time. No event is to blame for that,
// and the error says what is.
func TestEventIsNotBlamedForTheSumOfOthers(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	var calls, named atomic.Int64
	said := make(chan error, 1)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "slow", before: waits(400*time.Millisecond, &calls)}},
		worker.WithBatchTimeout(3*time.Second), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(3),
		worker.WithObserver(worker.Observer{Retrying: func(r worker.Retry) {
			if e := (*worker.ConsumerError)(nil); errors.As(r.Err, &e) && e.Position != 0 {
				named.Add(1)
			}
			select {
			case said <- r.Err:
			default:
			}
		}}))
	awaitHandled(t, d.DB, "slow", upTo(10)...)
	select {
	case err := <-said:
		if !strings.Contains(err.Error(), "lower WithBatchSize, or raise WithBatchTimeout") {
			t.Errorf("the error names no remedy: %v", err)
		}
	default:
		t.Error("no batch has failed")
	}
	if n := named.Load(); n > 0 {
		t.Errorf("%d errors name an event", n)
	}
}
