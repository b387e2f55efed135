package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

const (
	// grace is how long a handler may run after its context has ended.
	grace = 10 * time.Second
	// statementLimit bounds each statement of the worker's own, and the statements after a handler
	// in its transaction.
	statementLimit = 10 * time.Second
	// echoAgain is after how many checks the worker sends another echo on a connection that has
	// received one. The pool may have moved to another server.
	echoAgain = 12
)

// Worker runs jobs. It starts once.
type Worker struct {
	*env
	reports
	handlers            *Handlers
	cfg                 config
	grace               time.Duration
	maintenanceInterval time.Duration // interval of maintenance
	hangsAfter          time.Duration // bounds a turn of a loop, for Live

	life    runtime.Life
	startup runtime.Start
	state   atomic.Value // observe.State

	// prepare sets these fields. Functions other than Start may read them once ready is closed.
	ready          chan struct{}
	events         tables.Tables // of package worker
	kinds          []string
	jobsChannel    string // notification channel of new jobs
	changesChannel string // notification channel of operations
	coord          *coord.Coordinator
	loops          loops
	slots          *slots
	looping        chan struct{} // bounds the statements of the loops
	settler        *settler
	rescuer        *rescuer
	maintenance    *maintenance
	listener       runtime.Listener

	// handling is the context of all handlers. It ends when a stop has reached WithShutdownTimeout.
	handling context.Context
	running  context.Context // context of all other goroutines; ends before Start returns
	runners  runners
	failover runtime.Failover
}

// NewWorker makes a worker. Start checks the arguments and runs the worker. handlers must not
// change afterwards.
func NewWorker(db *sql.DB, handlers *Handlers, opts ...Option) *Worker {
	e := &env{source: observe.Worker{Kind: observe.KindJobs, ID: uuid.New()}, db: pgdriver.NewPool(db), limit: statementLimit}
	w := &Worker{
		env: e, handlers: handlers, cfg: defaults(), grace: grace, hangsAfter: watchdog.Limit, maintenanceInterval: maintenanceEvery,
		ready: make(chan struct{}),
	}
	if handlers == nil {
		w.handlers = NewHandlers()
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&w.cfg)
		}
	}
	w.life = runtime.Life{
		Package: "jobs", Goexit: errGoroutine, Again: ErrAlreadyStarted, Stopping: errStopping, Most: w.cfg.stopAfter, DrainFor: w.cfg.shutdownTimeout,
		Grace: func() time.Duration { return leaveTimeout }, Entered: func(s observe.State) { w.state.Store(s) },
	}
	w.state.Store(observe.StateNew)
	w.reports = reports{env: e, inFlight: jobrun.InFlight[*run]{Lost: ErrClaimLost}, extensions: w.cfg.extensions}
	w.observers = runtime.NewObservers(w.source, w.cfg.loggers, w.cfg.observers)
	w.startup = runtime.Start{
		Package: "jobs", DB: w.db, Least: reserve + 1, Further: "one more for every job of RegisterTx that is to run at the same time",
		Locks: w.cfg.leader == LeaderStrategyAdvisory, Limit: w.cfg.startLimit, Option: "WithStartLimit", Observers: w.observers,
	}
	w.pool = runtime.NewPool(w.db, ErrPoolClosed, w.observers)
	w.failover.CloseFor = w.cfg.heartbeatTimeout
	w.listener = runtime.Listener{
		Package: "jobs", Of: "jobs", ConnString: w.cfg.notify, Echo: "jobs_echo_" + w.source.ID.String(), Every: runtime.EchoEvery, EchoAgain: echoAgain,
		Observers: w.observers, Exec: w.exec, Down: func() { w.loops.wake() },
	}
	return w
}

// ID returns the ID of this worker in the tables.
func (w *Worker) ID() uuid.UUID { return w.source.ID }

// Stop asks the worker to stop claiming, to wait for the jobs in flight and to end. It returns at
// once, and Start waits. Stop may be called at any time, any number of times, also from a handler.
func (w *Worker) Stop() { w.life.Ask() }

