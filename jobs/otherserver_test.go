package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
)

// serverPair is a primary, its standby, and a pool whose new connections lead to either. The stage
// is on the primary.
type serverPair struct {
	*stage
	standby   *embedded.Server
	onStandby *sql.DB // for the test's own statements
	pool      *sql.DB
	toStandby atomic.Int64 // one of so many new connections leads to the standby; 0: none
	made      atomic.Int64 // new connections
	misled    atomic.Int64 // new connections to the standby
}

func newServerPair(t *testing.T) *serverPair {
	t.Helper()
	primary := pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})
	open := func(url string) *sql.DB {
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	d := &pgtest.Database{URL: primary.URL(""), DB: open(primary.URL(""))}
	p := &serverPair{stage: &stage{Client: jobs.NewClient(d.DB), Handlers: jobs.NewHandlers(), t: t, d: d}}
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `CREATE TABLE effects (n int)`)
	var err error
	p.standby, err = primary.Standby(t.Context(), 0)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.standby.Stop(context.Background()) })
	p.onStandby = open(p.standby.URL(""))
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("the connection string cannot be parsed")
	}
	cfg.RuntimeParams["application_name"] = "pool"
	cfg.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		port := primary.Port()
		if every, n := p.toStandby.Load(), p.made.Add(1); every > 0 && n%every == 0 {
			port = p.standby.Port()
			p.misled.Add(1)
		}
		return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
	}
	p.pool = stdlib.OpenDB(*cfg)
	p.pool.SetMaxIdleConns(16)
	t.Cleanup(func() { p.pool.Close() })
	return p
}

// cut ends the connections of the pool to the primary, except some.
func (p *serverPair) cut(t *testing.T, except ...int64) {
	t.Helper()
	p.d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pool' AND NOT pid = ANY ($1::int[])`, append([]int64{}, except...))
}

// awaitMove cuts the pool's connections to the old primary, except some. It repeats this until the
// worker has put a token on the new primary and sends its heartbeats there. A connection that the
// pool has just opened may not show yet, and the heartbeats may use it.
func (p *serverPair) awaitMove(t *testing.T, except ...int64) {
	t.Helper()
	var began string
	if err := p.onStandby.QueryRow(`SELECT clock_timestamp()::text`).Scan(&began); err != nil {
		t.Fatal(err)
	}
	p.until("the worker to be on the new primary", func() bool {
		p.cut(t, except...)
		var moved bool
		err := p.onStandby.QueryRow(`SELECT EXISTS (SELECT FROM jobs_token) AND EXISTS (SELECT FROM jobs_workers WHERE heartbeat_at > $1::text::timestamptz)`, began).Scan(&moved)
		return err == nil && moved
	})
}

