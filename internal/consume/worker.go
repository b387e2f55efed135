package consume

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Worker is the engine of a worker.Worker, which documents its methods. It starts once.
type Worker struct {
	shared
	log       store.Log
	consumers []consumer.Consumer
	life      runtime.Life
	startup   runtime.Start
	state     atomic.Value // observe.State
	pool      *runtime.Pool
	listener  runtime.Listener // for DispatcherStrategyNotify
	health    health
	ended     chan struct{} // closed when Start returns

	// The fields below ready are set by prepare. Other goroutines may read them once ready
	// is closed.
	ready         chan struct{}
	incarnation   string // of the server, as an SQL expression
	channel       string // for changes outside the log, with DispatcherStrategyNotify
	waitChannel   string // for requests and reports of awaited positions, with DispatcherStrategyNotify
	supervisor    *supervisor
	placer        *placer
	progressWatch *progressWatch
	logReads      *logReads
	audit         *audit
	arrivals      *arrivals
	waits         arrival.Waits // of WaitFor
}

// New makes a Worker. It does no I/O: Start checks the arguments.
func New(db *sql.DB, eventStore store.Log, consumers []consumer.Consumer, c Config) *Worker {
	w := &Worker{
		shared:    shared{id: uuid.New(), cfg: c, awaited: arrival.NewCallers(), compactNow: wakeup.New()},
		log:       eventStore,
		consumers: consumers,
		ended:     make(chan struct{}),
		ready:     make(chan struct{}),
	}
	w.db, w.limits = pgdriver.NewPool(db), usualLimits
	w.source, w.failed = observe.Worker{Kind: observe.KindEvents, ID: w.id}, w.taskFailed
	w.observers = runtime.NewObservers(w.source, w.cfg.Loggers, w.cfg.Observers)
	w.startup = runtime.Start{
		Package: "worker", DB: w.db, Least: minPool, Further: "one more for every consumer that is to run at the same time",
		Locks: c.LeaderStrategy == LeaderStrategyAdvisory, Limit: c.RetryLimit, Option: "WithRetryLimit", Observers: w.observers,
	}
	w.pool = runtime.NewPool(w.db, ErrPoolClosed, w.observers)
	w.sweepNow = w.pool.SweepNow
	w.listener = runtime.Listener{
		Package: "worker", Of: "events", ConnString: c.NotifyConnectionString, Echo: "worker_echo_" + w.id.String(), Every: runtime.EchoEvery,
		NoSender:  fmt.Errorf("worker: events are appended but nothing notifies channel %q: make the stores that append with storepostgres.WithNotifyChannel(%[1]q), or name their channel by WithNotifyChannel", c.NotifyChannel),
		Observers: w.observers, Exec: w.exec,
		Head: func() int64 { head, _ := w.frontier.Head(); return head },
	}
	w.life = runtime.Life{
		Package: "worker", Goexit: errGoexit, Again: ErrAlreadyStarted, DrainFor: c.ShutdownTimeout,
		Grace: w.limits.stopGrace, Entered: w.enter, Late: w.abandon,
	}
	w.health = health{state: &w.state, ready: w.ready, listener: &w.listener, env: &w.env, cfg: &w.cfg}
	w.state.Store(observe.StateNew)
	return w
}

// ID identifies the worker in the tables.
func (w *Worker) ID() uuid.UUID { return w.id }

// Stop asks the worker to finish the batches in flight and end.
func (w *Worker) Stop() { w.life.Ask() }

// Start runs the worker until ctx ends, Stop is called, or an error occurs that no retry
// can end.
func (w *Worker) Start(ctx context.Context) error {
	return w.life.Start(ctx, func(p *runtime.Phases) error { return explain(w.begin(p.Intake)) }, w.run, w.leave)
}

// enter records the state. Also a panic in the program's code, or runtime.Goexit, stops the worker.
func (w *Worker) enter(s observe.State) {
	if w.state.Store(s); s == observe.StateStopped {
		close(w.ended)
	}
}

// run runs the consumers, and everything that they need.
func (w *Worker) run(p *runtime.Phases) error {
	w.observers.Notify(observe.WorkerStarted{Worker: w.source, Consumers: len(w.units)})
	w.runBackground(p.Background, p.Running)
	return w.supervisor.run(p.Running, p.Intake, p.Drain)
}

// Status returns a snapshot of the worker.
func (w *Worker) Status() observe.Status { return w.health.status() }

// Live returns an error if only a new process helps.
func (w *Worker) Live() error { return w.health.probe(0).Live() }

// Ready returns the reasons why the worker does not do all of its work.
func (w *Worker) Ready(ctx context.Context, maxAge time.Duration) []error {
	return w.health.probe(maxAge).Ready(ctx)
}

