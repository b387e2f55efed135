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
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/group"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/turn"
	"github.com/pgfrontier/worker/internal/wakeup"
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

	started atomic.Bool
	stop    group.Stop
	state   atomic.Value // WorkerState

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
	life      context.Context // of all else; ends before Start returns
	hand      hand
	runners   runners
	home      home
	observers *runtime.Observers
}

// NewWorker makes a worker. It does nothing yet: Start checks what it was given.
// handlers must not change afterwards.
func NewWorker(db *sql.DB, handlers *Handlers, opts ...Option) *Worker {
	w := &Worker{
		id: uuid.New(), db: pgdriver.NewPool(db), handlers: handlers, cfg: defaults(), grace: grace, limit: statementLimit, hangsAfter: turn.Limit, choreInterval: choresEvery, echoes: echoEvery,
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
	w.state.Store(WorkerNew)
	w.observers = runtime.NewObservers(w.source(), w.cfg.loggers, w.cfg.observers)
	return w
}

// ID identifies this worker in the tables.
func (w *Worker) ID() uuid.UUID { return w.id }

// Stop asks the worker to stop claiming, to wait for the jobs in hand and to end.
// It returns at once; Start waits. It may be called at any time, any number of
// times, also from a handler.
func (w *Worker) Stop() { w.stop.Ask() }

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
	if !w.started.CompareAndSwap(false, true) {
		return ErrAlreadyStarted
	}
	defer w.state.Store(WorkerStopped)
	err := w.serve(ctx)
	if err == nil && w.stop.Drained() {
		w.state.Store(WorkerDrained)
		w.stop.Hold(ctx)
	}
	return err
}

// serve is Start, up to where nothing of the worker runs any more.
func (w *Worker) serve(ctx context.Context) error {
	w.state.Store(WorkerStarting)

	life := context.WithoutCancel(ctx)
	intake, drain := context.WithCancel(life)
	defer drain()
	defer context.AfterFunc(ctx, drain)()
	w.stop.Bind(drain)
	if w.cfg.stopAfter > 0 {
		defer time.AfterFunc(w.cfg.stopAfter, drain).Stop()
	}
	handling, abandon := context.WithCancelCause(life)
	defer abandon(errStopping)
	w.handling = handling
	running, halt := context.WithCancel(life)
	defer halt()
	w.life = running

	background := &group.Group{Of: "jobs", Fail: drain, Goexit: errGoroutine}
	err := errtext.Of(w.reach(intake, w.prepare))
	if err == nil {
		err = errtext.Of(w.reach(intake, w.coord.Register))
	}
	if err == nil {
		err = w.work(background, running, intake, abandon)
	} else if intake.Err() != nil {
		err = nil // asked to stop before it began
	}
	drain()
	halt()
	err = errtext.Join(err, background.Wait(leaveTimeout))
	if w.isReady() {
		w.leave(life, err != nil)
		w.observers.Notify(observe.WorkerStopped{Worker: w.source(), Err: err, Drained: w.stop.Drained()})
	}
	return err
}

// work runs everything, and returns when the loops have ended and what became of
// their jobs is stored.
func (w *Worker) work(background *group.Group, running, intake context.Context, abandon context.CancelCauseFunc) error {
	w.state.Store(WorkerRunning)
	w.observers.Notify(observe.WorkerStarted{Worker: w.source()})
	member, leave := context.WithCancel(running) // of those that share the jobs
	defer leave()
	background.Run(func() error {
		return w.watchPool(running, func(why error) { abandon(why); leave() })
	})
	background.Run(func() error { return w.coord.Run(member) })
	background.Run(func() error { w.settler.run(running); return nil })
	background.Run(func() error { w.rescuer.run(running); return nil })
	background.Run(func() error { w.chores.run(running); return nil })
	background.Run(func() error { w.sweep(running); return nil })
	background.Run(func() error { w.watchServer(running); return nil })
	background.Run(func() error { w.boundDraining(running, intake, abandon); return nil })
	for _, c := range w.cfg.companions {
		background.Run(func() error { c.Run(running); return nil })
	}
	if w.cfg.notify != "" {
		background.Run(func() error { return w.listen(running) })
		background.Run(func() error { w.watchNotify(running); return nil })
	}
	ended := make(chan struct{}, len(w.loops))
	for _, l := range w.loops {
		background.Run(func() error {
			defer func() { ended <- struct{}{} }()
			l.run(running, intake)
			return nil
		})
	}
	for range w.loops {
		<-ended
	}
	if len(w.loops) == 0 {
		<-intake.Done()
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

// boundDraining ends the contexts of the handlers when a stop takes too long.
func (w *Worker) boundDraining(running, intake context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-intake.Done():
		w.state.Store(WorkerDraining)
	case <-running.Done():
		return
	}
	if w.cfg.shutdownTimeout > 0 && backoff.Sleep(running, w.cfg.shutdownTimeout) {
		abandon(errStopping)
	}
}

// leave takes the worker off the list. If the database does not answer, the others
// notice by themselves.
func (w *Worker) leave(life context.Context, failed bool) {
	ctx, cancel := context.WithTimeout(life, leaveTimeout)
	defer cancel()
	w.taskFailed("leave", w.coord.Leave(ctx, failed))
}

func (w *Worker) taskFailed(task string, err error) {
	if err != nil {
		w.observers.Notify(observe.TaskFailed{Worker: w.source(), Task: task, Err: errtext.Of(err)})
	}
}
