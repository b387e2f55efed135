package coord

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait. It is below the default HeartbeatTimeout, so a condition that
// comes true in time did not wait for a timeout.
const patience = 25 * time.Second

var six = []string{"Analytics", "Billing", "Email", "Inventory", "Orders", "Shipping"}

// config has the worker's defaults.
func config(db *sql.DB, units ...string) Config {
	return Config{
		DB: db, ID: uuid.New(), Units: units,
		Column: "consumers", Nodes: ident.Table{Name: "worker_nodes"}, Stopped: ident.Table{Name: "consumer_past_workers"}, Assignments: ident.Table{Name: "consumer_assignments"},
		Checkpoints: ident.Table{Name: "consumer_checkpoints"}, Leader: ident.Table{Name: "worker_leader_election"},
		Changes:           ident.Table{Name: "consumer_checkpoints_changes"},
		Token:             ident.Table{Name: "consumer_checkpoints_token"},
		HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, RebalanceInterval: 5 * time.Second,
	}
}

// brisk sends heartbeats often, with a short HeartbeatTimeout.
func brisk(cfg Config) Config {
	cfg.HeartbeatInterval, cfg.RebalanceInterval = 100*time.Millisecond, 100*time.Millisecond
	return cfg
}

// quick has a HeartbeatTimeout that a test can wait for. On a busy machine the timeout may
// pass unintended.
func quick(cfg Config) Config {
	cfg = brisk(cfg)
	cfg.HeartbeatTimeout = time.Second
	return cfg
}

func withLease(cfg Config, leased bool) Config {
	cfg.Lease = leased
	return cfg
}

// eachStrategy runs f with advisory locks and with a lease, on a database each.
func eachStrategy(t *testing.T, f func(t *testing.T, d *pgtest.Database, leased bool)) {
	t.Helper()
	for name, leased := range map[string]bool{"advisory": false, "lease": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			insertToken(t, d.DB)
			f(t, d, leased)
		})
	}
}

// insertToken inserts the token, as a worker's frontier does.
func insertToken(t *testing.T, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `
INSERT INTO consumer_checkpoints_token (token, database)
SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`)
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
}

func scan[T any](t testing.TB, db *sql.DB, query string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
	return v
}

// await waits until ok returns true.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not true: %s", patience, what)
		}
	}
}

// worker is a running coordinator.
type worker struct {
	*Coordinator
	t    *testing.T
	id   uuid.UUID
	stop func() // ends Run and waits for it
}

// start runs a coordinator until the test ends.
func start(t *testing.T, cfg Config) *worker {
	t.Helper()
	c := New(cfg)
	if err := c.Register(context.Background()); err != nil {
		t.Fatalf("Register: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w := &worker{Coordinator: c, t: t, id: cfg.ID}
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

// leave stops Run and calls Leave.
func (w *worker) leave() {
	w.t.Helper()
	w.stop()
	if err := w.Leave(context.Background(), false); err != nil {
		w.t.Fatalf("Leave: %v", err)
	}
}

// awaitAssigned waits until w is assigned want.
func (w *worker) awaitAssigned(want ...string) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		changed := w.Changed()
		got := w.Assigned()
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("after %v worker %s runs %q, not %q; status %+v", patience, w.id, got, want, w.Status())
		}
	}
}

// awaitShares waits until the six consumers are assigned to the workers as documented.
func awaitShares(workers ...*worker) {
	var members []member
	for _, w := range workers {
		w.t.Helper()
		members = append(members, member{ID: w.id, Units: six})
	}
	owners := assignUnits(members, nil)
	for _, w := range workers {
		var want []string
		for _, u := range six {
			if owners[u] == w.id {
				want = append(want, u)
			}
		}
		w.awaitAssigned(want...)
	}
}

// leaderOf waits until one of the workers leads.
func leaderOf(t *testing.T, workers ...*worker) (leader *worker, others []*worker) {
	t.Helper()
	await(t, "one of the workers leads", func() bool {
		leader, others = nil, nil
		for _, w := range workers {
			if w.Status().Leader {
				leader = w
			} else {
				others = append(others, w)
			}
		}
		return leader != nil
	})
	return leader, others
}

// history records every write of an assignment, also a write of an equal value.
func history(t *testing.T, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `CREATE TABLE history (n BIGSERIAL PRIMARY KEY, op TEXT, unit TEXT, worker UUID)`)
	mustExec(t, db, `
CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO history (op, unit, worker) SELECT TG_OP, r.consumer_name, r.worker_id FROM (SELECT (coalesce(NEW, OLD)).*) AS r;
	RETURN NULL;
END $$`)
	mustExec(t, db, `CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON consumer_assignments FOR EACH ROW EXECUTE FUNCTION record()`)
}

// line is the network between one process and the database.
type line struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
	slow  time.Duration // delay of each connection
}

// open opens a pool whose connections go over l.
func (l *line) open(t *testing.T, url string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal("pgx does not parse the connection string")
	}
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		slow := l.slow
		l.mu.Unlock()
		if !backoff.Sleep(ctx, slow) {
			return nil, errors.Join(ctx.Err(), c.Close())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.down {
			return nil, errors.Join(syscall.ECONNREFUSED, c.Close())
		}
		if l.conns == nil {
			l.conns = map[net.Conn]struct{}{}
		}
		l.conns[c] = struct{}{}
		return c, nil
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { db.Close() })
	return db
}

// cut resets all connections. If down is true, no new connection succeeds until mend.
func (l *line) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for c := range l.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		delete(l.conns, c)
	}
}

func (l *line) slower(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = by
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}
