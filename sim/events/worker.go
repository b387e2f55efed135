package events

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/postgres"
)

// startNode starts the life-th worker of a slot.
func startNode(ctx context.Context, s Scenario, on *server.Database, h *history.History, slot, life int, i Injector) (*node, error) {
	m, err := stage.NewMachine(s.equipment(h), on, h, slot, life)
	if err != nil {
		return nil, err
	}
	n := &node{Machine: m, knobs: s.Knobs}
	n.newWorker(s, h, i, n.Listening())
	n.Config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	n.Launch(ctx, n.worker.Start)
	return n, nil
}

// newWorker gives the node its worker.
func (n *node) newWorker(s Scenario, h *history.History, i Injector, listen string) {
	var consumers []consumer.Consumer
	for _, scope := range s.Scope {
		keeper := func(unit string) *LedgerConsumer {
			return &LedgerConsumer{
				scope: scope, unit: unit, node: n, Injector: i,
				Dice: fault.Dice(s.Seed, fmt.Sprintf("consumer %s on %s", unit, n.Name)),
			}
		}
		scope.Types = slices.Concat(scope.Types, scope.Sometimes)
		if !scope.Partitioned {
			consumers = append(consumers, keeper(scope.Name))
			continue
		}
		consumers = append(consumers, &partitioned{
			whole: keeper(scope.Name), count: fault.OneOf(fault.Dice(s.Seed, "partitions of "+n.Name), partitionCounts...), all: map[string]*LedgerConsumer{},
			part: func(part string) *LedgerConsumer { return keeper(strings.TrimSuffix(scope.Name+"#"+part, "#")) },
		})
	}
	n.worker = worker.New(n.DB, postgres.NewStore(nil), consumers, append(s.Knobs.options(listen), worker.WithLogger(nil), worker.WithObserver(observer(h, n.Name)), worker.WithObserver(observe.On(func(b observe.BatchDone) { n.excuse(b.Batch, i) })))...)
}

// equipment is what the machine of a worker has.
func (s Scenario) equipment(h *history.History) stage.Equipment {
	return stage.Equipment{
		Seed: s.Seed, Pool: PoolSize(len(s.Scope)), Settings: s.settings, Async: s.Faults[stage.AsyncWorkersOn] > 0,
		// Not where handlers end their transactions. The oracle expects that this is detected at
		// once, which takes a driver that the library knows.
		Plain: s.Faults[stage.LeftRow.Name] > 0 && s.Faults[contractOn] == 0,
		Watch: func(c *pgx.ConnConfig, who string) { s.watchMerges(c, h, who) },
	}
}

// PoolSize is a connection for each consumer, four for parts of a consumer, four for the worker.
func PoolSize(consumers int) int { return consumers + 4 + 4 }

func (k Knobs) options(listen string) []worker.Option {
	return []worker.Option{
		worker.WithBatchSize(k.BatchSize),
		worker.WithBatchTimeout(k.BatchTimeout),
		// Each of several stalls in a row can cost a batch its time.
		worker.WithMaxConsecutiveFailures(20),
		worker.WithPollInterval(50 * time.Millisecond),
		worker.WithMaxPollInterval(time.Second),
		worker.WithDispatcherStrategy(k.Dispatcher),
		worker.WithDispatcherInterval(k.DispatcherEvery),
		worker.WithNotifyConnectionString(listen),
		worker.WithNotifyChannel(Channel),
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

// RunWorker runs a worker of consumers in this process, over connections of config,
// until ctx ends or it fails. An order lets a handler break the rules.
func RunWorker(ctx context.Context, r stage.Role, s Scenario, config *pgx.ConnConfig, orders <-chan struct{}, tell func(history.Record)) error {
	h, o := history.Tell(time.Now(), tell), &byOrder{}
	s.watchMerges(config, h, r.Name)
	n := &node{Machine: stage.OwnProcess(r.Name, h, config, PoolSize(len(s.Scope))), knobs: s.Knobs}
	defer n.DB.Close()
	n.newWorker(s, h, o, r.URL)
	config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	var ordered sync.WaitGroup
	defer ordered.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ordered.Go(func() {
		o.wait(ctx, orders, func() { h.Add(r.Name, "", history.FaultOver, history.Injection{Fault: history.Breaches}) })
	})
	return n.worker.Start(ctx)
}

// byOrder injects nothing, but lets handlers break the rules when it is told to.
type byOrder struct{ told atomic.Bool }

func (o *byOrder) Inject(ctx context.Context, b *LedgerConsumer, d Delivered) (bool, error) {
	return b.breach(ctx, d, func() bool { return o.told.CompareAndSwap(true, false) })
}

func (*byOrder) Count(history.Fault) {}

func (*byOrder) Breached(history.Breach) {}

// wait waits for orders until ctx ends. It calls inVain if no event followed an order.
func (o *byOrder) wait(ctx context.Context, orders <-chan struct{}, inVain func()) {
	const enough = 2 * time.Second
	for {
		select {
		case <-orders:
		case <-ctx.Done():
			return
		}
		o.told.Store(true)
		backoff.Sleep(ctx, enough)
		if o.told.CompareAndSwap(true, false) {
			inVain()
		}
	}
}
