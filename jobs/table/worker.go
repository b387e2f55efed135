package table

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

const (
	// leaveTimeout bounds the waits when a worker stops.
	leaveTimeout = 5 * time.Second
	// grace is how long a handler may run after its context has ended.
	grace = 10 * time.Second
	// ownConnections is how many connections a worker needs at once: for heartbeats, to claim or
	// reset, and to settle.
	ownConnections = 3
)

// Worker runs the jobs of a Store. It starts once.
type Worker struct {
	*env
	handler handler
	bad     error         // error of the options
	hangs   time.Duration // bounds a turn of a loop, for Live

	life     runtime.Life
	prepared bool // enter has succeeded
	startup  runtime.Start
	state    atomic.Value // observe.State
	failover runtime.Failover
	settler  *settler
	calls    *calls
	heart    *heart
}

// handler is a Handler without the type of its records. Jobs are pointers to Job.
type handler struct {
	read       func(row Row, r *run) (job any, err error)
	handle     func(ctx context.Context, job any) error
	preDequeue func(ctx context.Context) (bool, Condition, error)
	preHandle  func(ctx context.Context, job any)
	postHandle func(ctx context.Context, job any)
}

// NewWorker makes a worker. Start checks the arguments and runs the worker.
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
	e := &env{
		source: observe.Worker{Kind: observe.KindTable, ID: uuid.New()}, store: rows, opts: o, grace: grace, limit: statementLimit,
		counts: counts{slots: o.NumHandlers, wake: make(chan struct{}, 1)}, inFlight: jobrun.InFlight[*run]{Lost: ErrClaimLost},
	}
	w := &Worker{env: e, handler: made, bad: bad, hangs: watchdog.Limit}
	var loggers []observe.Observer
	if o.Logger != nil {
		loggers = append(loggers, observe.Log(o.Logger))
	}
	e.observers = runtime.NewObservers(e.source, loggers, o.Observers)
	w.startup = runtime.Start{
		Package: "jobs/table", DB: rows.db, Least: ownConnections, Further: "more for handlers that use it", Limit: o.StartLimit, Option: "StartLimit",
		Observers: w.observers, Failed: func(err error) { w.outcome(observe.ConditionDatabase, err) },
	}
	e.pool = runtime.NewPool(rows.db, ErrPoolClosed, e.observers)
	e.conditions = newConditions(rows.settings.table.Table, e.pool, e.observers)
	w.failover.CloseFor = rows.settings.stalled
	e.host = o.WorkerHostname + "/" + e.source.ID.String()
	w.settler = newSettler(e)
	w.calls = &calls{env: e, handler: made, settler: w.settler}
	w.heart = &heart{env: e, failover: &w.failover}
	w.life = runtime.Life{
		Package: "jobs/table", Goexit: errGoroutine, Again: ErrAlreadyStarted, Stopping: errStopping, Most: o.MaxActiveTime, DrainFor: o.ShutdownTimeout,
		Grace: func() time.Duration { return leaveTimeout }, Entered: func(s observe.State) { w.state.Store(s) },
	}
	w.state.Store(observe.StateNew)
	return w
}

// ID returns the ID of this worker. worker_hostname ends with this ID.
func (w *Worker) ID() uuid.UUID { return w.source.ID }

// Stop asks the worker to stop claiming, to wait for the jobs in flight and to end. It returns at
// once, and Start waits. Stop may be called at any time, any number of times, also from a handler.
func (w *Worker) Stop() { w.life.Ask() }

// Start runs the worker until ctx ends, Stop is called, or an error occurs that no retry can mend.
// The first two are a clean stop and return nil. The errors of this package name the remedy. Start
// first checks the configuration and the table, see Store.Check. If a check fails, it starts
// nothing. While the database cannot be reached, Start retries, for ever or for StartLimit. When
// Start returns, nothing of the worker is running any more.
//
// During a stop the worker claims no jobs, and waits for the running jobs, for ShutdownTimeout at
// most. Then the contexts of their handlers end. The jobs are queued again, and no failure is
// counted.
//
// A handler that ignores the end of its context cannot be ended. Some seconds after the context has
// ended, Start returns without the handler, with [ErrHandlerOverdue]. Only the goroutine of the
// handler still runs. What the handler returns then has no effect. The same applies to the hooks of
// Handler and to Scan.
func (w *Worker) Start(ctx context.Context) error {
	return w.life.Start(ctx, w.enter, w.work, w.leave)
}

