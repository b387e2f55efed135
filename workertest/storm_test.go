package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// stormed is a consumer of a function. Its value has state of the kinds that a storm finds.
type stormed struct {
	handle func(s *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	calls  int
	seen   map[string]bool

	mu              sync.Mutex
	last, partition string
}

func (s *stormed) Name() string { return "c" }

func (s *stormed) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return s.handle(s, ctx, tx, e)
}

// stormedParts is stormed in partitions.
type stormedParts struct{ *stormed }

func (stormedParts) Partitions() consumer.Partitions { return consumer.Partitions{Count: 4} }

// add counts an event of id.
func add(ctx context.Context, q store.Querier, id string) error {
	_, err := q.ExecContext(ctx, `INSERT INTO counts VALUES ($1::text, 1) ON CONFLICT (id) DO UPDATE SET n = counts.n + 1`, id)
	return err
}

// set overwrites the row of id.
func set(ctx context.Context, q store.Querier, id string, n int64) error {
	_, err := q.ExecContext(ctx, `INSERT INTO counts VALUES ($1::text, $2::int) ON CONFLICT (id) DO UPDATE SET n = excluded.n`, id, n)
	return err
}

// stormEvents are n events of some aggregates.
func stormEvents(n int) (all []store.Event) {
	for i := range n {
		all = append(all, event("Order", fmt.Sprint("a", i%12)))
	}
	return all
}

type stormHandle = func(s *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error

func runStorm(t *testing.T, db *sql.DB, create func() consumer.Consumer, change func(*workertest.StormOptions)) error {
	t.Helper()
	o := workertest.StormOptions{Events: stormEvents(40), Model: []string{`SELECT * FROM counts`}, Limit: patience}
	if change != nil {
		change(&o)
	}
	return workertest.Storm(t.Context(), db, newStore(), create, o)
}

func stormer(handle stormHandle) func() consumer.Consumer {
	return func() consumer.Consumer { return &stormed{handle: handle, seen: map[string]bool{}} }
}

func counting(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return add(ctx, tx, e.AggregateID)
}

// A storm finds no fault in a correct consumer, with both drivers.
func TestStormOfCorrectConsumers(t *testing.T) {
	t.Parallel()
	pgx := func(_ *testing.T, d *pgtest.Database) *sql.DB { return d.DB }
	pq := func(t *testing.T, d *pgtest.Database) *sql.DB { return d.OpenPQ(t) }
	least := func(_ *testing.T, d *pgtest.Database) *sql.DB {
		d.DB.SetMaxOpenConns(20)
		return d.DB
	}
	for name, c := range map[string]struct {
		open   func(t *testing.T, d *pgtest.Database) *sql.DB
		create func() consumer.Consumer
	}{
		"pgx":              {pgx, stormer(counting)},
		"pgx, partitioned": {least, func() consumer.Consumer { return stormedParts{&stormed{handle: counting}} }},
		"pgx, batches":     {pgx, func() consumer.Consumer { return &bulk{counter: &counter{name: "c", types: []string{"Order"}}} }},
		"lib/pq, batches, partitioned": {pq, func() consumer.Consumer {
			return &bulkPartitioned{partitioned{counter{name: "c"}, consumer.Partitions{Count: 3}}}
		}},
		"lib/pq, at the head": {pq, func() consumer.Consumer { return &counter{name: "c", start: consumer.AtHead()} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.open(t, newDatabase(t))
			if err := runStorm(t, db, c.create, nil); err != nil {
				t.Error(err)
			}
			pgtest.AwaitUnused(t, db)
		})
	}
}

// A handler may depend on the order of causes, and on the global order under GapWait.
func TestStormKeepsPromisedOrder(t *testing.T) {
	t.Parallel()
	latest := func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		return set(ctx, tx, "last", e.GlobalPosition)
	}
	for name, change := range map[string]func(o *workertest.StormOptions){
		"GapWait": func(o *workertest.StormOptions) { o.Options = []worker.Option{worker.WithGapPolicy(worker.GapWait)} },
		"causes": func(o *workertest.StormOptions) {
			for i := 1; i < len(o.Events); i++ {
				o.Events[i].CausationID = store.NullString{String: o.Events[i-1].EventID.String(), Valid: true}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := runStorm(t, newDatabase(t).DB, stormer(latest), change); err != nil {
				t.Error(err)
			}
		})
	}
}

// The handler may append to the aggregates of the events. A late writer does not block it for ever.
func TestStormOfAppendingHandler(t *testing.T) {
	t.Parallel()
	events := newStore()
	err := runStorm(t, newDatabase(t).DB, stormer(func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.EventType != "Happened" {
			return nil
		}
		noted := event(e.AggregateType, "a3")
		noted.EventType = "Noted"
		if _, err := events.Append(ctx, tx, store.Any(), []store.Event{noted}); err != nil {
			return err
		}
		return add(ctx, tx, e.AggregateID)
	}), func(o *workertest.StormOptions) { o.Events = stormEvents(24) })
	if err != nil {
		t.Error(err)
	}
}

