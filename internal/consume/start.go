package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// minPool is the smallest pool that a worker can use: one batch beside the reserve.
const minPool = reserve + 1

// prepare checks everything that can be checked before anything runs, and makes the
// worker's parts.
func (w *Worker) prepare(ctx context.Context) error {
	if err := w.startup.Validate(w.validate()...); err != nil {
		return err
	}
	return w.startup.Check(ctx, w.check)
}

// check checks the database, and makes the worker's parts.
func (w *Worker) check(ctx context.Context, proxy pgdriver.Pooling, lent bool) error {
	w.pooling, w.nestedPool = proxy, lent
	t, err := tables.Parse(w.cfg.Names)
	if err != nil {
		return err
	}
	if err := checkRights(ctx, &w.env, w.log, w.cfg.LeaderStrategy == LeaderStrategyLease, t); err != nil {
		return err
	}
	if err := migrations.Check(ctx, w.db, w.cfg.migrations()); err != nil {
		return err
	}
	w.loopConns = newBudget(w.db.Stats().MaxOpenConnections)
	if w.loopConns != nil {
		w.lookupConns = make(budget, 1)
	}
	if t, err = w.bind(ctx, t); err != nil {
		return err
	}
	if w.cfg.DispatcherStrategy == DispatcherStrategyNotify {
		if w.channel, err = changes.Channel(ctx, w.db, t.Changes); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		if w.waitChannel, err = changes.WaitChannel(ctx, w.db, t.Changes); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
	}
	w.assemble(t)
	return nil
}

// assemble makes the worker's parts.
func (w *Worker) assemble(t tables.Tables) {
	f := w.cfg.frontier(w.db.DB, w.bound, t, w.onChangeNotification)
	w.observeFrontier(&f, w.sweepNow.Send)
	w.frontier = frontier.New(f)
	w.ahead = reader.NewAhead(w.bound, w.cfg.BatchSize, func() *frontier.Value { return w.frontier.Value() }, readConns{&w.connections}, aheadBytes)
	coordination := w.cfg.coord(w.db.DB, w.id, w.units, t, w.health.heartbeat)
	coordination.Incarnation, coordination.FailedOver = w.incarnation, w.isOtherIncarnation
	coordination.OnDrain = w.life.Stop.Drain
	w.observeCoordination(&coordination)
	w.coord = coord.New(coordination)
	w.placer = &placer{env: &w.env, every: w.cfg.StaleGapThreshold}
	w.audit = &audit{env: &w.env, now: w.compactNow, leads: func() bool { return w.coord.Status().Leader }, keep: w.cfg.GapSkipRetention}
	w.arrivals = &arrivals{env: &w.env, awaited: w.awaited, channel: w.waitChannel}
	w.waits = arrival.Waits{Callers: w.awaited, First: w.cfg.DispatcherInterval, Every: w.cfg.DispatcherInterval, Arrived: w.arrivals.read, Ask: w.arrivals.ask}
	w.logReads = &logReads{env: &w.env, ages: newAges(), log: w.log}
	w.progressWatch = &progressWatch{env: &w.env, now: wakeup.New(), poll: w.cfg.PollInterval, most: w.cfg.MaxPollInterval, ages: w.logReads.watch}
	w.health.coordinated = func() time.Time { return w.coord.Status().LastTurn }
	w.health.coord, w.health.reads, w.health.watched = w.coord, w.logReads, &w.progressWatch.began
	w.supervisor = &supervisor{
		env: &w.env, coord: w.coord, cfg: &w.cfg, unfinished: make(chan []string, 1),
		loop: func(ctx, stop, intake context.Context, u *unit) error {
			c := newLoop(&w.shared, u)
			c.stop = stop
			return c.run(ctx, intake)
		},
	}
}

