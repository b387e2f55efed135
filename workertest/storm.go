package workertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// StormOptions are the events, the read model and the settings of a [Storm].
type StormOptions struct {
	// Events are appended to the log in this order. At least one must be of the consumer's types.
	// A few hundred of several aggregates are a good choice. A zero EventID is filled in.
	Events []store.Event
	// Model has the queries that read the read model, such as "SELECT id, cents FROM totals". The
	// rows are compared in any order. At least one query is needed.
	Model []string
	// Options are applied to the workers. Storm overrides the options of time, batches and failures.
	Options []worker.Option
	// Seed decides which events get which fault. With 0 it is drawn. The errors name it. What
	// happens at the same time differs between runs of a seed.
	Seed uint64
	// Limit bounds Storm. The faults last for half of it, 5 s at most. The default, 0, is 10 s and
	// 20 ms per event.
	Limit time.Duration
}

// Storm checks that faults do not change what a consumer writes. It appends o.Events and calls the
// handler with them in one quiet transaction, which it rolls back. Then workers handle the events
// under faults, and the read model must have the rows of the quiet run.
//
// The faults are: a handler's error before or after its work, a lost connection before, during or
// after the handler and at COMMIT, a stop or crash of a worker, late commits of writers, batches of
// different sizes, splits and merges of a [consumer.Partitioned].
//
// create returns a new value of the consumer, as a process does. The handler is called many times
// per event, and most calls are rolled back. Give it fakes for mail and other external effects.
//
// The error names the difference and its probable cause:
//
//   - a statement through the pool instead of tx;
//   - a result that depends on time.Now, on random numbers, or on the order of a map;
//   - a statement whose error is ignored;
//   - state in memory, which a rollback does not undo and a restart loses;
//   - dependence on the order of events of different aggregates. Late commits change that order, but
//     an event never comes before the event that its CausationID names. Storm does not change the
//     order if o.Options has [worker.GapWait];
//   - a Partitioned handler that is not safe for concurrent use.
//
// If Storm cannot finish within o.Limit, the error says NOT JUDGED.
//
// The database must be the test's own, with the tables of package migrations. The consumer must not
// have run in it. Its StartAt is ignored: it starts before the first event of o.Events. Storm commits
// the events and the read model. It needs up to 20 connections of db. When Storm returns, no
// goroutine and no transaction of its own is running.
func Storm(ctx context.Context, db *sql.DB, log interface {
	store.Log
	store.EventStore
}, create func() consumer.Consumer, o StormOptions) error {
	if o.Seed == 0 {
		o.Seed = 1 + uint64(rand.Uint32())
	}
	if o.Limit == 0 {
		o.Limit = 10*time.Second + time.Duration(len(o.Events))*20*time.Millisecond
	}
	s, err := newStorm(db, log, create, o)
	if err != nil {
		return fmt.Errorf("workertest: Storm: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, errLimit)
	defer cancel()
	err = s.run(ctx, o)
	if errors.Is(context.Cause(ctx), errLimit) && err != nil {
		err = fmt.Errorf("NOT JUDGED after %v, raise Limit or give fewer events: %w", o.Limit, err)
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("workertest: Storm of consumer %q with Seed %d: %w", s.name, o.Seed, err))
	}
	return nil
}

var errLimit = errors.New("the time is over")

// connections is the number of connections that Storm uses at most.
const connections = 20

func newStorm(db *sql.DB, log stormLog, create func() consumer.Consumer, o StormOptions) (*storm, error) {
	switch {
	case db == nil || log == nil || create == nil:
		return nil, errors.New("db, log or create is nil")
	case len(o.Model) == 0:
		return nil, errors.New("StormOptions.Model is empty: give a query of the read model")
	case o.Limit < 0:
		return nil, fmt.Errorf("StormOptions.Limit is %v: give a time above 0", o.Limit)
	}
	if n := db.Stats().MaxOpenConnections; n > 0 && n < connections {
		return nil, fmt.Errorf("db allows %d open connections, Storm needs %d: raise db.SetMaxOpenConns", n, connections)
	}
	c, other := create(), create()
	if isNil(c) || isNil(other) {
		return nil, errors.New("create returns nil")
	}
	if v := reflect.ValueOf(c); v.Kind() == reflect.Pointer && v.Type().Elem().Size() > 0 && c == other {
		return nil, errors.New("create returns the same value twice: make a new one in each call, as each process does")
	}
	s := &storm{db: db, log: log, create: create, model: o.Model, opts: o.Options, config: worker.DefaultConfig(), name: c.Name(), dice: rand.New(rand.NewPCG(o.Seed, 0))}
	for _, opt := range o.Options {
		if opt != nil {
			opt(&s.config)
		}
	}
	if scoped, ok := c.(consumer.ScopedConsumer); ok {
		s.types = scoped.AggregateTypes()
	}
	if parts, ok := c.(consumer.Partitioned); ok {
		p := parts.Partitions()
		s.parts = &p
	}
	return s, nil
}

func (s *storm) run(ctx context.Context, o StormOptions) error {
	defer func() {
		for _, w := range s.late {
			_ = w.tx.Rollback()
		}
	}()
	operator, err := ops.New(s.db, ops.WithNames(s.config.Names))
	if err != nil {
		return err
	}
	if all, err := operator.Consumers(ctx); err != nil {
		return err
	} else if slices.ContainsFunc(all, func(c ops.Consumer) bool { return c.Name == s.name }) {
		return errors.New("the consumer has run in this database: use a database of its own")
	}
	if err := s.appendAll(ctx, o.Events); err != nil {
		return err
	}
	if len(s.events) == 0 {
		return errors.New("StormOptions.Events has no event of the consumer's types")
	}
	if err := checkPartitions(s.create(), s.events); err != nil {
		return err
	}
	want, err := s.quietRuns(ctx)
	if err != nil {
		return err
	}
	g := s.begin()
	if err := g.run(ctx, operator, min(o.Limit/2, longest)); err != nil {
		if errors.Is(err, worker.ErrConsecutiveFailures) {
			err = fmt.Errorf("the handler fails in the storm only: %w: %s", err, s.hintStorm())
		}
		return err
	}
	return s.judge(ctx, &g.ledger, want)
}

// judge compares the calls with the log, and the read model with the wanted one.
func (s *storm) judge(ctx context.Context, l *ledger, want [][]string) error {
	conn, err := pgdriver.Pool{DB: s.db}.Conn(ctx) // a connection that a fault has cut off may be in the pool
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it only gives the connection back
	if err := l.judge(ctx, conn, s.events); err != nil {
		return err
	}
	got, err := readModel(ctx, conn, s.model)
	if err != nil {
		return err
	}
	if d := difference(want, got); d != "" {
		return fmt.Errorf("the read model after the storm differs from the quiet run: %s: %s", d, s.hintStorm())
	}
	return nil
}

// hintStorm is the hint for a difference that only the workers show.
func (s *storm) hintStorm() string {
	hint := "the handler depends on what other transactions have committed, or on the batches: execute every statement, also reads, through tx"
	if s.parts != nil {
		hint = "Handle may not be safe for concurrent use: share no fields between calls, read and write only rows of the event's key, and run the test under -race; or " + hint
	}
	return hint
}

// quietRuns returns the read model of a run without faults. It compares further runs without
// workers, each of which shows one kind of mistake.
func (s *storm) quietRuns(ctx context.Context) ([][]string, error) {
	empty, err := readModel(ctx, s.db, s.model)
	if err != nil {
		return nil, err
	}
	want, err := s.quietly(ctx, func(ctx context.Context, q *quiet) error { return q.plain(ctx) })
	if err != nil {
		return nil, fmt.Errorf("in the quiet run: %w", err)
	}
	left, err := readModel(ctx, s.db, s.model)
	if err != nil {
		return nil, err
	}
	if d := difference(empty, left); d != "" {
		return nil, fmt.Errorf("rows remain after the rollback of tx: %s: %s", d, hintPool)
	}
	if difference(empty, want) == "" {
		return nil, errors.New("the events do not change the rows of StormOptions.Model: query what the consumer writes")
	}
	for _, run := range []struct {
		what    string
		play    func(*quiet, context.Context) error
		hint    string
		failing bool // the hint holds for an error, too
	}{
		{"a second quiet run", (*quiet).plain, hintRandom, true},
		{"a run with failing statements", (*quiet).swallowing, hintMemory, false},
		{"a run with rollbacks and restarts", (*quiet).repeated, hintMemory, true},
		{"a run with late events", (*quiet).reordered, hintOrder, true},
	} {
		if run.hint == hintOrder && s.parts == nil && s.config.GapPolicy == worker.GapWait {
			continue
		}
		got, err := s.quietly(ctx, func(ctx context.Context, q *quiet) error { return run.play(q, ctx) })
		if err != nil {
			err = fmt.Errorf("in %s: %w", run.what, err)
			if ctx.Err() == nil && run.failing {
				err = fmt.Errorf("%w: %s", err, run.hint)
			}
			return nil, err
		}
		if d := difference(want, got); d != "" {
			return nil, fmt.Errorf("%s differs from the first: %s: %s", run.what, d, run.hint)
		}
	}
	return want, nil
}