// WaitFor waits until a consumer has handled the event at a position, in any worker.
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	if err := arrival.CheckWhole(consumer); err != nil {
		return err
	}
	select {
	case <-w.ready:
	case <-w.ended:
	case <-ctx.Done():
	}
	switch {
	case isClosed(w.ready):
	case ctx.Err() != nil:
		return fmt.Errorf("worker: waited for the worker to start, to wait for consumer %s to handle position %d: %w", errtext.Value(consumer), position, context.Cause(ctx))
	default:
		return fmt.Errorf("worker: cannot wait for consumer %s to handle position %d: %w", errtext.Value(consumer), position, errNeverBegan)
	}
	return w.waits.Until(ctx, consumer, position)
}

// begin does all that comes before the loops and the background goroutines.
func (w *Worker) begin(ctx context.Context) error {
	if err := w.startup.Reach(ctx, w.prepare); err != nil {
		return err
	}
	close(w.ready)
	if err := w.startup.Reach(ctx, w.placer.first); err != nil {
		return err
	}
	if err := w.startup.Reach(ctx, w.coord.Register); err != nil {
		return err
	}
	widen(ctx, &w.env, w.cfg.HeartbeatTimeout/2) // from now on the other workers see that this worker is alive
	return nil
}

// runBackground runs all goroutines except the consumers' loops.
func (w *Worker) runBackground(g *runtime.Group, running context.Context) {
	g.Run(func() error { return w.frontier.Run(running) })
	g.Run(func() error { return w.coord.Run(running) })
	g.Run(func() error { return boundOutage(running, w.coord, w.cfg.RetryLimit) })
	g.Run(func() error { w.placer.atHead(running); return nil })
	g.Run(func() error { w.supervisor.handOver(running); return nil })
	g.Run(func() error { w.progressWatch.run(running); return nil })
	g.Run(func() error { w.audit.retain(running); return nil })
	g.Run(func() error { w.audit.compact(running); return nil })
	g.Run(func() error { watchPool(running, &w.env, w.cfg.HeartbeatInterval); return nil })
	g.Run(func() error { return w.pool.AwaitClose(running, nil) })
	g.Run(func() error { watchServer(running, &w.env, w.cfg.HeartbeatInterval); return nil })
	g.Run(func() error { w.pool.Sweep(running); return nil })
	if w.cfg.DispatcherStrategy == DispatcherStrategyNotify {
		g.Run(func() error { w.arrivals.answer(running); return nil })
		g.Run(func() error { return w.listen(running) })
		g.Run(func() error { w.listener.Watch(running); return nil })
	}
}

// listen handles the notifications of the store and of the other workers.
func (w *Worker) listen(ctx context.Context) error {
	return w.listener.Run(ctx, map[string]func(string){
		w.cfg.NotifyChannel: func(string) {
			w.listener.Notified()
			w.onEventsNotification()
		},
		w.channel:     func(string) { w.onChangeNotification() },
		w.waitChannel: w.arrivals.handle,
	})
}

// onEventsNotification wakes the frontier after a notification about new events.
func (w *Worker) onEventsNotification() {
	w.observers.Notify(observe.Woken{Source: observe.WakeupEvents})
	w.frontier.Wake()
}

// onChangeNotification wakes the coordinator and the progress watcher after a join, a leave
// or an operation.
func (w *Worker) onChangeNotification() {
	w.observers.Notify(observe.Woken{Source: observe.WakeupChanges})
	w.coord.Wake()
	w.progressWatch.now.Send()
}

// abandon rolls the batches in flight back: the stop takes too long.
func (w *Worker) abandon(p *runtime.Phases) {
	err := fmt.Errorf("worker: batches still run %v after the stop and are rolled back (WithShutdownTimeout)", w.cfg.ShutdownTimeout)
	w.observers.Notify(observe.ShutdownTimedOut{Worker: w.source, Err: err})
	p.Halt()
}

// boundOutage returns an error if no heartbeat has succeeded for limit. Without a limit it
// returns at once.
func boundOutage(ctx context.Context, c *coord.Coordinator, limit time.Duration) error {
	for limit > 0 {
		s := c.Status()
		left := time.Until(s.LastHeartbeat.Add(limit))
		if left <= 0 {
			return errtext.Join(fmt.Errorf("worker: %w: no heartbeat for %v (WithRetryLimit)", ErrOutage, limit), s.LastError)
		}
		if !backoff.Sleep(ctx, left) {
			break
		}
	}
	return nil
}

// leave hands the consumers back and removes the worker from the list. If the database does
// not answer, the other workers take over after HeartbeatTimeout.
func (w *Worker) leave(p *runtime.Phases, err error) {
	if !isClosed(w.ready) {
		return
	}
	ctx, cancel := context.WithTimeout(p.Beyond, w.limits.leave)
	defer cancel()
	w.taskFailed(p.Beyond, "leave", "", w.coord.Leave(ctx, err != nil))
	w.observers.Notify(observe.WorkerStopped{Worker: w.source, Err: err, Drained: w.life.Drained()})
}
