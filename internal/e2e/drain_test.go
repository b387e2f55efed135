package e2e

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

var byOperator = ops.By{Operator: "op", Reason: "the node goes"}

// A worker that is drained finishes the batch in flight, hands each consumer over as soon as it
// can, is given none, and stays until the program stops it.
func TestDrainWorker(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	inHand, release := make(chan struct{}), make(chan struct{})
	slow := &ledger{name: "slow", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		close(inHand)
		<-release
		return nil
	}}
	var told observe.WorkerStopped
	first := start(t, d.DB, []consumer.Consumer{slow, &ledger{name: "free"}}, worker.WithHeartbeatTimeout(time.Hour), worker.WithBatchTimeout(time.Hour), worker.WithShutdownTimeout(0),
		worker.WithObserver(observe.On(func(w observe.WorkerStopped) { told = w })))
	awaitHandled(t, d.DB, "free", 1)
	<-inHand
	o := operator(t, d)
	if err := o.DrainWorker(t.Context(), first.ID(), byOperator); err != nil {
		t.Fatal(err)
	}
	if err := o.DrainWorker(t.Context(), first.ID(), byOperator); !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("once more: %v", err)
	}
	owner := func(consumer string) string {
		return one[string](t, d.DB, `SELECT coalesce((SELECT worker_id::text FROM consumer_assignments WHERE consumer_name = $1), '')`, consumer)
	}
	await(t, "the free consumer to be handed back", func() bool { return owner("free") == "" })
	second := start(t, d.DB, []consumer.Consumer{&ledger{name: "slow"}, &ledger{name: "free"}}, worker.WithHeartbeatTimeout(time.Hour))
	await(t, "the free consumer to be handed over", func() bool { return owner("free") == second.ID().String() })
	if got := owner("slow"); got != first.ID().String() {
		t.Errorf("the consumer in hand is %q's", got)
	}
	if got := first.Status().State; got != observe.StateDraining {
		t.Errorf("with a batch in flight it is %s", got)
	}
	close(release)
	await(t, "the last consumer to be handed over", func() bool { return owner("slow") == second.ID().String() })
	await(t, "the worker to be drained", func() bool { return first.Status().State == observe.StateDrained })
	if !told.Drained || told.Err != nil {
		t.Errorf("the observer was told %+v", told)
	}
	if err := first.Live(); err != nil {
		t.Errorf("a drained worker is not live: %v", err)
	}
	if len(first.Ready(t.Context(), time.Hour)) != 1 {
		t.Error("a drained worker is ready")
	}
	if err := o.DrainWorker(t.Context(), first.ID(), byOperator); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("of one that has left: %v", err)
	}
	stopped := func(w interface{ ID() uuid.UUID }, how string) {
		t.Helper()
		all, err := o.StoppedWorkers(t.Context())
		if err != nil || !slices.ContainsFunc(all, func(s ops.StoppedWorker) bool {
			return s.ID == w.ID() && s.How == how && s.PID == os.Getpid() && s.Host != "" && s.Build != "" && !s.StartedAt.After(s.StoppedAt) && s.DeclaredBy == uuid.Nil
		}) {
			t.Errorf("%s is not told as %s: %+v, %v", w.ID(), how, all, err)
		}
	}
	stopped(first, "drained")
	appendN(t, d.DB, "Order", "2", 1)
	awaitHandled(t, d.DB, "slow", 1, 2)
	select {
	case err := <-first.done:
		t.Fatalf("Start has returned %v", err)
	default:
	}
	first.Stop()
	if err := first.result(t); err != nil || first.Status().State != observe.StateStopped {
		t.Errorf("Start: %v, state %s", err, first.Status().State)
	}
	second.end(t)
	stopped(second, "stopped")
	failing := start(t, d.DB, []consumer.Consumer{&ledger{name: "slow", before: func(context.Context, *sql.Tx, store.PersistedEvent) error { return errors.New("no") }}}, worker.WithMaxConsecutiveFailures(1))
	appendN(t, d.DB, "Order", "3", 1)
	if err := failing.result(t); err == nil {
		t.Error("the worker has not failed")
	}
	stopped(failing, "failed")
	all, err := o.Operations(t.Context(), ops.OperationFilter{}, 10)
	if err != nil || len(all) != 1 || all[0].Kind != ops.KindDrain || all[0].By != byOperator || string(all[0].Detail) != `{"worker": "`+first.ID().String()+`"}` {
		t.Errorf("recorded: %+v, %v", all, err)
	}
}

// The end of its context ends a drained worker, too.
func TestDrainedWorkerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}, quick()...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	await(t, "the worker to run", func() bool { return w.Status().State == observe.StateRunning })
	o := operator(t, d)
	if err := o.DrainWorker(t.Context(), uuid.New(), byOperator); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("of no worker: %v", err)
	}
	if err := o.DrainWorker(t.Context(), w.ID(), byOperator); err != nil {
		t.Fatal(err)
	}
	await(t, "the worker to be drained", func() bool { return w.Status().State == observe.StateDrained })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Start: %v", err)
	}
}
