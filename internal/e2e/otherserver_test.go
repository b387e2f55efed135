package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// serverPair is a primary, its standby, and a pool whose new connections lead to
// either.
type serverPair struct {
	primary, standby     *embedded.Server
	onPrimary, onStandby *sql.DB // a test's own
	pool                 *sql.DB
	toStandby            atomic.Int64 // of so many new connections one leads to the standby; 0: none
	made, misled         atomic.Int64 // new connections, and how many did
}

func newServerPair(t *testing.T) *serverPair {
	ctx := t.Context()
	p := &serverPair{primary: pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})}
	p.onPrimary = p.open(t, p.primary.URL(""))
	if err := migrations.Apply(ctx, p.onPrimary, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.onPrimary.Exec(`CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	var err error
	p.standby, err = p.primary.Standby(ctx, 0)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.standby.Stop(context.Background()) })
	p.onStandby = p.open(t, p.standby.URL(""))
	cfg, err := pgx.ParseConfig(p.primary.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "pool"
	cfg.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		port := p.primary.Port()
		if every, n := p.toStandby.Load(), p.made.Add(1); every > 0 && n%every == 0 {
			port = p.standby.Port()
			p.misled.Add(1)
		}
		return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
	}
	p.pool = stdlib.OpenDB(*cfg)
	t.Cleanup(func() { p.pool.Close() })
	return p
}

func (p *serverPair) open(t *testing.T, url string) *sql.DB {
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// cut ends the pool's connections to the primary, except some.
func (p *serverPair) cut(t *testing.T, except ...int64) {
	t.Helper()
	_, err := p.onPrimary.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pool' AND NOT pid = ANY ($1::int[])`, append([]int64{}, except...))
	if err != nil {
		t.Fatal(err)
	}
}

// awaitMove cuts the pool's connections to the old primary, except some, until the
// frontier has put a token on the new one. The pool may just have opened one that does not
// show yet.
func (p *serverPair) awaitMove(t *testing.T, except ...int64) {
	t.Helper()
	await(t, "the worker to be on the new primary", func() bool {
		p.cut(t, except...)
		var n int
		return p.onStandby.QueryRow(`SELECT count(*) FROM consumer_checkpoints_token`).Scan(&n) == nil && n == 1
	})
}

// awaitAll waits until each consumer has handled every event on db, and fails
// if one of them was taken for void.
func awaitAll(t *testing.T, db *sql.DB, consumers []consumer.Consumer) {
	t.Helper()
	var events int
	if err := db.QueryRow(`SELECT count(*) FROM events`).Scan(&events); err != nil {
		t.Fatal(err)
	}
	head := latestPosition(t, db)
	for _, c := range consumers {
		await(t, c.Name()+" to come to the end", func() bool { return checkpoint(t, db, c.Name()) == head })
		var lost int
		err := db.QueryRow(`SELECT count(*) FROM events AS e WHERE NOT EXISTS (SELECT FROM ledger AS l WHERE l.position = e.global_position AND consumer = $1)`, c.Name()).Scan(&lost)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(handled(t, db, c.Name())); lost > 0 || got != events {
			t.Errorf("%s is at %d, handled %d of %d events, and lost %d", c.Name(), head, got, events, lost)
		}
	}
}

func ledgers(n int, types ...string) (all []consumer.Consumer) {
	for i := range n {
		l := ledger{name: fmt.Sprint("c", i), types: types}
		if i%2 == 0 {
			l.types = nil
		}
		all = append(all, &scopedLedger{l})
	}
	return all
}

// Some connections of the pool lead to a standby that lags: a connection string
// with several hosts does that while the primary takes none. What the standby
// lacks is not void, and nobody is stuck behind such a connection.
func TestAPoolThatLeadsToALaggingStandby(t *testing.T) {
	t.Parallel()
	p := newServerPair(t)
	for name, log := range map[string]store.Log{"bound": newStore(), "asked after each read": foreignLog{newStore(), newStore()}} {
		t.Run(name, func(t *testing.T) {
			p.pool.SetMaxIdleConns(0) // closes those that lead to the standby
			p.pool.SetMaxIdleConns(16)
			p.misled.Store(0)
			consumers := ledgers(4, "Order")
			runWorker(t, worker.New(p.pool, log, consumers, append(quick(), worker.WithBatchSize(10))...))
			appendN(t, p.onPrimary, "Order", "1", 20)
			awaitAll(t, p.onPrimary, consumers)
			await(t, "the standby to have it all", func() bool { return latestPosition(t, p.onStandby) == latestPosition(t, p.onPrimary) })
			if _, err := p.onStandby.Exec(`SELECT pg_wal_replay_pause()`); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = p.onStandby.Exec(`SELECT pg_wal_replay_resume()`) })
			operator, err := ops.New(p.onPrimary)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // rounds in which they fall behind, so that they read ahead, too
				setAll(t, operator.Pause, consumers)
				for range 3 {
					appendN(t, p.onPrimary, "Order", "1", 60)
				}
				p.toStandby.Store(2)
				p.cut(t)
				setAll(t, operator.Resume, consumers)
				awaitAll(t, p.onPrimary, consumers)
				p.toStandby.Store(0)
			}
			if p.misled.Load() == 0 {
				t.Error("no connection led to the standby")
			}
		})
	}
}

