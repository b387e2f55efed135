package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
)

// reserve is how many connections of a limited pool are kept from the transactions of handlers. The
// worker uses them for heartbeats, claims and settling.
const reserve = 3

// prepare runs all checks before anything starts, and makes the parts of the worker.
func (w *Worker) prepare(ctx context.Context) error {
	if err := w.startup.Validate(validate(w.handlers, w.cfg)...); err != nil {
		return err
	}
	return w.startup.Check(ctx, w.check)
}

// check checks the database, and makes the parts of the worker.
func (w *Worker) check(ctx context.Context, _ pgdriver.Pooling, _ bool) error {
	if err := w.checkDatabase(ctx); err != nil {
		return err
	}
	w.assemble()
	close(w.ready)
	return nil
}

// assemble makes the parts of the worker.
func (w *Worker) assemble() {
	w.looping = make(chan struct{}, mostLooping)
	w.kinds = w.handlers.kinds()
	w.slots = newSlots(w.cfg.concurrency, w.cfg.stopAfterJobs, func() { w.loops.wake() })
	w.settler = newSettler(&w.reports, func() { w.loops.wake() })
	w.runners.execute = w.newCalls().execute
	w.rescuer = &rescuer{
		env: w.env, delay: w.cfg.rescueDelay, interval: w.maintenanceInterval, back: func() { w.loops.each((*servedQueue).requestPoll) },
		chunks: chunks[int64]{what: refusedJob}, dead: map[uuid.UUID]time.Time{}, clean: map[uuid.UUID]time.Time{},
	}
	w.maintenance = &maintenance{
		env: w.env, events: w.events, interval: w.maintenanceInterval, retention: w.cfg.retention, rescuer: w.rescuer,
		expires: chunks[int64]{what: refusedJob}, retains: chunks[int64]{what: refusedJob}, forgets: chunks[string]{what: refusedKey},
	}
	w.coord = coord.New(w.coordination())
	w.rescuer.coord = w.coord
	for _, q := range w.cfg.served() {
		if len(w.kinds) > 0 { // else there is no kind to claim
			w.loops = append(w.loops, w.newLoop(q))
		}
	}
}

func (w *Worker) newCalls() *calls {
	c := &calls{
		reports: &w.reports, settler: w.settler, handling: w.handling, running: w.running,
		middleware: w.cfg.middleware, after: w.cfg.hooks.AfterHandle, grace: w.grace,
	}
	if n := w.db.Stats().MaxOpenConnections; n > 0 {
		c.txs = make(chan struct{}, max(n-reserve, 1))
	}
	return c
}

// newLoop makes the loop of a queue.
func (w *Worker) newLoop(q queueConfig) *loop {
	of := &servedQueue{
		name: q.name, capacity: q.concurrency, slots: w.slots, woken: make(chan struct{}, 1),
		told: QueueStatus{Name: q.name, Concurrency: q.concurrency},
	}
	of.seat = w.slots.seat(w.cfg.priorityOf(q.name), of.free, func() bool { return of.turn.Lasts() > w.limit })
	s := &shared{env: w.env, servedQueue: of, cfg: &w.cfg, kinds: w.kinds, looping: w.looping, claimable: true}
	l := &loop{shared: s, claimer: &claimer{shared: s}, stop: w.Stop}
	l.poller = &poller{
		shared: s, claimer: l.claimer, isDown: w.listener.IsDown,
		polls: jobrun.Polls{First: w.cfg.pollInterval, Longest: max(w.cfg.pollInterval, w.cfg.maxPollInterval)},
	}
	l.starter = &starter{shared: s, handlers: w.handlers, inFlight: &w.inFlight, settler: w.settler, runners: &w.runners, handling: w.handling}
	l.reconciler = &reconciler{shared: s, starter: l.starter}
	return l
}

// validate returns the errors of the arguments of NewWorker.
func validate(handlers *Handlers, c config) []error {
	all := append([]error{}, handlers.errs...)
	if len(handlers.of)+len(handlers.errs)+len(c.extensions) == 0 {
		all = append(all, errNoHandlers)
	}
	return append(all, c.validate())
}

// checkDatabase resolves every table once, on one connection. A search path that a handler leaves
// in a session later leads to no other table.
func (w *Worker) checkDatabase(ctx context.Context) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs: take a connection: %w", err)
	}
	defer conn.Close()
	t, events, err := w.cfg.tables()
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if err := checkRights(ctx, conn, w.cfg.leader == LeaderStrategyLease, t, events); err != nil {
		return err
	}
	if err := migrations.CheckJobs(ctx, conn, &migrations.Config{Names: w.cfg.names}); err != nil {
		return err
	}
	if w.tables, err = t.Resolve(ctx, conn); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	w.queue = queue.New(w.tables)
	if w.jobsChannel, _, err = w.queue.Channels(ctx, conn); err != nil {
		return err
	}
	if w.changesChannel, err = changes.Channel(ctx, conn, w.tables.Changes); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	w.events = events
	if err := w.ensureToken(ctx, conn); err != nil {
		return fmt.Errorf("jobs: put a token into %s: %w", w.tables.Token, err)
	}
	w.checkSequence(ctx, conn)
	return w.prepareExtensions(ctx, conn)
}

// coordination returns the configuration of package coord. Jobs are not assigned to workers: the
// worker that claims a job runs it.
func (w *Worker) coordination() coord.Config {
	c := coord.Config{
		DB: w.db.DB, ID: w.source.ID, Units: w.kinds, Column: "kinds",
		Nodes: w.tables.Workers, Stopped: w.tables.Stopped, Leader: w.tables.Leader, Changes: w.tables.Changes, Token: w.tables.Token,
		HeartbeatInterval: w.cfg.heartbeat, HeartbeatTimeout: w.cfg.heartbeatTimeout, RebalanceInterval: w.cfg.heartbeat,
		Lease: w.cfg.leader == LeaderStrategyLease, Hostname: w.cfg.hostname,
		Status:      func() ([]byte, error) { return w.Status().MarshalJSON() },
		Incarnation: runtime.StartedSQL + `::text`, FailedOver: w.failover.Beat,
		OnMembers: w.rescuer.see, OnDrain: w.life.Stop.Drain,
		OnLeader: func(leads bool) {
			w.observers.Notify(observe.LeadershipChanged{Worker: w.source, Leader: leads})
		},
		OnFailure: func(err error) {
			w.failover.Forget()
			err = errtext.Of(err)
			w.observers.Begin(about(observe.ConditionCoordination, ""), err)
			w.observers.Notify(observe.CoordinationFailed{Worker: w.source, Err: err})
		},
		OnBack: func() {
			w.maintenance.token.Store(true)
			w.observers.End(about(observe.ConditionCoordination, ""))
		},
		OnTaskFailed: w.taskFailed,
	}
	return c
}

// checkRights returns ErrPrivileges with every privilege that the role of this worker lacks. Some
// statements run for the first time after weeks, and would then fail for ever. Under row-level
// security, other statements would find no row and return no error: a paused queue would not seem
// paused. The tables of consumers are checked only if they exist.
func checkRights(ctx context.Context, conn *sql.Conn, lease bool, t tables.Jobs, events tables.Tables) error {
	needs := append(rights.JobsWorker(t, lease), rights.JobsEmitters(events)...)
	if err := rights.Check(ctx, conn, "", needs); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}
