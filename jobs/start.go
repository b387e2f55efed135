package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
)

const (
	// answerTimeout bounds how long Start waits for the database to answer.
	answerTimeout = 10 * time.Second
	// startTimeout bounds the checks of a database that answers. A slow one, as after a
	// failover, is no reason to end a worker.
	startTimeout = time.Minute
	// reserve is how many connections of a limited pool the transactions of handlers
	// leave to the worker: for heartbeats, to claim and to settle.
	reserve = 3
)

var errSlowStart = fmt.Errorf("jobs: the checks of the database at the start took longer than %v: look at what keeps the server or the network busy: %w", startTimeout, context.DeadlineExceeded)

// prepare checks everything that can be checked before anything runs, and makes the
// worker's parts.
func (w *Worker) prepare(ctx context.Context) (err error) {
	if err := w.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlowStart)
	defer cancel()
	if err := pgdriver.AnswersWithin(ctx, w.db.DB, answerTimeout); err != nil {
		return fmt.Errorf("jobs: the database does not answer (looked for at most %v): check the address, the credentials and that the server runs: %w", answerTimeout, err)
	}
	defer func() { err = pgdriver.CutOff(ctx, err) }()
	if err := w.checkPooling(ctx); err != nil {
		return err
	}
	if err := w.checkDatabase(ctx); err != nil {
		return err
	}
	if n := w.db.Stats().MaxOpenConnections; n > 0 {
		w.txs = make(chan struct{}, max(n-reserve, 1))
	}
	w.looping = make(chan struct{}, mostLooping)
	w.kinds = w.handlers.kinds()
	w.slots = newSlots(w.cfg.concurrency, w.cfg.stopAfterJobs, w.wakeAll)
	w.hand.init()
	w.runners.w = w
	w.settler = newSettler(w)
	w.rescuer = newRescuer(w)
	w.chores = newChores(w)
	w.coord = coord.New(w.coordination())
	for _, q := range w.cfg.served() {
		if len(w.kinds) > 0 { // else there is nothing to claim
			w.loops = append(w.loops, newLoop(w, q))
		}
	}
	close(w.ready)
	return nil
}

// reach makes a step of the start, and repeats it while the database cannot be reached.
func (w *Worker) reach(ctx context.Context, step func(context.Context) error) error {
	return pgdriver.Reach(ctx, w.cfg.startLimit, func(err error) { w.taskFailed("start", err) }, step)
}

// validate checks what NewWorker was given, without the database.
func (w *Worker) validate() error {
	var all []error
	if w.db.DB == nil {
		all = append(all, errors.New("db is nil: open one with sql.Open"))
	} else if n := w.db.Stats().MaxOpenConnections; n > 0 && n < reserve+1 {
		all = append(all, fmt.Errorf("db allows %d open connections, a worker needs at least %d (and one more for every job of RegisterTx that is to run at the same time): raise db.SetMaxOpenConns", n, reserve+1))
	}
	all = append(all, w.handlers.errs...)
	if len(w.handlers.of)+len(w.handlers.errs)+len(w.cfg.companions) == 0 {
		all = append(all, errNoHandlers)
	}
	return errtext.Join(append(all, w.cfg.validate())...)
}

// checkPooling refuses what a transaction-pooling proxy breaks, and a pool within a pool.
func (w *Worker) checkPooling(ctx context.Context) error {
	if _, err := w.db.FindLender(ctx); errors.Is(err, pgdriver.ErrNoLimit) {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	} else if err != nil {
		return fmt.Errorf("jobs: take a connection: %w", err)
	}
	p, err := pgdriver.FindPooling(ctx, w.db)
	w.pooling = p
	switch {
	case err != nil:
		return fmt.Errorf("jobs: look for a proxy: %w", err)
	case p.Pooled && w.cfg.leader == LeaderStrategyAdvisory:
		return ErrTransactionPooling
	case p.Pooled:
		err = pgdriver.TryStatements(ctx, w.db)
	}
	if pgdriver.IsMixedUp(err) {
		return fmt.Errorf("%w: %v", ErrPreparedStatements, err) // its SQLSTATE is that of a lost connection
	}
	return err
}