// Late events, partitions, repeated batches and lost connections occur, and several values of the
// consumer. Time ends the faults, so a slow machine may need several storms.
func TestStormReachesConditions(t *testing.T) {
	t.Parallel()
	var late, parts, repeated, cut, values atomic.Int64
	create := func() consumer.Consumer {
		values.Add(1)
		return stormedParts{&stormed{handle: counting}}
	}
	see := worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
		return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
			i, _ := consumer.Info(ctx)
			for seen, n := range map[*atomic.Int64]bool{&late: i.Late, &parts: i.Partition != "", &repeated: i.Attempt > 1} {
				if n {
					seen.Add(1)
				}
			}
			err := next(ctx, tx, events)
			if pgdriver.IsConnectionLoss(err) {
				cut.Add(1)
			}
			return err
		}
	})
	for storms := 1; late.Load() == 0 || parts.Load() == 0 || repeated.Load() == 0 || cut.Load() == 0 || values.Load() < 12; storms++ {
		if storms > 10 {
			t.Fatalf("%d late calls, %d in partitions, %d repeated, %d cut off, %d values", late.Load(), parts.Load(), repeated.Load(), cut.Load(), values.Load())
		}
		if err := runStorm(t, newDatabase(t).DB, create, func(o *workertest.StormOptions) { o.Options = []worker.Option{see} }); err != nil {
			t.Fatal(err)
		}
	}
}

// forgetful hides an event from its readers.
type forgetful struct {
	store.Log
	store.EventStore
}

func (f forgetful) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	all, err := f.Log.ReadEvents(ctx, q, after, limit)
	return slices.DeleteFunc(all, func(e store.PersistedEvent) bool { return e.AggregateVersion == 2 && e.AggregateID == "a1" }), err
}

// Each event must be handled, whatever the read model has.
func TestStormCountsCommittedCalls(t *testing.T) {
	t.Parallel()
	err := workertest.Storm(t.Context(), newDatabase(t).DB, forgetful{newStore(), newStore()}, stormer(counting),
		workertest.StormOptions{Events: stormEvents(30), Model: []string{`SELECT * FROM counts`}, Limit: patience})
	if err == nil || !strings.Contains(err.Error(), `(type "Happened") was handled in 0 committed transactions, want 1`) {
		t.Error(err)
	}
}

// A handler that fails or blocks in the storm only is named, and Storm ends.
func TestStormEnds(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		handle stormHandle
		limit  time.Duration
	}{
		"the handler fails in the storm only: ": {func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if i, _ := consumer.Info(ctx); i.Partition != "" {
				return errBoom
			}
			return counting(nil, ctx, tx, e)
		}, patience},
		"NOT JUDGED after 2s, raise Limit or give fewer events: ": {func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if i, _ := consumer.Info(ctx); i.Partition != "" {
				<-ctx.Done()
				return ctx.Err()
			}
			return counting(nil, ctx, tx, e)
		}, 2 * time.Second},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			err := runStorm(t, d.DB, func() consumer.Consumer { return stormedParts{&stormed{handle: c.handle}} },
				func(o *workertest.StormOptions) { o.Limit = c.limit })
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want %q", err, says)
			}
			pgtest.AwaitUnused(t, d.DB)
		})
	}
}

