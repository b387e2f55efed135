package consume

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

type idler struct{}

func (idler) Name() string                                                { return "c" }
func (idler) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

// waiter is a worker whose guard waits for the row of a consumer.
type waiter struct {
	open func(t *testing.T, d *pgtest.Database) *sql.DB // opens its pool; nil: pgx without a proxy
	opts []option
	same bool // the same worker's batch holds the row
}

// behindSessionPooler opens a pool on a database through a proxy that makes up the pids of
// sessions.
func behindSessionPooler(t *testing.T, d *pgtest.Database) *sql.DB {
	return d.Bounced(t, map[string]string{"pool_mode": "session"}).DB
}

func withPQ(t *testing.T, d *pgtest.Database) *sql.DB { return d.OpenPQ(t) }

// hostage is a consumer whose row is locked, while the guard of its new owner waits.
type hostage struct {
	progresstest.Guarded
	loop    *consumerLoop
	session int64 // of the waiting guard
	guard   chan bool
}

// takeHostage calls hold to lock the row in its own transaction, and then makes the guard
// of a registered worker wait for it. It returns that transaction too.
func takeHostage(t *testing.T, by waiter, hold func(t *testing.T, g progresstest.Guarded, tx *sql.Tx)) (h hostage, holder *sql.Tx) {
	h.Guarded = progresstest.New(t)
	holder = h.Begin(t)
	hold(t, h.Guarded, holder)

	db := h.DB
	if by.open != nil {
		db = by.open(t, h.Database)
	}
	w := newWorker(db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{idler{}}, by.opts...)
	if by.same {
		w.id = h.Worker
	}
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.coord.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.coord.Leave(context.Background(), false); err != nil {
			t.Error(err)
		}
	})
	h.Assign(t, w.id)
	h.loop = newLoop(&w.shared, w.units[0])
	from := h.Loaded(t)

	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var backend int64
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		t.Fatal(err)
	}
	h.session, h.guard = w.sessionOf(conn), make(chan bool, 1)
	go func() {
		_, ok, err := w.checkpoints.Guard(context.Background(), tx, "c", from, progress.Advance{To: 12, Token: h.Token})
		h.guard <- ok && err == nil
	}()
	t.Cleanup(func() {
		_ = holder.Rollback()
		<-h.guard
		_ = tx.Rollback()
		_ = conn.Close()
	})
	await(t, "the guard to wait", func() bool {
		var waits bool
		err := h.DB.QueryRow(`SELECT cardinality(pg_blocking_pids($1::int)) > 0`, backend).Scan(&waits)
		return err == nil && waits
	})
	return h, holder
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	if !pgtest.Poll(done) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// batchOf begins a batch of a worker whose last heartbeat was silence ago. A negative
// silence means that the worker has no row.
func batchOf(silence time.Duration) func(t *testing.T, g progresstest.Guarded, tx *sql.Tx) {
	return func(t *testing.T, g progresstest.Guarded, tx *sql.Tx) {
		g.Assign(t, g.Worker)
		if _, ok, err := g.Guard(t.Context(), tx, "c", g.Loaded(t), progress.Advance{To: 11, Token: g.Token}); err != nil || !ok {
			t.Fatalf("the first guard said %v, %v", ok, err)
		}
		if silence >= 0 {
			g.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, protocol) VALUES ($1::uuid, clock_timestamp() - $2::bigint * interval '1 second', 1)`,
				g.Worker.String(), int64(silence.Seconds()))
		}
	}
}

// batchOfUnlocked begins a batch of a worker that has sent its heartbeat and then lost its
// lock.
func batchOfUnlocked(t *testing.T, g progresstest.Guarded, tx *sql.Tx) {
	batchOf(0)(t, g, tx)
	g.Exec(t, `UPDATE worker_nodes SET protocol = 2`)
}

// lockedBy locks the row in another way, and takes locks like those of a batch.
func lockedBy(locks string) func(t *testing.T, g progresstest.Guarded, tx *sql.Tx) {
	return func(t *testing.T, g progresstest.Guarded, tx *sql.Tx) {
		if _, err := tx.ExecContext(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), locks, progress.Signature(g.Worker)); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitGuard waits for the guard while the watch searches for a dead worker's batch.
func (h hostage) awaitGuard(t *testing.T) {
	t.Helper()
	end := lockwatch.PollAfter(t.Context(), 0, func(ctx context.Context) {
		if err := h.loop.guards.EndZombie(ctx, h.session); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	defer end()
	select {
	case ok := <-h.guard:
		h.guard <- ok // for the cleanup
		if !ok {
			t.Error("the guard does not own the consumer")
		}
	case <-time.After(pgtest.Patience):
		t.Error("the guard waits on")
	}
}

// The batch of a dead worker is ended, and the waiting guard continues, also if the driver
// does not know the guard's session.
func TestBatchOfADeadWorkerIsEnded(t *testing.T) {
	for name, test := range map[string]struct {
		waiter
		hold func(t *testing.T, g progresstest.Guarded, tx *sql.Tx)
	}{
		"no row any more":         {hold: batchOf(-1)},
		"silent":                  {hold: batchOf(time.Hour)},
		"given up by this worker": {waiter{same: true}, batchOf(-1)},
		"behind a session pooler": {waiter{open: behindSessionPooler}, batchOf(-1)},
		"over lib/pq":             {waiter{open: withPQ}, batchOf(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, holder := takeHostage(t, test.waiter, test.hold)
			h.awaitGuard(t)
			if holder.Commit() == nil {
				t.Error("the dead worker's batch committed")
			}
		})
	}
}

// Foreign transactions are not ended.
func TestForeignTransactionsAreNotEnded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		waiter
		hold func(t *testing.T, g progresstest.Guarded, tx *sql.Tx)
	}{
		"the batch of a living worker":                   {hold: batchOf(0)},
		"the batch of one without a lock":                {hold: batchOfUnlocked},
		"a transaction with a lock":                      {hold: lockedBy(`SELECT pg_advisory_xact_lock_shared($1::bigint)`)},
		"a transaction with several locks":               {hold: lockedBy(`SELECT pg_advisory_xact_lock_shared(n + $1::bigint) FROM generate_series(0, 9) AS n`)},
		"a transaction with a lock like that":            {hold: lockedBy(`SELECT pg_advisory_xact_lock_shared(hashtextextended('c', $1::bigint))`)},
		"a transaction without any such locks":           {hold: lockedBy(`SELECT $1::bigint`)},
		"this worker's own, where it may be the guard's": {waiter{open: withPQ, same: true}, batchOf(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			h, holder := takeHostage(t, test.waiter, test.hold)
			if z, err := h.loop.guards.FindZombie(t.Context(), h.session); err != nil || z != (progress.OpenBatch{}) {
				t.Errorf("found %+v, %v", z, err)
			}
			if err := holder.Commit(); err != nil {
				t.Errorf("it was ended: %v", err)
			}
		})
	}
}

// With the lease, several workers may share a session, so no batch is ended.
func TestZombiesAreNotEndedWithLease(t *testing.T) {
	h, holder := takeHostage(t, waiter{opts: []option{func(c *Config) { c.LeaderStrategy = LeaderStrategyLease }}}, batchOf(-1))
	for range 3 {
		if err := h.loop.guards.EndZombie(t.Context(), h.session); err != nil {
			t.Fatal(err)
		}
	}
	if err := holder.Commit(); err != nil {
		t.Errorf("it was ended: %v", err)
	}
}

// A batch that has ended between the polls and the end is ignored.
func TestVanishedZombieIsIgnored(t *testing.T) {
	h, holder := takeHostage(t, waiter{}, batchOf(-1))
	z, err := h.loop.guards.FindZombie(t.Context(), h.session)
	if err != nil || z.Session == 0 || z.Signature != progress.Signature(h.Worker) || z.Worker != uuid.Nil {
		t.Fatalf("found %+v, %v", z, err)
	}
	other := z
	other.Signature++
	if ended, err := h.loop.w.checkpoints.EndBatch(t.Context(), h.DB, "c", other); err != nil || ended {
		t.Errorf("another worker's batch in the same session: %v, %v", ended, err)
	}
	if ended, err := h.loop.w.checkpoints.EndBatch(t.Context(), h.DB, "d", z); err != nil || ended {
		t.Errorf("another consumer's batch in the same session: %v, %v", ended, err)
	}
	if err := holder.Commit(); err != nil {
		t.Errorf("it was ended: %v", err)
	}
}

// The pid of a session is known only if the driver exposes it. A proxy makes up pids, and
// half of them are out of PostgreSQL's range.
func TestSessionPid(t *testing.T) {
	for name, test := range map[string]struct {
		open func(t *testing.T, d *pgtest.Database) *sql.DB
		want bool
	}{
		"pgx":                      {func(_ *testing.T, d *pgtest.Database) *sql.DB { return d.DB }, true},
		"pgx and a session pooler": {behindSessionPooler, false},
		"lib/pq":                   {withPQ, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.Empty(t)
			w := newWorker(test.open(t, d), nil, nil)
			var err error
			if w.pooling, _, err = w.db.CheckPooling(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			conn, err := w.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var want int64
			if err := conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&want); err != nil {
				t.Fatal(err)
			}
			if !test.want {
				want = 0
			}
			if got := w.sessionOf(conn); got != want {
				t.Errorf("the session is %d, want %d", got, want)
			}
			const madeUp = 1<<32 - 1
			if s, known := w.sessions("").Poll(t.Context(), madeUp); !known || s.Busy {
				t.Errorf("a session that does not exist: %+v, known: %v", s, known)
			}
		})
	}
}

// The batch of a dead worker is ended even if a time limit of the role ends each guard
// before the first poll.
func TestBatchOfADeadWorkerIsEndedUnderTimeLimitsOfTheRole(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"lock_timeout", "statement_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			g := progresstest.New(t)
			holder := g.Begin(t)
			batchOf(-1)(t, g, holder)
			g.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type) VALUES ('t', 'a', 1, gen_random_uuid(), 'e')`)
			w := newWorker(g.OpenSet(t, setting, "500"), storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{idler{}},
				func(c *Config) { c.BatchTimeout = time.Hour })
			ended := make(chan error, 1)
			go func() { ended <- w.Start(t.Context()) }()
			began := time.Now()
			await(t, "the event to be handled", func() bool {
				var at int64
				return g.DB.QueryRow(`SELECT last_position FROM consumer_checkpoints`).Scan(&at) == nil && at == 31
			})
			if lasted := time.Since(began); lasted > 50*time.Second { // the batch of a dead worker would time out after a minute
				t.Errorf("after %v", lasted)
			}
			w.Stop()
			if err := <-ended; err != nil {
				t.Errorf("Start returned %v", err)
			}
		})
	}
}
