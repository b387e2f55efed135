package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

const (
	// leaveTimeout bounds the last statements when a worker stops.
	leaveTimeout = 5 * time.Second
	// grace is how long a handler has to return after its context has ended.
	grace = 10 * time.Second
	// statementLimit bounds each statement of the worker's own, and what follows a
	// handler in its transaction.
	statementLimit = 10 * time.Second
)

// Worker runs jobs. It starts once.
type Worker struct {
	id            uuid.UUID
	db            pgdriver.Pool
	handlers      *Handlers
	cfg           config
	grace         time.Duration
	choreInterval time.Duration // between two rounds of what is not urgent
	limit         time.Duration // of a statement of the worker's own
	hangsAfter    time.Duration // a turn of a loop
	echoes        time.Duration // between two looks for an echo

	life  runtime.Life
	state atomic.Value // WorkerState

	poolOnce   sync.Once
	poolClosed chan struct{} // closed when a statement finds db closed

	// What prepare makes; others than Start may look once ready is closed.
	ready    chan struct{}
	queue    *queue.Queue
	tables   tables.Jobs
	events   tables.Tables // of package worker
	kinds    []string
	pooling  pgdriver.Pooling
	news     string // the channel of new jobs
	changes  string // of what operators do
	coord    *coord.Coordinator
	loops    []*loop
	slots    *slots
	txs      chan struct{} // bounds the transactions of handlers; nil: endless
	looping  chan struct{} // bounds the statements of the loops
	settler  *settler
	sweepNow *wakeup.Signal // wakes sweep
	rescuer  *rescuer
	chores   *chores
	listens  listener

	// handling is the context of all handlers. A stop that has waited long enough
	// ends it.
	handling  context.Context
	running   context.Context // of all else; ends before Start returns
	hand      hand
	runners   runners
	home      home
	observers *runtime.Observers
}

// NewWorker makes a worker. It does nothing yet: Start checks what it was given.
// handlers must not change afterwards.
func NewWorker(db *sql.DB, handlers *Handlers, opts ...Option) *Worker {
	w := &Worker{
		id: uuid.New(), db: pgdriver.NewPool(db), handlers: handlers, cfg: defaults(), grace: grace, limit: statementLimit, hangsAfter: watchdog.Limit, choreInterval: choresEvery, echoes: echoEvery,
		poolClosed: make(chan struct{}), ready: make(chan struct{}), sweepNow: wakeup.New(),
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
		Grace: func() time.Duration { return leaveTimeout }, Entered: func(s WorkerState) { w.state.Store(s) },
	}
	w.state.Store(WorkerNew)
	w.observers = runtime.NewObservers(w.source(), w.cfg.loggers, w.cfg.observers)
	return w
}

// ID identifies this worker in the tables.
func (w *Worker) ID() uuid.UUID { return w.id }

// Stop asks the worker to stop claiming, to wait for the jobs in hand and to end.
// It returns at once; Start waits. It may be called at any time, any number of
// times, also from a handler.
func (w *Worker) Stop() { w.life.Ask() }

// Start runs the worker until ctx ends, Stop is called, or an error that no retry
// can mend; the first two are a clean stop and return nil. It begins by checking
// the configuration and the database, and starts nothing if it finds fault. While the
// database cannot be reached, it tries again, for ever or for [WithStartLimit]. When it
// returns, nothing of the worker is running any more.
//
// Start creates no tables. A program that is to create and upgrade them calls ApplyJobs of package
// [github.com/pgfrontier/worker/migrations] first, as the example does.
//
// Close db after that, not before. A worker that finds it closed cannot store what becomes
// of its jobs: it ends the contexts of their handlers, leaves the jobs to the other
// workers, and returns [ErrPoolClosed].
//
// At a stop no more jobs are claimed, those that were prefetched are given back,
// and those that run are waited for, for WithShutdownTimeout at most. Then their
// contexts end, and they are given back uncounted.
//
// A handler that ignores the end of its context cannot be ended. Some seconds after
// that bound Start returns without it, with [ErrHandlerOverdue]. Its goroutine is
// all that still runs. What it returns then is of no effect.
//
// An operator may drain the worker, see DrainWorker of package ops. Then it stops in the
// same way, and Start goes on waiting, in [WorkerDrained], until ctx ends or Stop is called: a
// process that ended would be started again, and take work again.
func (w *Worker) Start(ctx context.Context) error {
	return w.life.Start(ctx, w.begin, w.work, w.leave)
}

// begin checks everything, and registers the worker.
func (w *Worker) begin(p *runtime.Phases) error {
	w.handling, w.running = p.Handling, p.Running
	if err := w.reach(p.Intake, w.prepare); err != nil {
		return err
	}
	return w.reach(p.Intake, w.coord.Register)
}

// work runs everything, and returns when the loops have ended and what became of
// their jobs is stored.
func (w *Worker) work(p *runtime.Phases) error {
	w.observers.Notify(observe.WorkerStarted{Worker: w.source()})
	member, leave := context.WithCancel(p.Running) // of those that share the jobs
	defer leave()
	p.Background.Run(func() error {
		return w.watchPool(p.Running, func(why error) { p.Abandon(why); leave() })
	})
	p.Background.Run(func() error { return w.coord.Run(member) })
	for _, run := range []func(context.Context){w.settler.run, w.rescuer.run, w.chores.run, w.sweep, w.watchServer} {
		p.Background.Run(func() error { run(p.Running); return nil })
	}
	for _, c := range w.cfg.companions {
		p.Background.Run(func() error { c.Run(p.Running); return nil })
	}
	if w.cfg.notify != "" {
		p.Background.Run(func() error { return w.listen(p.Running) })
		p.Background.Run(func() error { w.watchNotify(p.Running); return nil })
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

// overdue names handlers that were left behind.
func (w *Worker) overdue() error {
	kinds := w.hand.overdueKinds()
	if len(kinds) == 0 {
		return nil
	}
	return fmt.Errorf("%w: of kinds %q", ErrHandlerOverdue, kinds)
}

func (w *Worker) isReady() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// leave takes the worker off the list. If the database does not answer, the others
// notice by themselves.
func (w *Worker) leave(p *runtime.Phases, err error) {
	if !w.isReady() {
		return
	}
	ctx, cancel := context.WithTimeout(p.Beyond, leaveTimeout)
	defer cancel()
	w.taskFailed("leave", w.coord.Leave(ctx, err != nil))
	w.observers.Notify(observe.WorkerStopped{Worker: w.source(), Err: err, Drained: w.life.Drained()})
}

func (w *Worker) taskFailed(task string, err error) {
	if err != nil {
		w.observers.Notify(observe.TaskFailed{Worker: w.source(), Task: task, Err: errtext.Of(err)})
	}
}
