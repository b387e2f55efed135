package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/postgres"
)

// node is a process as far as the database can tell: one worker of consumers, and its
// machine.
type node struct {
	*machine
	knobs  Knobs
	worker *worker.Worker
	apart  atomic.Bool  // it was led to a second primary
	fate   atomic.Int32 // how it will end: toBreak, toCrash
	// undone is the batch in hand that a handler has rolled back; nil: none.
	undone atomic.Pointer[history.Breach]
}

// startNode starts the life-th worker of a slot.
func startNode(ctx context.Context, s Scenario, on *database, h *history.History, slot, life int, i injector) (*node, error) {
	m, err := newMachine(s, on, h, slot, life, poolSize(len(s.Scope)))
	if err != nil {
		return nil, err
	}
	n := &node{machine: m, knobs: s.Knobs}
	n.newWorker(s, h, i, n.listening())
	n.config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	n.launch(ctx, n.worker.Start)
	return n, nil
}

// newWorker gives the node its worker.
func (n *node) newWorker(s Scenario, h *history.History, i injector, listen string) {
	var consumers []consumer.Consumer
	for _, scope := range s.Scope {
		book := func(unit string) *bookkeeper {
			return &bookkeeper{
				scope: scope, unit: unit, node: n, injector: i,
				dice: fault.Dice(s.Seed, fmt.Sprintf("consumer %s on %s", unit, n.name)),
			}
		}
		scope.Types = slices.Concat(scope.Types, scope.Sometimes)
		if !scope.Partitioned {
			consumers = append(consumers, book(scope.Name))
			continue
		}
		consumers = append(consumers, &partitioned{
			whole: book(scope.Name), count: oneOf(fault.Dice(s.Seed, "partitions of "+n.name), partitionCounts...), all: map[string]*bookkeeper{},
			part: func(part string) *bookkeeper { return book(strings.TrimSuffix(scope.Name+"#"+part, "#")) },
		})
	}
	n.worker = worker.New(n.db, postgres.NewStore(nil), consumers, append(s.Knobs.options(listen), worker.WithLogger(nil), worker.WithObserver(observer(h, n.name)), worker.WithObserver(observe.On(func(b observe.BatchDone) { n.excuse(b.Batch, i) })))...)
}

// poolSize is one connection for each consumer, a few for the parts of one, and the
// worker's own.
func poolSize(consumers int) int { return consumers + 4 + 4 }

func (k Knobs) options(listen string) []worker.Option {
	return []worker.Option{
		worker.WithBatchSize(k.BatchSize),
		worker.WithBatchTimeout(k.BatchTimeout),
		// A stall can cost a batch its time, and does so several times in a
		// row if the dice want it.
		worker.WithMaxConsecutiveFailures(20),
		worker.WithPollInterval(50 * time.Millisecond),
		worker.WithMaxPollInterval(time.Second),
		worker.WithDispatcherStrategy(k.Dispatcher),
		worker.WithDispatcherInterval(k.DispatcherEvery),
		worker.WithNotifyConnectionString(listen),
		worker.WithNotifyChannel(channel),
		worker.WithHeartbeatInterval(k.HeartbeatInterval),
		worker.WithHeartbeatTimeout(k.HeartbeatTimeout),
		worker.WithRebalanceInterval(k.RebalanceInterval),
		worker.WithLeaderStrategy(k.Leader),
		worker.WithGapPolicy(k.GapPolicy),
		worker.WithStaleGapThreshold(k.StaleGapThreshold),
		worker.WithStaleGapHarborLag(k.HarborLag),
		worker.WithMaxOpenRanges(k.MaxOpenRanges),
	}
}

func (n *node) id() string { return n.worker.ID().String() }

func (n *node) ready(ctx context.Context) bool {
	return n.awaitRunning(ctx, func() bool { return n.worker.Status().State == worker.StateRunning })
}

func (n *node) stop() { n.worker.Stop() }

// await waits for the end of the worker that was asked to end. The worker's time to
// end covers a batch in hand and its leaving.
func (n *node) await(asked string) history.Exit {
	x := n.awaitEnd(asked, n.knobs.BatchTimeout+n.bounds.Of(leaving))
	switch {
	case !x.InTime:
	case n.broke():
		x.Asked = history.ExitBroke
	case errors.Is(n.err, worker.ErrOutcomeUnknown):
		x.Asked = history.ExitOutage
	}
	return x
}
