package table_test

import (
	"context"
	"database/sql"
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
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// serverPair is a primary, its standby, and a pool whose new connections lead to either. The stage
// is on the primary.
type serverPair struct {
	*stage
	onStandby *sql.DB // for the test's own statements
	pool      *sql.DB
	moved     atomic.Bool // whether new connections lead to the standby
}

func newServerPair(t *testing.T) *serverPair {
	t.Helper()
	primary := pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})
	open := func(server *embedded.Server) *sql.DB {
		db, err := sql.Open("pgx", server.URL(""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	d := &pgtest.Database{URL: primary.URL(""), DB: open(primary)}
	p := &serverPair{stage: &stage{t: t, d: d, o: options()}}
	d.Exec(t, schema)
	standby, err := primary.Standby(t.Context(), 0)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })
	p.onStandby = open(standby)
	p.pool = openDialled(t, d.URL, func(ctx context.Context, network, _ string) (net.Conn, error) {
		port := primary.Port()
		if p.moved.Load() {
			port = standby.Port()
		}
		return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
	})
	p.pool.SetMaxIdleConns(16)
	return p
}

// openDialled opens a pool whose connections the test dials. Its sessions are named pool.
func openDialled(t *testing.T, url string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal("the connection string cannot be parsed")
	}
	cfg.RuntimeParams["application_name"] = "pool"
	cfg.DialFunc = dial
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { db.Close() })
	return db
}

// heartbeatSession returns the session of the heartbeats. A job must run.
func (s *stage) heartbeatSession(w *table.Worker) (pid int64) {
	s.t.Helper()
	s.until("a heartbeat", func() bool { return !w.Status().LastHeartbeat.IsZero() })
	s.until("the session of the heartbeats", func() bool {
		err := s.d.DB.QueryRow(`SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE application_name = 'pool' AND datname = current_database() AND query LIKE '%beat AS (%' AND query NOT LIKE '%EXPLAIN%'`).Scan(&pid)
		return err == nil && pid != 0
	})
	return pid
}