// Start runs the worker until ctx ends, Stop is called, or an error occurs that no retry can mend.
// The first two are a clean stop and return nil. The errors that a program can distinguish are those
// of this package, migrations.ErrNotApplied and migrations.ErrNewerVersion. They name the remedy.
// Start first checks the configuration and the database. If a check fails, it starts nothing. While
// the database cannot be reached, Start retries, for ever or for [WithStartLimit]. When Start
// returns, nothing of the worker is running any more.
//
// Start creates no tables. A program that creates and upgrades the tables calls ApplyJobs of
// package [github.com/pgfrontier/worker/migrations] first, as the example does.
//
// Close db after Start has returned, not before. A worker whose db is closed cannot store the
// outcomes of its jobs. It ends the contexts of their handlers, leaves the jobs to the other
// workers, and returns [ErrPoolClosed].
//
// During a stop, no more jobs are claimed and prefetched jobs are released. Start waits for the
// running jobs, for WithShutdownTimeout at most. Then the contexts of their handlers end. The jobs
// are released, and no failure is counted.
//
// A handler that ignores the end of its context cannot be ended. Some seconds after the context has
// ended, Start returns without the handler, with [ErrHandlerOverdue]. Only the goroutine of the
// handler still runs. What the handler returns then has no effect.
//
// An operator may drain the worker, see DrainWorker of package ops. The worker then stops in the
// same way. Start waits, in [observe.StateDrained], until ctx ends or Stop is called. If the process ended
// instead, it would be started again and take work again.
func (w *Worker) Start(ctx context.Context) error {
	return w.life.Start(ctx, w.begin, w.work, w.leave)
}

// begin checks everything, and registers the worker.
func (w *Worker) begin(p *runtime.Phases) error {
	w.handling, w.running = p.Handling, p.Running
	if err := w.startup.Reach(p.Intake, w.prepare); err != nil {
		return err
	}
	return w.startup.Reach(p.Intake, w.coord.Register)
}

// work starts all goroutines. It returns when the loops have ended and the outcomes of their jobs
// are stored.
func (w *Worker) work(p *runtime.Phases) error {
	w.observers.Notify(observe.WorkerStarted{Worker: w.source})
	member, leave := context.WithCancel(p.Running) // of those that share the jobs
	defer leave()
	p.Background.Run(func() error {
		return w.pool.AwaitClose(p.Running, func(why error) { p.Abandon(why); leave() })
	})
	p.Background.Run(func() error { return w.coord.Run(member) })
	for _, run := range []func(context.Context){w.settler.run, w.rescuer.run, w.maintenance.run, w.pool.Sweep} {
		p.Background.Run(func() error { run(p.Running); return nil })
	}
	p.Background.Run(func() error {
		w.failover.Watch(p.Running, w.pool, w.cfg.heartbeat, w.limit, func(err error) { w.taskFailed("compare servers", err) })
		return nil
	})
	for _, c := range w.cfg.extensions {
		p.Background.Run(func() error { c.Run(p.Running); return nil })
	}
	if w.cfg.notify != "" {
		p.Background.Run(func() error { return w.listen(p.Running) })
		p.Background.Run(func() error { w.listener.Watch(p.Running); return nil })
	}
	ended := make(chan struct{}, len(w.loops))
	for _, l := range w.loops {
		p.Background.Run(func() error {
			defer func() { ended <- struct{}{} }()
			l.run(p.Running, p.Intake)
			return nil
		})
	}
	for range w.loops {
		<-ended
	}
	if len(w.loops) == 0 {
		<-p.Intake.Done()
	}
	return errtext.Join(w.settler.finish(member), w.overdue())
}

// overdue returns an error that names handlers that were given up.
func (w *Worker) overdue() error {
	var kinds []string
	for _, r := range w.inFlight.Overdue() {
		kinds = append(kinds, r.row.Kind)
	}
	if len(kinds) == 0 {
		return nil
	}
	slices.Sort(kinds)
	return fmt.Errorf("%w: of kinds %q", ErrHandlerOverdue, slices.Compact(kinds))
}

func (w *Worker) isReady() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// leave removes the worker from the table of workers. If the database does not answer, the others
// notice that the heartbeats stop.
func (w *Worker) leave(p *runtime.Phases, err error) {
	if !w.isReady() {
		return
	}
	ctx, cancel := context.WithTimeout(p.Beyond, leaveTimeout)
	defer cancel()
	w.taskFailed("leave", w.coord.Leave(ctx, err != nil))
	w.observers.Notify(observe.WorkerStopped{Worker: w.source, Err: err, Drained: w.life.Drained()})
}

// listen wakes the loops for notifications of new jobs and of operations.
func (w *Worker) listen(ctx context.Context) error {
	return w.listener.Run(ctx, map[string]func(string){
		w.jobsChannel: func(queue string) {
			w.loops.each(func(q *servedQueue) {
				if queue == "" {
					q.unwanted.Store(true)
				}
				if queue == "" || queue == q.name {
					q.poll()
				}
			})
		},
		w.changesChannel: func(string) {
			w.loops.each(func(q *servedQueue) {
				q.reconcileAsked.Store(true)
				q.poll()
			})
		},
	})
}
