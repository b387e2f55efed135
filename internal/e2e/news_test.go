package e2e

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// dispatchers are the ways to learn of what is new; notify needs a connection
// string, too.
func dispatchers() map[string][]worker.Option {
	return map[string][]worker.Option{
		"poll":   {worker.WithDispatcherStrategy(worker.DispatcherStrategyPoll)},
		"notify": {worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify)},
	}
}

// Who is told of a change does not wait for its own next poll, which is an
// hour away.
func TestIdleConsumerIsToldThatItWasMoved(t *testing.T) {
	t.Parallel()
	for name, options := range dispatchers() {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 3)
			options = append(options, worker.WithNotifyConnectionString(d.URL), worker.WithPollInterval(time.Hour), worker.WithMaxPollInterval(time.Hour))
			start(t, d.DB, []consumer.Consumer{&ledger{name: "moved"}}, options...)
			awaitHandled(t, d.DB, "moved", 1, 2, 3)
			for _, want := range [][]int64{{1, 2, 3, 2, 3}, {1, 2, 3, 2, 3, 2, 3}} {
				d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 1, revision = revision + 1 WHERE consumer_name = 'moved'`)
				if err := changes.Notify(t.Context(), d.DB, ident.Table{Name: "consumer_checkpoints_changes"}); err != nil {
					t.Fatal(err)
				}
				awaitHandled(t, d.DB, "moved", want...)
			}
		})
	}
}

// What the store says when it appends arrives on the channel that both name.
func TestAppendsAreNotified(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	const channel = "some_events"
	notifying := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel(channel)))
	var events atomic.Int32
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}},
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString(d.URL), worker.WithNotifyChannel(channel),
		worker.WithObserver(observe.On(func(w observe.Woken) {
			if w.Source == observe.WakeupEvents {
				events.Add(1)
			}
		})))
	await(t, "a wakeup because the listener is connected", func() bool { return events.Load() == 1 })
	for want := int32(2); want <= 4; want++ {
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := notifying.Append(context.Background(), tx, store.Any(), []store.Event{event("Order", "1")}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		await(t, "a wakeup because of an append", func() bool { return events.Load() == want })
	}
	awaitHandled(t, d.DB, "all", 1, 2, 3)
}
