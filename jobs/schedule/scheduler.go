package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// Scheduler enqueues the jobs of schedules. Make one with [New], and run it with Start.
type Scheduler struct {
	db         pgdriver.Pool
	client     *jobs.Client
	t          tables.Jobs
	tables     store.Names
	all        []*plan
	err        error // error of New's arguments
	loggers    []observe.Observer
	observing  []observe.Observer
	observers  *runtime.Observers // of observers and loggers, from Start on
	startLimit time.Duration      // 0: no limit
	started    atomic.Bool
	startup    runtime.Start

	mu sync.Mutex // guards the status of the plans
}

// plan is a schedule in a Scheduler.
type plan struct {
	Schedule
	hash     string // hash of its times
	sampled  string // hash of the same times in earlier builds
	failures int    // consecutive failures
	retryAt  time.Time
	status   Status
}

// Status is the state of one schedule in a Scheduler.
type Status struct {
	Name    string
	Next    time.Time // the next tick; zero: there is none, or it is unknown yet
	Last    time.Time // the latest tick for which this process has enqueued a job
	Jobs    int64     // jobs that this process has enqueued, without those that Unique left out
	Paused  bool
	Foreign bool  // another program has given the schedule other times; this one enqueues nothing
	Err     error // error of the latest try, nil if it succeeded
}

const (
	statementLimit = 10 * time.Second
	longestPause   = 10 * time.Second      // pause between two reads of the table, at most
	whileHeld      = 50 * time.Millisecond // pause while another process holds the schedule's row
)

var (
	// ErrPoolClosed ends a Scheduler whose db was closed while the Scheduler ran.
	ErrPoolClosed = errors.New("schedule: sql: database is closed: close db after Start has returned, not before")
	// ErrAlreadyStarted reports a second Start: a Scheduler starts once.
	ErrAlreadyStarted = errors.New("schedule: a Scheduler starts once; make another with New")
)

// New makes a Scheduler. client enqueues the jobs; db is the database of client. If an argument is
// invalid, Start returns the error. Warnings and errors go to slog.Default; see
// [Scheduler.WithLogger].
func New(db *sql.DB, client *jobs.Client, schedules ...Schedule) *Scheduler {
	s := &Scheduler{db: pgdriver.NewPool(db), client: client}
	var all []error
	if db == nil {
		all = append(all, errors.New("db is nil: open one with sql.Open"))
	}
	if client == nil {
		all = append(all, errors.New("client is nil: make one with jobs.NewClient"))
	} else {
		core := jobflow.Of(client)
		s.t, s.tables = core.Tables, core.Names
		all = append(all, core.Err)
	}
	if len(schedules) == 0 {
		all = append(all, errors.New("there are no schedules: make some with Job"))
	}
	for _, one := range schedules {
		p := &plan{Schedule: one, status: Status{Name: one.name}}
		if slices.ContainsFunc(s.all, func(p *plan) bool { return p.name == one.name }) {
			all = append(all, fmt.Errorf("two schedules are called %s: a name is one schedule's", errtext.Value(one.name)))
		}
		all = append(all, guarded(func() (err error) {
			if err := one.check(); err != nil {
				return err
			}
			if p.hash, p.sampled, err = fingerprint(one.spec); err != nil {
				return fmt.Errorf("schedule %s: %w", errtext.Value(one.name), err)
			}
			return nil
		}))
		s.all = append(s.all, p)
	}
	if err := errtext.Join(all...); err != nil {
		s.err = fmt.Errorf("schedule: %w: %w", jobs.ErrInvalidConfig, err)
	}
	return s
}

// WithLogger logs the events of the Scheduler, as [observe.Log] does, and returns the Scheduler.
// Call it before Start. By default warnings and errors go to [slog.Default].
func (s *Scheduler) WithLogger(l *slog.Logger) *Scheduler {
	s.loggers = append(s.loggers, observe.Log(l))
	return s
}

// WithStartLimit sets for how long Start retries while the database cannot be reached, and returns
// the Scheduler. With 0, the default, Start retries for ever. Each failed try is logged.
func (s *Scheduler) WithStartLimit(d time.Duration) *Scheduler {
	if s.startLimit = d; d < 0 {
		s.err = errtext.Join(s.err, fmt.Errorf("schedule: %w: WithStartLimit: %v is out of range, it takes 0 for no bound, or more", jobs.ErrInvalidConfig, d))
	}
	return s
}

// Status returns the state of the schedules, in the order of New's arguments.
func (s *Scheduler) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.all))
	for _, p := range s.all {
		all = append(all, p.status)
	}
	return all
}