func TestStormRefusesArguments(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	if err := catchUp(t, d.DB, []consumer.Consumer{&counter{name: "old"}}); err != nil {
		t.Fatal(err)
	}
	few := d.OpenPQ(t)
	few.SetMaxOpenConns(10)
	one := &stormed{handle: counting}
	for says, c := range map[string]struct {
		db     *sql.DB
		create func() consumer.Consumer
		change func(o *workertest.StormOptions)
	}{
		"db, log or create is nil":       {d.DB, nil, nil},
		"10 open connections":            {few, stormer(counting), nil},
		"has run in this database":       {d.DB, func() consumer.Consumer { return &counter{name: "old"} }, nil},
		"create returns nil":             {d.DB, func() consumer.Consumer { return nil }, nil},
		"the same value twice":           {d.DB, func() consumer.Consumer { return one }, nil},
		"StormOptions.Model is empty":    {d.DB, stormer(counting), func(o *workertest.StormOptions) { o.Model = nil }},
		"StormOptions.Limit is -1s":      {d.DB, stormer(counting), func(o *workertest.StormOptions) { o.Limit = -time.Second }},
		"no event of the consumer":       {d.DB, func() consumer.Consumer { return &counter{name: "c", types: []string{"User"}} }, nil},
		"Model[0]: ":                     {d.DB, stormer(counting), func(o *workertest.StormOptions) { o.Model = []string{`SELECT * FROM no_table`} }},
		"events do not change the rows":  {d.DB, stormer(counting), func(o *workertest.StormOptions) { o.Model = []string{`SELECT 1`} }},
		"in the quiet run: at position ": {d.DB, stormer(func(*stormed, context.Context, *sql.Tx, store.PersistedEvent) error { return errBoom }), nil},
	} {
		if err := runStorm(t, c.db, c.create, c.change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// A storm finds the mistakes of a handler, and names the cause.
func TestStormFindsMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func(db *sql.DB) stormHandle
		parts  bool
		says   string
	}{
		"writes through the pool": {handle: func(db *sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
				return add(ctx, db, e.AggregateID)
			}
		}, says: "rows remain after the rollback of tx: Model[0]: unexpected {"},
		"writes a row through the pool and tx": {handle: func(db *sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				return errors.Join(add(ctx, tx, e.AggregateID), add(ctx, db, e.AggregateID))
			}
		}, says: "waits for a lock of tx, and Handle waits for the statement: Handle uses the pool"},
		"reads through the pool": {handle: func(db *sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				var n int64
				if err := db.QueryRowContext(ctx, `SELECT coalesce(sum(n), 0) FROM counts WHERE id = $1::text`, e.AggregateID).Scan(&n); err != nil {
					return err
				}
				return set(ctx, tx, e.AggregateID, n+1)
			}
		}, says: "execute every statement, also reads, through tx"},
		"counts in memory": {handle: func(*sql.DB) stormHandle {
			return func(s *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				s.calls++
				return set(ctx, tx, "calls", int64(s.calls))
			}
		}, says: "a run with rollbacks and restarts differs from the first: Model[0]: missing {\"id\":\"calls\",\"n\":40}, unexpected {"},
		"caches in memory": {handle: func(*sql.DB) stormHandle {
			return func(s *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				var err error
				if s.seen[e.AggregateID] {
					_, err = tx.ExecContext(ctx, `UPDATE counts SET n = n + 1 WHERE id = $1::text`, e.AggregateID)
				} else {
					err = set(ctx, tx, e.AggregateID, 1)
				}
				s.seen[e.AggregateID] = true
				return err
			}
		}, says: "the consumer keeps state in memory"},
		"uses the time": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				return set(ctx, tx, e.AggregateID, time.Now().UnixMicro()%1e9)
			}
		}, says: "a second quiet run differs from the first: "},
		"uses random numbers": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				return set(ctx, tx, e.AggregateID, rand.Int64N(1e9))
			}
		}, says: "such as time.Now, now(), random numbers"},
		"assumes global order": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				return set(ctx, tx, "last", e.GlobalPosition)
			}
		}, says: "late commits change this order"},
		"refuses another global order": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				var last int64
				if err := tx.QueryRowContext(ctx, `SELECT coalesce(max(n), 0) FROM counts`).Scan(&last); err != nil {
					return err
				}
				if e.GlobalPosition < last {
					return fmt.Errorf("%d comes after %d", e.GlobalPosition, last)
				}
				return set(ctx, tx, "last", e.GlobalPosition)
			}
		}, says: "in a run with late events"},
		"ignores the error of a statement": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				_ = add(ctx, tx, e.AggregateID)
				return nil
			}
		}, says: `(type "Happened") Handle returned no error although each of its statements had failed`},
		"rolls back after an error": {handle: func(*sql.DB) stormHandle {
			return func(_ *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				err := add(ctx, tx, e.AggregateID)
				if err != nil {
					_ = tx.Rollback()
				}
				return err
			}
		}, says: "after a failed statement: worker: the handler ended"},
		"is not safe for concurrent use": {parts: true, handle: func(*sql.DB) stormHandle {
			return func(s *stormed, ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				d, _ := consumer.Info(ctx)
				s.mu.Lock() // against a report of -race
				if s.last == "" || s.partition == d.Partition {
					s.last, s.partition = e.AggregateID, d.Partition
				} // else it finds what a call of another partition has left
				id := s.last
				s.mu.Unlock()
				return add(ctx, tx, id)
			}
		}, says: "Handle may not be safe for concurrent use"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			handle := c.handle(d.DB)
			create := stormer(handle)
			if c.parts {
				create = func() consumer.Consumer { return stormedParts{&stormed{handle: handle}} }
			}
			err := runStorm(t, d.DB, create, func(o *workertest.StormOptions) { o.Seed = 7 })
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), `consumer "c" with Seed 7: `) {
				t.Errorf("got %v\nwant %q", err, c.says)
			}
			pgtest.AwaitUnused(t, d.DB)
		})
	}
}
