package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/postgres"
)

// node is a process as far as the database can tell: one worker, its
// connections, and the network between.
type node struct {
	name    string // "worker 2.1": the first life of slot 2
	knobs   Knobs
	net     *network
	relay   *relay
	db      *sql.DB
	worker  *worker.Worker
	armed   atomic.Pointer[failpoint]
	ran     bool         // as its slot saw
	apart   atomic.Bool  // it was led to a second primary
	fate    atomic.Int32 // how it will end: toBreak, toCrash
	history *history.History

	cancel context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	err    error         // what it said; read after done
}

// startNode starts the life-th worker of a slot.
func startNode(ctx context.Context, s Scenario, on *database, h *history.History, slot, life int, i injector) (*node, error) {
	r := fault.Dice(s.Seed, fmt.Sprintf("node %d.%d", slot, life))
	mode := oneOf(r, execModes...)
	n := &node{name: fmt.Sprintf("worker %d.%d", slot, life), knobs: s.Knobs, history: h, net: newNetwork(r), done: make(chan struct{})}
	config := on.config(n.name)
	config.DefaultQueryExecMode = mode
	if s.Faults[asyncWorkersOn] > 0 {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	n.net.carry(config)
	var err error
	if n.relay, err = newRelay(config); err != nil {
		return nil, err
	}
	n.db = stdlib.OpenDB(*config)
	n.db.SetMaxOpenConns(poolSize(len(s.Scope)))
	n.db.SetMaxIdleConns(poolSize(len(s.Scope)))

	n.newWorker(s, h, i, n.relay.url(config))
	config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	ctx, n.cancel = context.WithCancel(ctx)
	go func() {
		defer close(n.done)
		n.err = n.worker.Start(ctx)
	}()
	return n, nil
}

// newWorker gives the node its worker.
func (n *node) newWorker(s Scenario, h *history.History, i injector, listen string) {
	var consumers []consumer.Consumer
	for _, scope := range s.Scope {
		consumers = append(consumers, &bookkeeper{
			scope: scope, node: n, injector: i,
			dice: fault.Dice(s.Seed, fmt.Sprintf("consumer %s on %s", scope.Name, n.name)),
		})
	}
	n.worker = worker.New(n.db, postgres.NewStore(nil), consumers, append(s.Knobs.options(listen), worker.WithObserver(observer(h, n.name)))...)
}

// poolSize is one connection for each consumer, and the worker's own.
func poolSize(consumers int) int { return consumers + 4 }

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

// ready waits until the worker runs. It returns false if the worker, or ctx,
// ended before.
func (n *node) ready(ctx context.Context) bool {
	for n.worker.Status().State != worker.StateRunning {
		select {
		case <-n.done:
			return false
		default:
		}
		if !backoff.Sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
	n.ran = true
	return true
}

// await waits for the end of the worker that was asked to end, and frees what
// it had. The worker's time to end covers a batch in hand and its leaving.
func (n *node) await(asked string) history.Exit {
	x := history.Exit{Worker: n.name, Asked: asked, Bound: n.knobs.BatchTimeout + 10*time.Second}
	late := time.NewTimer(x.Bound)
	defer late.Stop()
	select {
	case <-n.done:
		x.InTime, x.Error = true, textOf(n.err)
		switch {
		case n.broke():
			x.Asked = history.ExitBroke
		case errors.Is(n.err, worker.ErrOutcomeUnknown):
			x.Asked = history.ExitOutage
		}
	case <-late.C:
	}
	return x
}

// cleanUp frees what a worker that has ended, or was given up, leaves behind.
func (n *node) cleanUp() {
	n.cancel()
	n.net.cleanUp()
	n.relay.close()
	_ = n.db.Close() // its connections are broken as a rule
}