func (s *Scheduler) change(p *plan, f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&p.status)
}

// Start runs until ctx ends, and then returns nil. It returns an error at once if New was given an
// invalid configuration, or if the database cannot be used. While the database cannot be reached,
// Start retries, see [Scheduler.WithStartLimit]. [errors.Is] distinguishes the errors:
//
//   - [jobs.ErrInvalidConfig], [ErrAlreadyStarted]: the program is wrong;
//   - [jobs.ErrOutage]: the database could not be reached for WithStartLimit;
//   - [migrations.ErrNotApplied], [migrations.ErrNewerVersion]: the tables are missing or older
//     than the program, or newer;
//   - [jobs.ErrPrivileges], with the GRANTs: a Scheduler needs the privileges that
//     migrations.JobsGrants gives a Client. The privileges of a Worker are not enough;
//   - [jobs.ErrPreparedStatements]: a proxy breaks the driver's statements. This is not checked
//     with a pool of one connection;
//   - [jobs.ErrStandby]: the server takes no writes;
//   - [ErrPoolClosed]: db was closed before ctx ended.
func (s *Scheduler) Start(ctx context.Context) error {
	if s.err != nil {
		return s.err
	}
	if s.started.Swap(true) {
		return ErrAlreadyStarted
	}
	s.observers = runtime.NewObservers(source(), s.loggers, s.observing)
	s.startup = runtime.Start{Package: "schedule", DB: s.db, Limit: s.startLimit, Option: "WithStartLimit", Observers: s.observers}
	if err := s.startup.Reach(ctx, s.begin); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return errtext.Of(err)
	}
	for failures := 0; ; {
		pause, err := s.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if pgdriver.IsPoolClosed(err) {
			return ErrPoolClosed
		}
		failures++
		if err == nil {
			failures = 0
		} else {
			s.taskFailed(ctx, "read schedules", errtext.Of(err))
			pause = backoff.Session(failures)
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
	}
}

// begin checks the database, and places the schedules in the table.
func (s *Scheduler) begin(ctx context.Context) error {
	return s.startup.Check(ctx, func(ctx context.Context, _ pgdriver.Pooling, _ bool) error {
		err := s.check(ctx)
		if err == nil {
			err = s.placeFirst(ctx)
		}
		if err != nil {
			err = fmt.Errorf("schedule: %w", err)
		}
		return err
	})
}

// check returns an error if the Scheduler cannot run on the database.
func (s *Scheduler) check(ctx context.Context) error {
	if err := s.checkRights(ctx); err != nil {
		return err
	}
	return migrations.CheckJobs(ctx, s.db, &migrations.Config{Names: s.tables})
}

// placeFirst places all schedules. It waits for processes that hold their rows.
func (s *Scheduler) placeFirst(ctx context.Context) error {
	for failures := 1; ; failures++ {
		// Another process may hold a row for longer than the role's statement_timeout.
		if err := s.place(ctx, s.all); !pgdriver.IsTimeLimit(err) || !backoff.Sleep(ctx, backoff.Session(failures)) {
			return err
		}
	}
}

// checkRights returns [jobs.ErrPrivileges] with every privilege that the role lacks, even if a
// Scheduler first needs it at a later tick. If row-level security hid a schedule, the Scheduler
// would not know whether the schedule is paused.
func (s *Scheduler) checkRights(ctx context.Context) error {
	var others []string
	hidden, err := rights.Hidden(ctx, s.db, s.t.Once)
	if err != nil {
		return err
	}
	if hidden != "" {
		others = append(others, hidden)
	}
	return rights.Check(ctx, s.db, "", rights.JobsScheduler(s.t), others...)
}

// place inserts the missing rows of schedules, and sets the next tick of each row that needs
// another one.
func (s *Scheduler) place(ctx context.Context, plans []*plan) error {
	for _, p := range plans {
		if err := guarded(func() error { return s.placeOne(ctx, p) }); err != nil {
			return fmt.Errorf("schedule %s: %w", errtext.Value(p.name), err)
		}
	}
	return nil
}

func (s *Scheduler) placeOne(ctx context.Context, p *plan) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	r, now, err := hold(ctx, tx, s.t.Schedules, p.name, p.hash)
	if err != nil {
		return err
	}
	first, changes, err := p.placed(r, now)
	if err != nil || !changes {
		return err
	}
	if err := place(ctx, tx, s.t.Schedules, p.name, p.hash, first); err != nil {
		return err
	}
	return tx.Commit()
}