func setAll(t *testing.T, to func(context.Context, string, ops.By) error, consumers []consumer.Consumer) {
	t.Helper()
	for _, c := range consumers {
		if err := to(t.Context(), c.Name(), by); err != nil {
			t.Fatal(err)
		}
	}
}

// A standby is promoted and the old primary goes on: new connections lead to
// the one, those that survived to the other. Nothing that the old one lacks is
// taken for void.
func TestAPoolThatStillLeadsToTheAbandonedPrimary(t *testing.T) {
	t.Parallel()
	p := newServerPair(t)
	p.pool.SetMaxIdleConns(16)
	consumers := ledgers(4, "Order")
	start(t, p.pool, consumers, worker.WithBatchSize(10))
	appendN(t, p.onPrimary, "Order", "1", 60)
	awaitAll(t, p.onPrimary, consumers)
	await(t, "the standby to have it all", func() bool {
		var n int
		return p.onStandby.QueryRow(`SELECT count(*) FROM ledger`).Scan(&n) == nil && n == 240
	})
	var held []*sql.Conn
	var survive []int64
	for range 4 {
		c, err := p.pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var pid int64
		if err := c.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		held, survive = append(held, c), append(survive, pid)
	}
	if _, err := p.onStandby.Exec(`SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	p.toStandby.Store(1)
	p.awaitMove(t, survive...)
	for _, c := range held {
		_ = c.Close()
	}
	for range 10 {
		appendN(t, p.onStandby, "Order", "1", 50)
	}
	awaitAll(t, p.onStandby, consumers)
}

// What survived is the session of the frontier, or that of the coordination, or
// both: they must move to where the pool leads, though everything they do there
// succeeds.
func TestASessionOnTheAbandonedPrimary(t *testing.T) {
	t.Parallel()
	const ofFrontier, ofCoordination = "%string_agg(p::text%", "%WITH given AS%"
	for name, queries := range map[string][]string{"frontier": {ofFrontier}, "coordination": {ofCoordination}, "both": {ofFrontier, ofCoordination}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newServerPair(t)
			consumers := ledgers(2, "Order")
			start(t, p.pool, consumers, worker.WithBatchSize(10), worker.WithHeartbeatInterval(100*time.Millisecond))
			appendN(t, p.onPrimary, "Order", "1", 20)
			awaitAll(t, p.onPrimary, consumers)
			await(t, "the standby to have it all", func() bool {
				var n int
				return p.onStandby.QueryRow(`SELECT count(*) FROM ledger`).Scan(&n) == nil && n == 40
			})
			var survive []int64
			for _, query := range queries {
				await(t, "the session to be seen", func() bool {
					var pid int64
					err := p.onPrimary.QueryRow(`SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE application_name = 'pool' AND query LIKE $1`, query).Scan(&pid)
					if err != nil || pid == 0 {
						return false
					}
					survive = append(survive, pid)
					return true
				})
			}
			if _, err := p.onStandby.Exec(`SELECT pg_promote()`); err != nil {
				t.Fatal(err)
			}
			p.toStandby.Store(1)
			p.awaitMove(t, survive...)
			for range 3 {
				appendN(t, p.onStandby, "Order", "1", 50)
			}
			awaitAll(t, p.onStandby, consumers)
			await(t, "the sessions to end", func() bool {
				var there bool
				return p.onPrimary.QueryRow(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY ($1::int[]))`, survive).Scan(&there) == nil && !there
			})
			await(t, "heartbeats on the new primary", func() bool {
				var late bool
				return p.onStandby.QueryRow(`SELECT max(heartbeat_at) < clock_timestamp() - interval '1s' FROM worker_nodes`).Scan(&late) == nil && !late
			})
		})
	}
}
