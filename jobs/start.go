package jobs

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
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
	w.looping = make(chan struct{}, mostLooping)
	w.kinds = w.handlers.kinds()
	w.slots = newSlots(w.cfg.concurrency, w.cfg.stopAfterJobs, func() { w.loops.wake() })
	w.settler = newSettler(w)
	w.runners.execute = newCalls(w).execute
	w.rescuer = newRescuer(w)
	w.maintenance = newMaintenance(w)
	w.coord = coord.New(w.coordination())
	w.rescuer.coord = w.coord
	for _, q := range w.cfg.served() {
		if len(w.kinds) > 0 { // else there is no kind to claim
			w.loops = append(w.loops, newLoop(w, q))
		}
	}
	close(w.ready)
	return nil
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