// round enqueues the due ticks, and returns the pause until the next tick is due.
func (s *Scheduler) round(ctx context.Context) (pause time.Duration, err error) {
	bounded, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	rows, now, err := readRows(bounded, s.db, s.t.Schedules, s.names())
	if err != nil {
		return 0, err
	}
	read := time.Now()
	var replace []*plan // their rows were deleted, or have a tick too far ahead
	pause = longestPause
	for _, p := range s.all {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == p.name })
		if i < 0 {
			replace = append(replace, p)
			continue
		}
		r := rows[i]
		beyond := false
		if err := guarded(func() error { beyond = p.beyond(r, now); return nil }); err == nil && beyond {
			replace = append(replace, p)
			continue
		}
		foreign := r.hash != p.hash && r.hash != p.sampled
		if foreign && !p.status.Foreign {
			s.observers.Notify(observe.ScheduleForeign{Schedule: p.name})
		}
		s.change(p, func(st *Status) { st.Next, st.Paused, st.Foreign = r.next, r.paused, foreign })
		switch {
		case foreign, r.next.IsZero():
		case r.next.After(now):
			pause = min(pause, r.next.Sub(now))
		case read.Before(p.retryAt):
			pause = min(pause, p.retryAt.Sub(read))
		default:
			pause = min(pause, s.tryToFire(ctx, p, r, now))
		}
	}
	if len(replace) > 0 {
		return 0, s.place(bounded, replace)
	}
	return max(0, pause-time.Since(read)), nil
}

func (s *Scheduler) names() []string {
	var names []string
	for _, p := range s.all {
		names = append(names, p.name)
	}
	return names
}

// tryToFire calls fire and records the result. It returns when to read the schedule again. A
// schedule that fails does not delay the others.
func (s *Scheduler) tryToFire(ctx context.Context, p *plan, r row, now time.Time) time.Duration {
	var moved bool
	var enqueued int
	begin := time.Now()
	err := errtext.Of(guarded(func() (err error) {
		enqueued, moved, err = s.fire(ctx, p, r, now)
		return err
	}))
	if err == nil && moved {
		s.observers.Notify(observe.Ticked{Schedule: p.name, Tick: r.next, Jobs: enqueued, Late: max(now.Sub(r.next), 0), Took: time.Since(begin)})
	}
	if ctx.Err() != nil {
		return 0
	}
	s.change(p, func(st *Status) { st.Err = err })
	if err != nil {
		p.failures++
		pause := backoff.Session(p.failures)
		p.retryAt = time.Now().Add(pause)
		s.observers.Notify(observe.TickFailed{Schedule: p.name, Tick: r.next, Err: err})
		return pause
	}
	p.failures = 0
	if !moved {
		return whileHeld
	}
	return 0 // the next tick may be due
}

// due returns the due ticks from the first on with their jobs, and the next tick after now.
func (p *plan) due(first, now time.Time) (ticks []time.Time, entries []jobs.EnqueueParams, after time.Time, err error) {
	if ticks, after, err = due(p.spec, first, now, max(1, p.catchUp)); err != nil {
		return nil, nil, after, err
	}
	if p.catchUp == 0 && len(ticks) > 0 && now.Sub(ticks[0]) > late {
		ticks = nil
	}
	entries = make([]jobs.EnqueueParams, len(ticks))
	for i, tick := range ticks {
		if entries[i], err = p.entry(tick); err != nil {
			return nil, nil, after, err
		}
	}
	return ticks, entries, after, nil
}

// fire enqueues the due ticks of a schedule and advances the schedule. If another process has
// advanced it or holds its row, fire enqueues nothing. It returns how many jobs are new.
func (s *Scheduler) fire(ctx context.Context, p *plan, r row, now time.Time) (fresh int, moved bool, err error) {
	ticks, entries, after, err := p.due(r.next, now)
	if err != nil {
		return 0, false, err
	}
	var last time.Time
	if len(ticks) > 0 {
		last = ticks[len(ticks)-1]
	}
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	pass, moved, err := advance(ctx, tx, s.t.Schedules, r, last, after)
	if err != nil || !moved {
		return 0, false, err
	}
	for len(ticks) > 0 && !ticks[0].After(pass) {
		ticks, entries = ticks[1:], entries[1:]
	}
	var enqueued []jobs.Enqueued
	if len(entries) > 0 {
		if enqueued, err = s.client.EnqueueMany(ctx, tx, entries); err != nil {
			return 0, false, err
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, false, fmt.Errorf("commit: %w", err)
	}
	for _, e := range enqueued {
		if !e.Existing {
			fresh++
		}
	}
	s.change(p, func(st *Status) {
		if len(enqueued) > 0 {
			st.Last = last
		}
		st.Jobs += int64(fresh)
	})
	return fresh, true, nil
}
