package worker_test

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store/consumer"
)

// dispatchers are the ways to learn of what is new; notify needs a connection
// string, too.
func dispatchers() map[string][]worker.Option {
	return map[string][]worker.Option{
		"poll":   {worker.WithDispatcherStrategy(worker.DispatcherStrategyPoll)},
		"notify": {worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify)},
	}
}

// Who is told of a change does not wait for its own next look, which is an
// hour away.
func TestIdleConsumerIsToldThatItWasMoved(t *testing.T) {
	for name, options := range dispatchers() {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 3)
			options = append(options, worker.WithNotifyConnectionString(d.URL), worker.WithPollInterval(time.Hour), worker.WithMaxPollInterval(time.Hour))
			start(t, d.DB, []consumer.Consumer{&ledger{name: "moved"}}, options...)
			awaitHandled(t, d.DB, "moved", 1, 2, 3)
			for _, want := range [][]int64{{1, 2, 3, 2, 3}, {1, 2, 3, 2, 3, 2, 3}} {
				d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 1, revision = revision + 1 WHERE consumer_name = 'moved'`)
				if err := changes.Ring(t.Context(), d.DB, ident.Table{Name: "consumer_checkpoints_changes"}); err != nil {
					t.Fatal(err)
				}
				awaitHandled(t, d.DB, "moved", want...)
			}
		})
	}
}
