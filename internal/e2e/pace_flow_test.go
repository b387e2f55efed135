package e2e

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
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

// A batch whose time is short commits what it has handled. Nothing is handled twice, and the
// audit and the dead letters are those of the events that were handled. What a scoped consumer
// misses is counted.
func TestSlowBatchCommitsWhatIsDone(t *testing.T) {
	t.Parallel()
	t.Run("all types", func(t *testing.T) {
		t.Parallel()
		checkSlowBatch(t, func(l ledger) consumer.Consumer { return &l })
	})
	t.Run("one type", func(t *testing.T) {
		t.Parallel()
		checkSlowBatch(t, func(l ledger) consumer.Consumer { l.types = []string{"Order"}; return &scopedLedger{l} })
	})
}

func checkSlowBatch(t *testing.T, of func(ledger) consumer.Consumer) {
	d := newLog(t)
	rollBackOne := func() { d.Exec(t, `SELECT nextval('events_global_position_seq')`) }
	appendN(t, d.DB, "Order", "1", 2)  // 1 and 2
	rollBackOne()                      // 3
	appendN(t, d.DB, "Order", "2", 3)  // 4 to 6
	rollBackOne()                      // 7
	appendN(t, d.DB, "Order", "1", 20) // 8 to 27
	appendN(t, d.DB, "Order", "2", 1)  // 28
	var calls, early atomic.Int64
	var batches, events, planned []int // all in the goroutine of the consumer
	w := worker.New(d.DB, newStore(), []consumer.Consumer{of(ledger{name: "slow", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		calls.Add(1)
		if e.GlobalPosition == 5 {
			return errors.New("refused")
		}
		if one[bool](t, d.DB, `SELECT EXISTS (SELECT FROM consumer_dead_letters WHERE global_position > $1)`, e.GlobalPosition) {
			early.Add(1)
		}
		return nil
	}})}, append(quick(), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2),
		worker.WithObserver(observe.On(func(b observe.BatchStarted) { planned = append(planned, b.Events) }),
			observe.On(func(b observe.BatchDone) {
				if b.Err == nil && b.Events > 0 {
					batches, events = append(batches, int(b.To)), append(events, b.Events)
				}
			})))...)
	setShare(w, 0)
	r := runWorker(t, w)
	want := append([]int64{1, 2, 4}, upTo(27)[7:]...)
	awaitHandled(t, d.DB, "slow", want...)
	await(t, "the last event to go to the dead letters", func() bool {
		return one[bool](t, d.DB, `SELECT EXISTS (SELECT FROM consumer_dead_letters WHERE global_position = 28)`)
	})
	r.end(t)
	if n := calls.Load(); n != int64(len(want))+2 {
		t.Errorf("%d calls for %d events and two failures", n, len(want))
	}
	if slices.Max(planned) < 3 || slices.Max(events) != 1 {
		t.Errorf("batches of %d events were planned, and had %d", planned, events)
	}
	if !slices.IsSorted(batches) {
		t.Errorf("checkpoints %v", batches)
	}
	if early.Load() > 0 {
		t.Errorf("%d events were handled after events behind them went to the dead letters", early.Load())
	}
	if got := one[string](t, d.DB, `SELECT string_agg(gap_position || '-' || gap_end || ' ' || missing || ' ' || state, ', ' ORDER BY gap_position) FROM consumer_gap_skips`); got != "3-3 1 void, 7-7 1 void" {
		t.Errorf("the audit has %s", got)
	}
	if got := one[string](t, d.DB, `SELECT string_agg(global_position || ' ' || attempts, ', ' ORDER BY global_position) FROM consumer_dead_letters`); got != "5 2, 6 0, 28 0" {
		t.Errorf("the dead letters are %s", got)
	}
}

// A batch that ends before its last event ends as the role with which it began. What the commit
// runs is run as the role of the handler.
func TestSlowBatchOfAnotherRole(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	role := "tenant_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role+` CASCADE`); d.Exec(t, `DROP ROLE `+role) })
	d.Exec(t, `GRANT INSERT ON ledger TO `+role)
	d.Exec(t, `GRANT USAGE ON ledger_id_seq TO `+role)
	d.Exec(t, `CREATE FUNCTION as_tenant() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		IF current_user NOT LIKE 'tenant%' THEN RAISE 'as %', current_user; END IF; RETURN NULL; END$$`)
	d.Exec(t, `CREATE CONSTRAINT TRIGGER as_tenant AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION as_tenant()`)
	appendN(t, d.DB, "Order", "1", 8)
	failed := worker.WithObserver(observe.On(func(r observe.Retrying) { t.Error(r.Err) }))
	for name, db := range map[string]*sql.DB{"pgx": d.DB, "pq": d.OpenPQ(t)} {
		w := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: name, before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
			_, err := tx.ExecContext(ctx, `SET LOCAL ROLE `+role)
			return err
		}}}, append(quick(), failed)...)
		setShare(w, 0)
		r := runWorker(t, w)
		awaitHandled(t, d.DB, name, upTo(8)...)
		r.Stop()
	}
}

// A handler that commits, over a driver that does not show it, is found when its batch is to end
// early: nothing is written outside of the batch's transaction, and the checkpoint is set back.
func TestSlowBatchWhoseHandlerCommits(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	w := worker.New(d.OpenPQ(t), newStore(), []consumer.Consumer{&ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition != 3 {
			return nil
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ('c', 3)`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `COMMIT`)
		return errors.Join(err, errNotWritten)
	}}}, quick()...)
	setShare(w, 0)
	if err := runWorker(t, w).result(t); !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), "set back from 6 to 2") {
		t.Errorf("Start returned %v", err)
	}
	if at := one[int64](t, d.DB, `SELECT last_position FROM consumer_checkpoints`); at != 2 {
		t.Errorf("the checkpoint is at %d, want 2", at)
	}
}

// The first batch of a very slow consumer that takes all events in one call does not end in
// time. No event is to blame for that, and the error says what is.
func TestEventIsNotBlamedForTheSumOfOthers(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	var named atomic.Int64
	said := make(chan error, 1)
	start(t, d.DB, []consumer.Consumer{&slowSum{bulkLedger{name: "slow"}}},
		worker.WithBatchTimeout(3*time.Second), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(3),
		worker.WithObserver(observe.On(func(r observe.Retrying) {
			if e := (*worker.ConsumerError)(nil); errors.As(r.Err, &e) && e.Position != 0 {
				named.Add(1)
			}
			select {
			case said <- r.Err:
			default:
			}
		})))
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

// slowSum is a consumer for which more than five events are too many in a batch.
type slowSum struct{ bulkLedger }

func (s *slowSum) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if len(events) > 5 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.bulkLedger.HandleBatch(ctx, tx, events)
}
