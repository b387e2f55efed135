package worker

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

type idle struct{}

func (idle) Name() string                                                { return "c" }
func (idle) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

// hostage is a consumer whose row somebody holds, while the guard of its new
// owner waits.
type hostage struct {
	guarded
	loop    *consumerLoop
	session int64 // that waits
	guard   chan bool
}

// takeHostage has hold lock the row in a transaction of its own, which is
// returned, then makes the guard of a registered worker wait for it.
func takeHostage(t *testing.T, hold func(t *testing.T, g guarded, tx *sql.Tx)) (h hostage, holder *sql.Tx) {
	h.guarded = newGuarded(t)
	holder = h.begin(t)
	hold(t, h.guarded, holder)

	w := New(h.DB, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{idle{}})
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.coord.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.coord.Leave(context.Background()); err != nil {
			t.Error(err)
		}
	})
	h.assign(t, w.id)
	h.loop = &consumerLoop{w: w, unit: w.units[0]}
	from := h.load(t)

	conn, err := h.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.session, h.guard = h.loop.ownSession(conn), make(chan bool, 1)
	go func() {
		_, ok, err := w.checkpoints.Guard(context.Background(), tx, "c", from, advance{to: 12, token: h.token})
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
		err := h.DB.QueryRow(`SELECT cardinality(pg_blocking_pids($1::int)) > 0`, h.session).Scan(&waits)
		return err == nil && waits
	})
	return h, holder
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// batchOf begins a batch of a worker whose last heartbeat is so old; negative:
// that has no row.
func batchOf(silence time.Duration) func(t *testing.T, g guarded, tx *sql.Tx) {
	return func(t *testing.T, g guarded, tx *sql.Tx) {
		g.assign(t, g.c.worker)
		if _, ok, err := g.c.Guard(t.Context(), tx, "c", g.load(t), advance{to: 11, token: g.token}); err != nil || !ok {
			t.Fatalf("the first guard said %v, %v", ok, err)
		}
		if silence >= 0 {
			g.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, protocol) VALUES ($1::uuid, clock_timestamp() - $2::bigint * interval '1 second', 1)`,
				g.c.worker.String(), int64(silence.Seconds()))
		}
	}
}

// batchOfUnlocked begins a batch of a worker that has sent its heartbeat and then
// lost its lock.
func batchOfUnlocked(t *testing.T, g guarded, tx *sql.Tx) {
	batchOf(0)(t, g, tx)
	g.Exec(t, `UPDATE worker_nodes SET protocol = 2`)
}

// lockedBy locks the row in another way, and takes locks like those of a batch.
func lockedBy(locks string) func(t *testing.T, g guarded, tx *sql.Tx) {
	return func(t *testing.T, g guarded, tx *sql.Tx) {
		if _, err := tx.ExecContext(t.Context(), `SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), locks, signature(g.c.worker)); err != nil {
			t.Fatal(err)
		}
	}
}

// The batch of a dead worker is ended, and the guard that waited goes on.
func TestBatchOfADeadWorkerIsEnded(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, g guarded, tx *sql.Tx){
		"no row any more": batchOf(-1),
		"silent":          batchOf(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			h, holder := takeHostage(t, hold)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				h.loop.endZombies(ctx, h.session)
			}()
			select {
			case ok := <-h.guard:
				h.guard <- ok // for the cleanup
				if !ok {
					t.Error("the guard does not own the consumer")
				}
			case <-time.After(30 * time.Second):
				t.Error("the guard waits on")
			}
			cancel()
			<-ended
			if holder.Commit() == nil {
				t.Error("the dead worker's batch committed")
			}
		})
	}
}

// A worker that seems dead for a moment, or another one each time, is spared.
func TestOneLookIsNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody, one, other := zombie{}, zombie{session: 1, signature: 7}, zombie{session: 1, signature: 8}
		looks := []zombie{nobody, nobody, one, nobody, one, other, one, nobody, other, other, nobody}
		ctx, cancel := context.WithCancel(t.Context())
		var ended []zombie
		var last time.Time
		whenSeenTwice(ctx, func() (z zombie) {
			if !last.IsZero() && time.Since(last) < guardPatience {
				t.Errorf("looks again after %v", time.Since(last))
			}
			last = time.Now()
			if z, looks = looks[0], looks[1:]; len(looks) == 0 {
				cancel()
			}
			return z
		}, func(z zombie) { ended = append(ended, z) })
		if !slices.Equal(ended, []zombie{other}) || len(looks) > 0 {
			t.Errorf("ended %+v, not only what was seen twice in a row; %d looks to go", ended, len(looks))
		}
	})
}

// Nobody else's transaction is ended.
func TestOthersAreNotEnded(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, g guarded, tx *sql.Tx){
		"the batch of a living worker":    batchOf(0),
		"the batch of one without a lock": batchOfUnlocked,
		"somebody with a lock":            lockedBy(`SELECT pg_advisory_xact_lock_shared($1::bigint)`),
		"somebody with several locks":     lockedBy(`SELECT pg_advisory_xact_lock_shared(n + $1::bigint) FROM generate_series(0, 9) AS n`),
		"somebody with a lock like that":  lockedBy(`SELECT pg_advisory_xact_lock_shared(hashtextextended('c', $1::bigint))`),
		"somebody without any such locks": lockedBy(`SELECT $1::bigint`),
	} {
		t.Run(name, func(t *testing.T) {
			h, holder := takeHostage(t, hold)
			if z, err := h.loop.lookForZombie(t.Context(), h.session); err != nil || z != (zombie{}) {
				t.Errorf("found %+v, %v", z, err)
			}
			if err := holder.Commit(); err != nil {
				t.Errorf("it was ended: %v", err)
			}
		})
	}
}

// What has ended between the looks and the end is left alone.
func TestOnlyWhatWasSeenIsEnded(t *testing.T) {
	h, holder := takeHostage(t, batchOf(-1))
	z, err := h.loop.lookForZombie(t.Context(), h.session)
	if err != nil || z.session == 0 || z.signature != signature(h.c.worker) || z.worker != uuid.Nil {
		t.Fatalf("found %+v, %v", z, err)
	}
	other := z
	other.signature++
	if ended, err := h.loop.w.checkpoints.EndBlocker(t.Context(), h.DB, "c", h.session, other); err != nil || ended {
		t.Errorf("another worker's batch in the same session: %v, %v", ended, err)
	}
	if ended, err := h.loop.w.checkpoints.EndBlocker(t.Context(), h.DB, "d", h.session, z); err != nil || ended {
		t.Errorf("another consumer's batch in the same session: %v, %v", ended, err)
	}
	if err := holder.Commit(); err != nil {
		t.Errorf("it was ended: %v", err)
	}
}

// Where a session may be another worker's, or is not known, nobody looks.
func TestNobodyIsEndedWithoutASessionOfOnesOwn(t *testing.T) {
	d := pgtest.Empty(t)
	for name, test := range map[string]struct {
		db       *sql.DB
		strategy LeaderStrategy
		want     bool
	}{
		"pgx":           {d.DB, LeaderStrategyAdvisory, true},
		"pgx and lease": {d.DB, LeaderStrategyLease, false},
		"lib/pq":        {d.OpenPQ(t), LeaderStrategyAdvisory, false},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := test.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var backend int64
			if err := conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
				t.Fatal(err)
			}
			if !test.want {
				backend = 0
			}
			loop := &consumerLoop{w: New(test.db, nil, nil, WithLeaderStrategy(test.strategy))}
			if got := loop.ownSession(conn); got != backend {
				t.Errorf("the session is %d, want %d", got, backend)
			}
		})
	}
}