// enter checks everything.
func (w *Worker) enter(p *runtime.Phases) error {
	w.calls.handling, w.calls.alive = p.Handling, p.Running
	err := w.startup.Reach(p.Intake, w.prepare)
	if w.prepared = err == nil; w.prepared {
		w.outcome(observe.ConditionDatabase, nil)
	}
	return err
}

// leave reports the end.
func (w *Worker) leave(_ *runtime.Phases, err error) {
	if w.prepared {
		w.observers.Notify(observe.WorkerStopped{Worker: w.source, Err: err})
	}
}

// work starts all goroutines. It returns when the jobs in flight have ended and their outcomes are
// stored.
func (w *Worker) work(p *runtime.Phases) error {
	w.observers.Notify(observe.WorkerStarted{Worker: w.source})
	for _, run := range []func(context.Context){w.heart.run, w.settler.run, resetter{w.env}.run, w.pool.Sweep} {
		p.Background.Run(func() error { run(p.Running); return nil })
	}
	p.Background.Run(func() error {
		w.failover.Watch(p.Running, w.pool, w.opts.HeartbeatInterval, w.limit, nil)
		return nil
	})
	stored, giveUp := context.WithCancel(p.Running) // while outcomes can be stored
	defer giveUp()
	p.Background.Run(func() error {
		return w.pool.AwaitClose(p.Running, func(why error) {
			p.Abandon(fmt.Errorf("%w: %w", errStopping, why))
			giveUp()
		})
	})
	ended := make(chan struct{})
	p.Background.Run(func() error {
		defer close(ended)
		return newLoop(w).run(p.Running, p.Intake)
	})
	<-ended
	err := w.settler.finish(stored)
	if w.awaitCalls(p.Running, leaveTimeout) > 0 {
		p.Abandon(errStopping)
		if n := w.awaitCalls(p.Running, w.grace); n > 0 {
			err = errtext.Join(err, fmt.Errorf("%w: the hook PostHandle of %d jobs", ErrHandlerOverdue, n))
		}
	}
	if late := w.inFlight.Overdue(); len(late) > 0 {
		ids := make([]int64, len(late))
		for i, r := range late {
			ids[i] = r.Claim.ID
		}
		slices.Sort(ids)
		err = errtext.Join(err, fmt.Errorf("%w: of jobs %v", ErrHandlerOverdue, ids))
	}
	return err
}

// prepare runs all checks before anything starts.
func (w *Worker) prepare(ctx context.Context) error {
	if w.store.bad != nil {
		return w.store.bad
	}
	if err := w.startup.Validate(w.bad, w.opts.check(w.store.settings.stalled)); err != nil {
		return err
	}
	return w.startup.Check(ctx, w.check)
}

// check checks the table.
func (w *Worker) check(ctx context.Context, _ pgdriver.Pooling, _ bool) error {
	conn, err := w.store.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs/table: take a connection: %w", err)
	}
	if err = w.store.check(ctx, conn, w.host); err == nil {
		w.sql, err = w.store.statements(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	w.heart.conn = conn
	return nil
}

// awaitCalls waits until no goroutine holds a slot. Handlers that were given up do not count, nor
// do jobs whose outcome cannot be stored. awaitCalls returns how many goroutines hold a slot after
// the limit.
func (w *Worker) awaitCalls(ctx context.Context, limit time.Duration) (left int) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		free, _ := w.free()
		if left = w.opts.NumHandlers - free - len(w.inFlight.Overdue()) - w.settler.Unsettled(); left <= 0 {
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
