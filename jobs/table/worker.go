package table

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/pool"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

const (
	// leaveTimeout bounds what is waited for when a worker stops.
	leaveTimeout = 5 * time.Second
	// grace is how long a handler has to return after its context has ended.
	grace = 10 * time.Second
	// statementLimit bounds each statement of the worker's own.
	statementLimit = 10 * time.Second
	// ownConnections is how many a worker needs at once: for heartbeats, to claim or
	// reset, and to settle.
	ownConnections = 3
)

// Worker runs the jobs of a Store. It starts once.
type Worker struct {
	id      uuid.UUID
	store   *rows
	handler handler
	opts    WorkerOptions
	bad     error  // of the options
	host    string // what worker_hostname has: the name of the machine, and the id
	grace   time.Duration
	limit   time.Duration // of a statement of the worker's own
	hangs   time.Duration // after it, a turn of a loop hangs

	life       runtime.Life
	prepared   bool // enter has succeeded
	closedOnce sync.Once
	closed     chan struct{} // closed when the pool is
	state      atomic.Value  // WorkerState
	wake       chan struct{} // for the loop
	sweepNow   *wakeup.Signal

	sql       statements
	pulse     *sql.Conn       // of the heartbeats
	home      home            // the servers that pulse and the pool lead to
	handling  context.Context // of all handlers; a stop that has waited long enough ends it
	alive     context.Context // of all else; ends before Start returns
	hand      *hand
	settler   *settler
	turns     turns
	observers *runtime.Observers

	mu      sync.Mutex // guards what follows
	taken   int        // slots
	status  Status
	errs    map[observe.Condition]error // of whole statements, by what they are for
	refused map[observe.Condition]*batch.Refused[int64]
}

// handler is a Handler without the type of its records. Jobs are pointers to Job.
type handler struct {
	read       func(row Row, r *run) (job any, err error)
	handle     func(ctx context.Context, job any) error
	preDequeue func(ctx context.Context) (bool, Condition, error)
	preHandle  func(ctx context.Context, job any)
	postHandle func(ctx context.Context, job any)
}

// NewWorker makes a worker. It does nothing yet: Start checks what it was given.
func NewWorker[R any](s *Store[R], h Handler[R], o WorkerOptions) *Worker {
	made := handler{preDequeue: h.PreDequeue}
	made.read = func(row Row, r *run) (any, error) {
		record, err := s.scan(row)
		return &Job[R]{Header: r.header, Record: record, run: r}, err
	}
	made.handle = func(ctx context.Context, job any) error { return h.Handle(ctx, job.(*Job[R])) }
	if h.PreHandle != nil {
		made.preHandle = func(ctx context.Context, job any) { h.PreHandle(ctx, job.(*Job[R])) }
	}
	if h.PostHandle != nil {
		made.postHandle = func(ctx context.Context, job any) { h.PostHandle(ctx, job.(*Job[R])) }
	}
	var bad error
	rows := &rows{bad: fmt.Errorf("jobs/table: %w: the store is nil: make one with NewStore", ErrInvalidConfig)}
	if s != nil {
		rows = s.rows
	}
	if h.Handle == nil {
		bad = errNoHandle
	}
	o = o.withDefaults(rows.settings.stalled)
	w := &Worker{
		id: uuid.New(), store: rows, handler: made, opts: o, bad: bad, grace: grace, limit: statementLimit, hangs: watchdog.Limit,
		closed: make(chan struct{}), wake: make(chan struct{}, 1), sweepNow: wakeup.New(),
		hand: newHand(), errs: map[observe.Condition]error{},
		refused: map[observe.Condition]*batch.Refused[int64]{observe.ConditionDatabase: {}, observe.ConditionClaim: {}, observe.ConditionHeartbeat: {}, observe.ConditionSettle: {}, observe.ConditionReset: {}},
	}
	var loggers []observe.Observer
	if o.Logger != nil {
		loggers = append(loggers, observe.Log(o.Logger))
	}
	w.observers = runtime.NewObservers(w.source(), loggers, o.Observers)
	w.host = o.WorkerHostname + "/" + w.id.String()
	w.settler = newSettler(w)
	w.life = runtime.Life{
		Package: "jobs/table", Goexit: errGoroutine, Again: ErrAlreadyStarted, Stopping: errStopping, Most: o.MaxActiveTime, DrainFor: o.ShutdownTimeout,
		Grace: func() time.Duration { return leaveTimeout }, Entered: func(s WorkerState) { w.state.Store(s) },
	}
	w.state.Store(WorkerNew)
	return w
}

// ID identifies this worker: worker_hostname ends with it.
func (w *Worker) ID() uuid.UUID { return w.id }

// Stop asks the worker to stop claiming, to wait for the jobs in hand and to end.
// It returns at once; Start waits. It may be called at any time, any number of
// times, also from a handler.
func (w *Worker) Stop() { w.life.Ask() }

// Start runs the worker until ctx ends, Stop is called, or an error that no retry
// can mend; the first two are a clean stop and return nil. It begins by checking the
// configuration and the table, see Store.Check, and starts nothing if it finds
// fault. While the database cannot be reached, it tries again, for ever or for StartLimit. When
// it returns, nothing of the worker is running any more.
//
// At a stop the worker claims nothing, and waits for the jobs that run, for
// ShutdownTimeout at most. Then their contexts end, and they are queued again
// uncounted.
//
// A handler that ignores the end of its context cannot be ended. Some seconds after
// that bound Start returns without it, with [ErrHandlerOverdue]. Its goroutine is
// all that still runs. What it returns then is of no effect. The same goes for the hooks
// of Handler, and Scan.
func (w *Worker) Start(ctx context.Context) error {
	return w.life.Start(ctx, w.enter, w.work, w.leave)
}