// awaitReplay waits until the standby has replayed everything from the primary.
func (p *serverPair) awaitReplay(t *testing.T) {
	t.Helper()
	var at string
	if err := p.d.DB.QueryRow(`SELECT pg_current_wal_lsn()::text`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	p.until("the standby to have it all", func() bool {
		var there bool
		return p.onStandby.QueryRow(`SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, at).Scan(&there) == nil && there
	})
}

// Some connections of the pool lead to a standby that lags. No job is lost, and no running job is
// given to another worker.
func TestAPoolThatLeadsToALaggingStandby(t *testing.T) {
	t.Parallel()
	p := newServerPair(t)
	var long atomic.Bool
	long.Store(true)
	jobs.Register(p.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		for j.Args.N == 0 && long.Load() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}, jobs.Timeout(patience)) // each fourth connection leads to the standby: the rounds may take a while
	jobs.RegisterTx(p.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txJob]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N)
		return err
	}, jobs.Retry(jobs.Fixed(0)))
	p.awaitReplay(t)
	if _, err := p.onStandby.Exec(`SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	w, _ := p.runOn(p.pool, jobs.WithPrefetch(3), jobs.WithQueue("default", 5))
	p.until("the worker to run", func() bool { return w.Status().State == observe.StateRunning })
	running := p.add(task{0})
	n := 0
	for range 2 {
		p.toStandby.Store(4)
		p.cut(t)
		var ids []int64
		for range 6 {
			n++
			ids = append(ids, p.add(task{n}), p.add(txJob{n}))
		}
		for _, id := range ids {
			if i := p.ended(id); i.State != jobs.StateCompleted {
				t.Errorf("the job is %s, %d failures, %d resets: %+v", i.State, i.Failures, i.Resets, i.Attempts)
			}
		}
		p.toStandby.Store(0)
	}
	long.Store(false)
	if i := p.ended(running); i.State != jobs.StateCompleted || i.Attempt != 1 {
		t.Errorf("the long job is %s after %d attempts: %+v", i.State, i.Attempt, i.Attempts)
	}
	var effects string
	if err := p.d.DB.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != fmt.Sprint(n, " ", n) {
		t.Errorf("effects: %s, %v, want %d", effects, err, n)
	}
	if p.misled.Load() == 0 {
		t.Error("no connection led to the standby")
	}
}

// A worker does not start on a standby or in read-only sessions, and names the remedy.
func TestStartWithoutWrites(t *testing.T) {
	t.Parallel()
	p := newServerPair(t)
	jobs.Register(p.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	p.awaitReplay(t)
	readOnly, err := sql.Open("pgx", p.d.URL+"&default_transaction_read_only=on")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { readOnly.Close() })
	for name, db := range map[string]*sql.DB{"standby": p.onStandby, "read-only": readOnly} {
		err := jobs.NewWorker(db, p.Handlers).Start(t.Context())
		if !errors.Is(err, jobs.ErrStandby) || !strings.Contains(err.Error(), "target_session_attrs=read-write") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A standby is promoted while the old primary goes on. New connections lead to the new primary.
// Surviving connections, perhaps the one of the heartbeats, lead to the old primary. The worker
// moves to the server of the pool, with or without a token there. Effects in transactions exist
// once.
func TestAPoolThatStillLeadsToTheAbandonedPrimary(t *testing.T) {
	for _, survives := range []string{"some connections", "some connections, given back before others", "the heartbeats", "some connections, without a token"} {
		t.Run(survives, func(t *testing.T) {
			t.Parallel()
			p := newServerPair(t)
			jobs.RegisterTx(p.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txJob]) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N)
				return err
			}, jobs.Retry(jobs.Fixed(0)))
			// Connections that are returned within the heartbeat time-out are closed.
			w, _ := p.runOn(p.pool, jobs.WithQueue("default", 5), jobs.WithHeartbeatTimeout(time.Minute))
			for n := range 20 {
				p.ended(p.add(txJob{n}))
			}
			p.awaitReplay(t)
			pids, release := p.heartbeats(t), func() {}
			if survives != "the heartbeats" {
				pids, release = p.hold(t, 4)
			}
			if _, err := p.onStandby.Exec(`SELECT pg_promote()`); err != nil {
				t.Fatal(err)
			}
			p.toStandby.Store(1)
			p.awaitMove(t, pids...)
			if survives == "some connections, without a token" {
				if _, err := p.onStandby.Exec(`DELETE FROM jobs_token`); err != nil {
					t.Fatal(err)
				}
			}
			releaseLast := func() {}
			if survives == "some connections, given back before others" { // the pool hands these out later
				_, releaseLast = p.hold(t, 8)
			}
			release()
			releaseLast()
			p.awaitMove(t, pids...)
			client := jobs.NewClient(p.onStandby)
			for n := range 50 {
				if _, err := client.Enqueue(t.Context(), nil, txJob{100 + n}); err != nil {
					t.Fatal(err)
				}
			}
			p.until("the jobs on the new primary to end", func() bool {
				counts, err := client.Counts(t.Context())
				return err == nil && len(counts) == 0
			})
			var effects string
			if err := p.onStandby.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != "70 70" {
				t.Errorf("effects: %s, %v", effects, err)
			}
			p.until("heartbeats on the new primary", func() bool {
				var n int
				err := p.onStandby.QueryRow(`SELECT count(*) FROM jobs_workers WHERE worker_id = $1::uuid AND heartbeat_at > clock_timestamp() - interval '1 second'`, w.ID().String()).Scan(&n)
				return err == nil && n == 1
			})
			p.until("no session on the old one", func() bool {
				var n int
				return p.d.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pool'`).Scan(&n) == nil && n == 0
			})
		})
	}
}

// heartbeats returns the session that sends the heartbeats.
func (p *serverPair) heartbeats(t *testing.T) []int64 {
	t.Helper()
	var pid int64
	p.until("the session of the heartbeats", func() bool {
		err := p.d.DB.QueryRow(`SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE application_name = 'pool' AND query LIKE '%WITH given AS%'`).Scan(&pid)
		return err == nil && pid != 0
	})
	return []int64{pid}
}

// hold takes connections of the pool until release.
func (p *serverPair) hold(t *testing.T, n int) (pids []int64, release func()) {
	t.Helper()
	conns := make([]*sql.Conn, n)
	pids = make([]int64, n)
	for i := range conns {
		var err error
		if conns[i], err = p.pool.Conn(t.Context()); err == nil {
			err = conns[i].QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pids[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return pids, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}