// bind resolves every table once, on one connection, and returns the qualified names. So a
// search path that a handler leaves in a session does not change the worker's tables. bind
// also checks the log, and binds its reads to the server's incarnation.
func (w *Worker) bind(ctx context.Context, t tables.Tables) (tables.Tables, error) {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return t, fmt.Errorf("worker: take a connection: %w", err)
	}
	defer conn.Close()
	if w.ascii, err = pgdriver.IsNarrow(ctx, conn); err != nil {
		return t, fmt.Errorf("worker: %w", err)
	}
	if t, err = t.Resolve(ctx, conn); err != nil {
		return t, fmt.Errorf("worker: %w", err)
	}
	source, err := w.cfg.frontier(w.db.DB, w.log, t, nil).Preflight(ctx, conn)
	if err != nil {
		return t, refused(err)
	}
	s := progress.Server{
		Incarnation: incarnation.Of(t.Token, source.Table, source.Sequence, strconv.FormatInt(source.Database, 10)+`::oid`),
		Sequence:    source.Sequence,
	}
	w.incarnation = s.Incarnation
	w.checkpoints = progress.New(t, w.id, w.cfg.BatchTimeout, s)
	if w.bound, err = incarnation.Bind(ctx, conn, w.log, s.Incarnation); err != nil {
		return t, fmt.Errorf("worker: find the event log: %w", err)
	}
	return t, nil
}

// refused adds the sentinel error of a database's fault, by which callers of Start
// distinguish faults.
func refused(err error) error {
	switch {
	case errors.Is(err, frontier.ErrInRecovery):
		return fmt.Errorf("worker: %w: %w", ErrStandby, err)
	case errors.Is(err, frontier.ErrNoPrivilege), errors.Is(err, frontier.ErrRowSecurity):
		return fmt.Errorf("worker: %w: %w", ErrPrivileges, err)
	}
	return err
}

// validate returns the errors of the arguments of New.
func (w *Worker) validate() (all []error) {
	if pgdriver.IsNil(w.log) {
		all = append(all, errors.New("eventStore is nil: make one with NewStore of package store/postgres"))
	} else if v, ok := w.log.(interface{ Validate() error }); ok {
		all = append(all, v.Validate())
	}
	units, err := unitsOf(w.consumers)
	w.units = units
	return append(all, err, w.cfg.Validate())
}

// reconcileInterval is how often a listening worker polls, in case a notification was lost.
const reconcileInterval = time.Second

func (c Config) frontier(db *sql.DB, log store.Log, t tables.Tables, onChange func()) frontier.Config {
	f := frontier.Config{
		DB: db, Log: log, Token: t.Token, Settled: t.Settled, Changes: t.Changes,
		Strict:     c.GapPolicy == GapWait,
		StaleAfter: c.StaleGapThreshold,
		HarborLag:  int64(c.StaleGapHarborLag),
		Interval:   c.DispatcherInterval,
		OnChange:   onChange,
	}
	if c.DispatcherStrategy == DispatcherStrategyNotify {
		f.Interval = reconcileInterval
	}
	return f
}

func (c Config) coord(db *sql.DB, id uuid.UUID, units []*unit, t tables.Tables, status func() ([]byte, error)) coord.Config {
	cc := coord.Config{
		DB: db, ID: id, Hostname: c.Hostname,
		Nodes: t.Nodes, Stopped: t.Stopped, Assignments: t.Assignments, Checkpoints: t.Checkpoints, Leader: t.Leader, Changes: t.Changes, Token: t.Token, Column: "consumers",
		HeartbeatInterval: c.HeartbeatInterval,
		HeartbeatTimeout:  c.HeartbeatTimeout,
		RebalanceInterval: c.RebalanceInterval,
		Lease:             c.LeaderStrategy == LeaderStrategyLease,
		Sticky:            c.AssignmentStrategy == AssignSticky,
		Status:            status,
		Demands:           map[string]partition.Demand{},
		Scopes:            map[string]scope.Scope{},
	}
	for _, u := range units {
		cc.Units = append(cc.Units, u.name)
		cc.Demands[u.name], cc.Scopes[u.name] = u.demand, u.scope
	}
	return cc
}