// pooled says it in this package's words if a proxy has shown itself later.
func pooled(err error) error {
	if errors.Is(err, coord.ErrTransactionPooling) {
		return ErrTransactionPooling
	}
	return err
}

// checkDatabase finds every table once, on one connection: a search path that a
// handler leaves behind in a session then leads to no other table.
func (w *Worker) checkDatabase(ctx context.Context) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs: take a connection: %w", err)
	}
	defer conn.Close()
	if err := pgdriver.CheckFormats(ctx, conn); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	var readOnly bool
	if err := conn.QueryRowContext(ctx, `SELECT current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
		return fmt.Errorf("jobs: look whether the server takes writes: %w", err)
	}
	if readOnly {
		return ErrStandby
	}
	t, err := tables.ParseJobs(w.cfg.table, "WithTable")
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if err := w.checkRights(ctx, conn, t); err != nil {
		return err
	}
	if err := migrations.CheckJobs(ctx, conn, &migrations.Config{JobsTable: w.cfg.table}); err != nil {
		return err
	}
	if w.tables, err = t.Resolve(ctx, conn); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	w.queue = queue.New(w.tables)
	if w.news, _, err = w.queue.Channels(ctx, conn); err != nil {
		return err
	}
	if w.changes, err = changes.Channel(ctx, conn, w.tables.Changes); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if w.events, err = tables.Parse(w.cfg.events, "WithCheckpointsTable: "); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if err := w.plantToken(ctx, conn); err != nil {
		return fmt.Errorf("jobs: put a token into %s: %w", w.tables.Token, err)
	}
	w.compareSequence(ctx, conn)
	return w.prepareCompanions(ctx, conn)
}

// coordination is what package coord needs. Nothing is assigned: the
// worker that claims a job runs it.
func (w *Worker) coordination() coord.Config {
	c := coord.Config{
		DB: w.db.DB, ID: w.id, Units: w.kinds, Column: "kinds",
		Nodes: w.tables.Workers, Leader: w.tables.Leader, Changes: w.tables.Changes, Token: w.tables.Token,
		HeartbeatInterval: w.cfg.heartbeat, HeartbeatTimeout: w.cfg.heartbeatTimeout, RebalanceInterval: w.cfg.heartbeat,
		Strategy: coord.Advisory, Hostname: w.cfg.hostname,
		Status:      w.heartbeatStatus,
		Incarnation: startedSQL, Elsewhere: w.home.isElsewhere,
		OnMembers: w.rescuer.see, OnDrain: w.stop.Drain,
		OnLeader: func(leads bool) {
			tell(w.voice, "LeadershipChanged", func(o *Observer) func(Leadership) { return o.LeadershipChanged }, Leadership{w.id, leads})
		},
		OnFailure: func(err error) {
			w.home.forget()
			w.troubled("coordination", "", func() {
				tell(w.voice, "CoordinationFailed", func(o *Observer) func(error) { return o.CoordinationFailed }, errtext.Of(err))
			})
		},
		OnBack: func() {
			w.chores.token.Store(true)
			w.recovered("coordination", "")
		},
		OnTaskFailed: w.taskFailed,
	}
	if w.cfg.leader == LeaderStrategyLease {
		c.Strategy = coord.Lease
	}
	return c
}

// heartbeatStatus is what a heartbeat leaves in the table of workers.
func (w *Worker) heartbeatStatus() ([]byte, error) { return w.Status().MarshalJSON() }

// comeAll makes every queue look again soon.
func (w *Worker) comeAll() {
	for _, l := range w.loops {
		l.come()
	}
}

// wakeAll makes every queue look for what it can do.
func (w *Worker) wakeAll() {
	for _, l := range w.loops {
		l.nudge()
	}
}
