package e2e

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// wire is what lies between one worker and the database. While it is paused
// nothing gets through, and nobody is told.
type wire struct {
	mu    sync.Mutex
	open  *sync.Cond
	halt  bool // what is sent and received waits
	down  bool // there are no new connections
	conns map[net.Conn]struct{}
}

// newWire makes a pool whose connections go over a wire.
func newWire(t *testing.T, url string) (*wire, *sql.DB) {
	t.Helper()
	w := &wire{conns: map[net.Conn]struct{}{}}
	w.open = sync.NewCond(&w.mu)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal("pgx does not take the connection string")
	}
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.down {
			return nil, errors.Join(syscall.ECONNREFUSED, c.Close())
		}
		w.conns[c] = struct{}{}
		return wired{c, w}, nil
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { db.Close() })
	return w, db
}

type wired struct {
	net.Conn
	w *wire
}

func (c wired) Write(b []byte) (int, error) {
	c.w.pass()
	return c.Conn.Write(b)
}

func (c wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.w.pass()
	return n, err
}

func (w *wire) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.halt {
		w.open.Wait()
	}
}

func (w *wire) pause(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.halt = yes
	w.open.Broadcast()
}

// cut ends all connections, and there are no new ones until mend.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for c := range w.conns {
		_ = c.Close()
		delete(w.conns, c)
	}
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// signed is a consumer that writes down who handled what.
type signed struct {
	who    string
	before func(e store.PersistedEvent)
}

func (s *signed) Name() string { return "signed" }

func (s *signed) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if s.before != nil {
		s.before(e)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ($1, $2)`, s.who, e.GlobalPosition)
	return err
}

// A worker is paused in the middle of a batch, for longer than HeartbeatTimeout.
// Either nobody ends its batch, which then commits whole before the new
// owner's first, or somebody does, and it never happens. The consumer may
// have come back to the first worker by the time of the next batch.
func TestPausedInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		strategy worker.LeaderStrategy
		timeout  time.Duration
		ended    bool
		want     *regexp.Regexp
	}{
		"its batch is left alone": {worker.LeaderStrategyLease, time.Hour, false, regexp.MustCompile(`^paused 1,paused 2,paused 3,(paused|other) 4,(paused|other) 5$`)},
		"its batch is ended":      {worker.LeaderStrategyAdvisory, 30 * time.Second, true, regexp.MustCompile(`^other 1,other 2,other 3,other 4,other 5$`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 5)
			w, db := newWire(t, d.URL)
			inside, goOn := make(chan struct{}), make(chan struct{})
			once := sync.OnceFunc(func() { close(inside); <-goOn })
			release := sync.OnceFunc(func() { close(goOn) })
			paused := start(t, db, []consumer.Consumer{&signed{"paused", func(e store.PersistedEvent) {
				if e.GlobalPosition == 2 {
					once()
				}
			}}}, worker.WithBatchSize(3), worker.WithLeaderStrategy(test.strategy), worker.WithBatchTimeout(test.timeout))
			t.Cleanup(func() { w.pause(false); release() })
			<-inside
			w.pause(true)
			other := start(t, d.DB, []consumer.Consumer{&signed{who: "other"}}, worker.WithBatchSize(3), worker.WithLeaderStrategy(test.strategy), worker.WithBatchTimeout(test.timeout))
			ledger := func() string {
				var s string
				if err := d.DB.QueryRow(`SELECT coalesce(string_agg(consumer || ' ' || position, ',' ORDER BY id), '') FROM ledger`).Scan(&s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			if test.ended {
				await(t, "the other worker to have done everything", func() bool { return test.want.MatchString(ledger()) })
			} else {
				await(t, "the other worker's batch to wait for the first's", func() bool {
					var n int
					err := d.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%consumer_checkpoints%'`).Scan(&n)
					return err == nil && n > 0 && other.Status().Consumers[0].Assigned
				})
				if got := ledger(); got != "" {
					t.Errorf("the new owner did not wait: %s", got)
				}
			}
			w.pause(false)
			release()
			await(t, "five events in the ledger", func() bool { return strings.Count(ledger(), ",") >= 4 })
			if got := ledger(); !test.want.MatchString(got) {
				t.Errorf("handled was %s, not %s", got, test.want)
			}
			await(t, "the worker that was paused to be back", func() bool {
				s := paused.Status()
				return s.CoordinationError == nil && time.Since(s.LastHeartbeat) < time.Second
			})
			if got := ledger(); !test.want.MatchString(got) {
				t.Errorf("in the end handled was %s, not %s", got, test.want)
			}
		})
	}
}

// A worker that cannot send heartbeats stops its consumers, since another may
// have them now, and goes on by itself when the database is back.
func TestWorkerWithoutDatabaseStopsItsConsumersAndComesBack(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)
	w, db := newWire(t, d.URL)
	only := start(t, db, []consumer.Consumer{&ledger{name: "c"}}, worker.WithHeartbeatTimeout(3*time.Second))
	awaitHandled(t, d.DB, "c", 1, 2)
	w.cut()
	await(t, "the consumer to be nobody's", func() bool {
		s := only.Status()
		return !s.Consumers[0].Assigned && s.CoordinationError != nil && s.State == observe.StateRunning
	})
	appendN(t, d.DB, "Order", "1", 2)
	w.mend()
	awaitHandled(t, d.DB, "c", 1, 2, 3, 4)
	await(t, "the status to say that all is well", func() bool {
		s := only.Status()
		return s.Consumers[0].Assigned && s.CoordinationError == nil
	})
}