// cut ends the pool's sessions on the primary, except some, and returns how many there were.
func (p *serverPair) cut(except ...int64) (n int) {
	p.t.Helper()
	if err := p.d.DB.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pool' AND NOT pid = ANY ($1::int[])`, append([]int64{}, except...)).Scan(&n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// hold takes connections of the pool until release.
func (p *serverPair) hold(n int) (pids []int64, release func()) {
	p.t.Helper()
	conns := make([]*sql.Conn, n)
	pids = make([]int64, n)
	for i := range conns {
		var err error
		if conns[i], err = p.pool.Conn(p.t.Context()); err == nil {
			err = conns[i].QueryRowContext(p.t.Context(), `SELECT pg_backend_pid()`).Scan(&pids[i])
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return pids, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// A standby is promoted while the old primary goes on. New connections lead to the new primary,
// surviving connections to the old one. The worker moves to the server of the pool, and reports
// this. A job that runs for several heartbeats runs once.
func TestAPoolThatStillLeadsToTheAbandonedPrimary(t *testing.T) {
	for _, survives := range []string{"the heartbeats", "some connections", "some connections, given back before others"} {
		t.Run(survives, func(t *testing.T) {
			t.Parallel()
			p := newServerPair(t)
			var db atomic.Pointer[sql.DB] // the server with the job
			db.Store(p.d.DB)
			var calls atomic.Int64
			end := make(chan struct{}) // ends the first job
			p.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
				if j.Header.ID == 1 {
					select {
					case <-end:
					case <-ctx.Done():
					}
					return ctx.Err()
				}
				calls.Add(1)
				var beaten bool
				pgtest.Poll(func() bool {
					_ = db.Load().QueryRowContext(ctx, `SELECT last_heartbeat_at > started_at + interval '500 ms' FROM example_jobs WHERE id = $1`, j.ID).Scan(&beaten)
					return beaten || ctx.Err() != nil
				})
				return ctx.Err()
			}
			var reported atomic.Bool
			w := p.worker(p.pool, func(o *table.WorkerOptions) {
				o.Observers = []observe.Observer{observe.On(func(f observe.StatementFailed) {
					if f.Condition == observe.ConditionHeartbeat && strings.Contains(f.Err.Error(), "do several servers answer the connection string?") {
						reported.Store(true)
					}
				})}
			})
			p.start(w)
			first := p.add("")
			kept, release := []int64{p.heartbeatSession(w)}, func() {}
			if survives != "the heartbeats" {
				kept, release = p.hold(4)
			} else {
				close(end)
				p.becomes(first, table.StateCompleted)
			}
			var at string
			if err := p.d.DB.QueryRow(`SELECT pg_current_wal_lsn()::text`).Scan(&at); err != nil {
				t.Fatal(err)
			}
			p.until("the standby to have it all", func() bool {
				var there bool
				return p.onStandby.QueryRow(`SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, at).Scan(&there) == nil && there
			})
			if _, err := p.onStandby.Exec(`SELECT pg_promote()`); err != nil {
				t.Fatal(err)
			}
			db.Store(p.onStandby)
			var id int64
			add := func() {
				if err := p.onStandby.QueryRow(`INSERT INTO example_jobs DEFAULT VALUES RETURNING id`).Scan(&id); err != nil {
					t.Fatal(err)
				}
			}
			if survives == "the heartbeats" {
				add() // claimed before the worker checks the server of the pool
			}
			p.moved.Store(true)
			p.until("all other connections to lead to the new primary", func() bool {
				var n int
				err := p.onStandby.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pool'`).Scan(&n)
				return p.cut(kept...) == 0 && err == nil && n > 0
			})
			if survives != "the heartbeats" {
				var promoted time.Time
				if err := p.onStandby.QueryRow(`SELECT clock_timestamp()`).Scan(&promoted); err != nil {
					t.Fatal(err)
				}
				p.until("heartbeats on the new primary", func() bool {
					var last time.Time
					return p.onStandby.QueryRow(`SELECT last_heartbeat_at FROM example_jobs WHERE id = $1`, first).Scan(&last) == nil && last.After(promoted)
				})
				releaseLast := func() {}
				if survives == "some connections, given back before others" { // the pool hands these out later
					_, releaseLast = p.hold(8)
				}
				release()
				releaseLast()
				close(end)
				add()
			}
			p.until("the job to complete", func() bool {
				p.cut(kept...) // one may just have been opened
				var state string
				if err := p.onStandby.QueryRow(`SELECT state FROM example_jobs WHERE id = $1`, id).Scan(&state); err != nil {
					t.Fatal(err)
				}
				return state == "completed" || calls.Load() > 1
			})
			if n := calls.Load(); n != 1 {
				t.Errorf("%d calls, want 1; lost: %d, reset: %d", n, w.Status().Lost, w.Status().Reset)
			}
			if survives == "the heartbeats" { // others may be closed before they are used
				p.until("an error that says that several servers answer", reported.Load)
			}
			p.until("no session on the old primary", func() bool {
				var n int
				return p.d.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pool'`).Scan(&n) == nil && n == 0
			})
		})
	}
}

// A slow login delays heartbeats, and does not end them.
func TestHeartbeatsWhenLoginsAreSlow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.StalledMaxAge = 3 * time.Second
	var calls atomic.Int64
	var until atomic.Pointer[time.Time]
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		calls.Add(1)
		var last time.Time
		pgtest.Poll(func() bool {
			_ = s.d.DB.QueryRowContext(ctx, `SELECT last_heartbeat_at FROM example_jobs WHERE id = $1`, j.ID).Scan(&last)
			end := until.Load()
			return end != nil && last.After(*end) || ctx.Err() != nil
		})
		return ctx.Err()
	}
	slow := openDialled(t, s.d.URL, func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-time.After(1100 * time.Millisecond): // network delay, longer than a heartbeat may take
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
	slow.SetMaxIdleConns(0)
	w := s.worker(slow, nil)
	s.start(w)
	id := s.add("")
	pid := s.heartbeatSession(w)
	s.run(nil)
	var end time.Time
	if err := s.d.DB.QueryRow(`SELECT clock_timestamp() + interval '6 s' FROM pg_terminate_backend($1)`, pid).Scan(&end); err != nil {
		t.Fatal(err)
	}
	until.Store(&end)
	s.until("the job to complete", func() bool { return s.state(id) == "completed" || calls.Load() > 1 })
	s.want("resets", "0", `SELECT num_resets::text FROM example_jobs WHERE id = $1`, id)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}