// enter checks everything.
func (w *Worker) enter(p *runtime.Phases) error {
	w.handling, w.alive = p.Handling, p.Running
	err := pgdriver.Reach(p.Intake, "jobs/table", w.opts.StartLimit, func(err error) { w.outcome(observe.ConditionDatabase, err) }, w.prepare)
	if w.prepared = err == nil; w.prepared {
		w.outcome(observe.ConditionDatabase, nil)
	}
	return err
}

// leave reports the end.
func (w *Worker) leave(_ *runtime.Phases, err error) {
	if w.prepared {
		w.observers.Notify(observe.WorkerStopped{Worker: w.source(), Err: err})
	}
}

// source names this worker in events.
func (w *Worker) source() observe.Worker { return observe.Worker{Kind: observe.KindTable, ID: w.id} }

// work runs everything, and returns when the jobs in hand have ended and what became
// of them is stored.
func (w *Worker) work(p *runtime.Phases) error {
	w.observers.Notify(observe.WorkerStarted{Worker: w.source()})
	for _, run := range []func(context.Context){w.heartbeat, w.settler.run, w.resetStalled, w.sweep, w.watchServer} {
		p.Background.Run(func() error { run(p.Running); return nil })
	}
	p.Background.Run(func() error { return w.awaitClose(p.Running, p.Abandon) })
	ended := make(chan struct{})
	p.Background.Run(func() error {
		defer close(ended)
		return newLoop(w).run(p.Running, p.Intake)
	})
	<-ended
	err := w.settler.finish(p.Running)
	if w.awaitCalls(p.Running, leaveTimeout) > 0 {
		p.Abandon(errStopping)
		if n := w.awaitCalls(p.Running, w.grace); n > 0 {
			err = errtext.Join(err, fmt.Errorf("%w: the hook PostHandle of %d jobs", ErrHandlerOverdue, n))
		}
	}
	if late := w.hand.late(); len(late) > 0 {
		err = errtext.Join(err, fmt.Errorf("%w: of jobs %v", ErrHandlerOverdue, late))
	}
	return err
}

// prepare checks everything that can be checked before anything runs.
func (w *Worker) prepare(ctx context.Context) error {
	if err := w.validate(); err != nil {
		return err
	}
	return pgdriver.Checked(ctx, "jobs/table", w.store.db.DB, w.check)
}

// check checks the database.
func (w *Worker) check(ctx context.Context) error {
	db := w.store.db
	if _, _, err := db.CheckPooling(ctx, false); err != nil {
		return fmt.Errorf("jobs/table: %w", err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs/table: take a connection: %w", err)
	}
	if err = pgdriver.CheckFormats(ctx, conn); err != nil {
		err = fmt.Errorf("jobs/table: %w", err)
	} else {
		err = w.store.check(ctx, conn, w.host)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	if w.sql, err = w.store.statements(ctx); err != nil {
		_ = conn.Close()
		return err
	}
	w.pulse = conn
	return nil
}

// validate checks what NewWorker was given, without the database.
func (w *Worker) validate() error {
	if w.store.bad != nil {
		return w.store.bad
	}
	all := []error{w.bad, w.opts.check(w.store.settings.stalled)}
	if n := w.store.db.Stats().MaxOpenConnections; n > 0 && n < ownConnections {
		all = append(all, fmt.Errorf("db allows %d open connections, a worker needs at least %d, and more for handlers that use it: raise db.SetMaxOpenConns", n, ownConnections))
	}
	if err := errtext.Join(all...); err != nil {
		return fmt.Errorf("jobs/table: %w: %w", ErrInvalidConfig, err)
	}
	return nil
}

// awaitClose ends the worker, and the contexts of the handlers, when somebody closes the
// pool: nothing can be claimed or stored from then on.
func (w *Worker) awaitClose(running context.Context, abandon context.CancelCauseFunc) error {
	select {
	case <-w.closed:
		abandon(fmt.Errorf("%w: %w", errStopping, ErrPoolClosed))
		return ErrPoolClosed
	case <-running.Done():
		return nil
	}
}

// on runs statements of the worker's own on a connection of the pool.
func (w *Worker) on(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	return pool.On(ctx, w.store.db, w.limit, w.sweepNow, func(conn *sql.Conn) error { return f(ctx, conn) })
}

// sweep closes the dead among the pool's idle connections each time that somebody
// asks for it.
func (w *Worker) sweep(ctx context.Context) {
	pool.Run(ctx, w.store.db.DB, w.sweepNow, func(idle, alive int) {
		w.observers.Notify(observe.PoolSwept{Worker: w.source(), Idle: idle, Alive: alive})
	})
}

// take takes slots for jobs that were claimed.
func (w *Worker) take(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken += n
	w.status.Claimed += int64(n)
}

// give gives a slot back.
func (w *Worker) give() {
	w.mu.Lock()
	w.taken--
	w.mu.Unlock()
	signal(w.wake)
}

// free is how many slots are free, and claimed how many jobs were claimed so far.
func (w *Worker) free() (free int, claimed int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opts.NumHandlers - w.taken, w.status.Claimed
}

// awaitCalls waits until no goroutine has a slot but those of handlers that were given
// up, and those that wait for what cannot be stored. It returns how many have one after a
// limit.
func (w *Worker) awaitCalls(ctx context.Context, limit time.Duration) (left int) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		free, _ := w.free()
		if left = w.opts.NumHandlers - free - len(w.hand.late()) - w.settler.waits(); left <= 0 {
			return 0
		}
		select {
		case <-w.wake:
		case <-late.C:
			return left
		case <-ctx.Done():
			return left
		}
	}
}

// signal wakes who waits at c, now or the next time.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
