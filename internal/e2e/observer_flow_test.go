package e2e

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// elsewhere names the tests that see the other events, each with what it
// needs: another role, another process, connections that die in silence.
var elsewhere = map[string]string{
	"RolesHidden":    "TestStartNamesEveryMissingPrivilege",
	"DeadBatchEnded": "TestProcessStoppedAndWoken",
	"Rescaled":       "TestAConsumerIsSplitAndMerged",
	"ScopeChanged":   "TestBuildsThatDifferDoNotRunSideBySide",
	"PoolSwept":      "TestSweep",
}

// causeEveryEvent makes four workers report every event, but those of the tests elsewhere.
func causeEveryEvent(t *testing.T, s *sightings, opts ...worker.Option) {
	t.Helper()
	a := &acts{newLog(t), s, append([]worker.Option{
		worker.WithMaxConsecutiveFailures(2), worker.WithStaleGapThreshold(20 * time.Millisecond),
	}, opts...)}
	a.DB.SetMaxIdleConns(1)
	a.meetFailures(t)
	a.meetPause(t)
	a.meetDeafness(t)
	a.meetCommit(t)
	for _, hook := range eventTypes(t) {
		if elsewhere[hook] == "" && s.first(hook) < 0 {
			t.Errorf("%s was never reported", hook)
		}
	}
}

// acts are the parts of causeEveryEvent, with a worker each.
type acts struct {
	*pgtest.Database
	*sightings
	opts []worker.Option
}

func (a *acts) start(t *testing.T, c consumer.Consumer, opts ...worker.Option) *running {
	return start(t, a.DB, []consumer.Consumer{c}, append(opts, a.opts...)...)
}

func (a *acts) await(t *testing.T, hooks ...string) {
	t.Helper()
	for _, hook := range hooks {
		await(t, hook, func() bool { return a.first(hook) >= 0 })
	}
}

// awaitAgain waits for the reports of two failed attempts.
func (a *acts) awaitAgain(t *testing.T, hook string) {
	t.Helper()
	await(t, "two reports of "+hook, func() bool { return a.last(hook) > a.first(hook) })
}

// meetFailures has a consumer and a database that fail.
func (a *acts) meetFailures(t *testing.T) {
	a.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at) VALUES (gen_random_uuid(), clock_timestamp() - interval '1 day')`)
	open := beginAppend(t, a.DB, "Order", "open", 1)
	appendN(t, a.DB, "Order", "1", 3)
	w := a.start(t, newRefusing("c", 3), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithGapSkipRetention(100*time.Millisecond))
	awaitHandled(t, a.DB, "c", 2)
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	a.await(t, "Skipped", "FrontierBlocked", "DeadLettered", "Retrying", "Woken", "StaleWorkersRemoved", "Rebalanced")
	await(t, "PoolTooSmall", func() bool {
		useAtOnce(t, a.DB, 8)
		return a.first("PoolTooSmall") >= 0
	})
	if err := operator(t, a.Database).RetryDeadLetters(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	a.await(t, "DeadLetterFailed")
	lock := a.lockConsumers(t)
	appendN(t, a.DB, "Order", "other", 1)
	a.await(t, "ConsumerWaiting")
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	a.Exec(t, `DELETE FROM worker_nodes`)
	a.await(t, "WorkerReregistered")
	for _, break_ := range []struct{ hook, how, mend string }{
		{"FrontierFailed", `ALTER SEQUENCE events_global_position_seq CACHE 10`, `ALTER SEQUENCE events_global_position_seq CACHE 1`},
		{"CoordinationFailed", `ALTER TABLE worker_nodes RENAME TO hidden`, `ALTER TABLE hidden RENAME TO worker_nodes`},
		{"TaskFailed", `ALTER TABLE consumer_gap_skips RENAME TO hidden`, `ALTER TABLE hidden RENAME TO consumer_gap_skips`},
	} {
		a.Exec(t, break_.how)
		a.awaitAgain(t, break_.hook)
		a.Exec(t, break_.mend)
	}
	a.await(t, "Recovered")
	a.stop(t, w, nil)
}

// lockConsumers locks the rows of all consumers.
func (a *acts) lockConsumers(t *testing.T) *sql.Tx {
	t.Helper()
	lock, err := a.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(`SELECT FROM consumer_checkpoints FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	return lock
}

// meetPause has a consumer that is paused.
func (a *acts) meetPause(t *testing.T) {
	w := a.start(t, newRefusing("paused", 3), worker.WithFailurePolicy(worker.FailPause))
	a.await(t, "ConsumerPaused", "ConsumerUnowned")
	a.stop(t, w, nil)
}

// meetDeafness has a handler that ignores its context, and a listener that
// hears nothing.
func (a *acts) meetDeafness(t *testing.T) {
	deaf := newDeaf("deaf")
	w := a.start(t, deaf, worker.WithBatchTimeout(100*time.Millisecond), worker.WithShutdownTimeout(10*time.Millisecond),
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString("postgres://127.0.0.1:1/nowhere"))
	a.await(t, "HandlerOverdue")
	a.awaitAgain(t, "NotifyFailed")
	w.Stop()
	a.await(t, "ShutdownTimedOut")
	close(deaf.release)
	a.stop(t, w, nil)
}

// meetCommit has a handler that ends its transaction.
func (a *acts) meetCommit(t *testing.T) {
	w := a.start(t, &ledger{name: "commits", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		return endings["COMMIT"].end(ctx, tx)
	}})
	a.stop(t, w, worker.ErrTransactionEnded)
	a.await(t, "TransactionEnded")
}

func (a *acts) stop(t *testing.T, w *running, want error) {
	t.Helper()
	if want == nil {
		w.Stop()
	}
	if err := w.result(t); !errors.Is(err, want) {
		t.Fatalf("Start returned %v, want %v", err, want)
	}
}
