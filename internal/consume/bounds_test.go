package consume

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/store"
)

// A statement that exceeds its limit returns ErrNoAnswer. A canceled statement does not.
func TestStatementTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &connections{limits: usualLimits, sweepNow: wakeup.New()}
		never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		if err := w.bounded(t.Context(), w.limits.read, never); !errors.Is(err, lockwatch.ErrNoAnswer) || time.Since(began) != w.limits.read {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if swept, _ := w.sweepNow.Sleep(t.Context(), time.Millisecond); !swept {
			t.Error("the pool is not swept")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.bounded(ctx, w.limits.read, never); errors.Is(err, lockwatch.ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("when its caller stops: %v", err)
		}
		if swept, _ := w.sweepNow.Sleep(t.Context(), time.Millisecond); swept {
			t.Error("the pool is swept after a second")
		}
	})
}

// lateContext ends some time after its deadline.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

// A network timeout at the context's deadline is not an error of the network, even if it
// fires before the context ends.
func TestNetworkTimeoutAtContextDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("the caller's"))
		defer end()
		w := &connections{limits: usualLimits, sweepNow: wakeup.New()}
		err := w.bounded(lateContext{ctx}, time.Minute, func(context.Context) error {
			return &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
		})
		if ctx.Err() == nil || errors.Is(err, lockwatch.ErrNoAnswer) {
			t.Errorf("%v, and the context of the caller has ended: %v", err, ctx.Err())
		}
	})
}

// The limits of a worker made by New.
func TestUsualLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(nil, nil, nil, func(c *Config) { c.BatchTimeout = time.Minute })
		if want := (limits{5 * time.Second, 30 * time.Second, time.Second, 2 * time.Minute, 5 * time.Second, 10 * time.Second, 0.5}); w.limits != want {
			t.Errorf("the limits are %+v, want %+v", w.limits, want)
		}
		if got := w.limits.stop(&w.cfg); got != time.Minute+10*time.Second {
			t.Errorf("a stop waits for %v, want 1m10s", got)
		}
		if got := guardLimit(w.cfg.BatchTimeout, &w.limits); got != 2*time.Minute+10*time.Second {
			t.Errorf("a guard waits for %v, want 2m10s", got)
		}
	})
}

// A slow server gets more time with each failure, because it is not dead.
func TestQuickLimitGrowsWithFailures(t *testing.T) {
	c := statements{w: &shared{env: env{connections: connections{limits: usualLimits}}}, fails: &failure.Tally{}}
	quick, read := usualLimits.quick, usualLimits.read
	for disturbed, want := range map[int]time.Duration{0: quick, 1: 2 * quick, 2: 4 * quick, 3: read, 4: read, 1000: read} {
		c.fails.Disturbed = disturbed
		if got := c.quickLimit(); got != want {
			t.Errorf("after %d failures in a row it waits for %v, want %v", disturbed, got, want)
		}
	}
}

// A session whose state the server hides from this role counts as busy: it is not known to
// be dead.
func TestHiddenSessionStateCountsAsBusy(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP ROLE `+role) })
	var conns [2]*sql.Conn
	for i := range conns {
		conn, err := d.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer pgdriver.Discard(conn)
		conns[i] = conn
	}
	querying, idle := conns[0], conns[1]
	failed := func(_ context.Context, task string, err error) {
		if err != nil {
			t.Errorf("%s: %v", task, err)
		}
	}
	for hidden, statement := range map[bool]string{false: `RESET ROLE`, true: `SET ROLE ` + role} {
		if _, err := querying.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if s, known := (lockwatch.Sessions{DB: querying, Failed: failed}).Poll(t.Context(), pgdriver.PID(idle)); !known || s.Busy != hidden {
			t.Errorf("after %s an idle session is busy: %v, want %v; known: %v", statement, s.Busy, hidden, known)
		}
	}
}

// A connection to another server is closed. In the pool it would be taken again and again.
func TestGiveClosesConnectionToAnotherServer(t *testing.T) {
	db := pgtest.Empty(t).DB
	w := &connections{db: pgdriver.Pool{DB: db}, limits: usualLimits, sweepNow: wakeup.New()}
	for name, test := range map[string]struct {
		r    result
		kept int
	}{
		"sound":               {result{outcome: committed}, 1},
		"nothing to do":       {result{outcome: idle}, 1},
		"overtaken":           {result{outcome: overtaken}, 1},
		"a handler failed":    {result{outcome: handlerFailed, err: errors.New("refused")}, 1},
		"a statement failed":  {result{outcome: disturbed, err: errors.New("permission denied")}, 0},
		"another incarnation": {result{outcome: overtaken, err: fmt.Errorf("read: %w", store.ErrIncarnation)}, 0},
		"a standby":           {result{outcome: disturbed, err: fmt.Errorf("read: %w", &pgconn.PgError{Code: pgdriver.ReadOnlyTransaction})}, 0},
	} {
		conn, err := w.take(t.Context(), w.limits.quick)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.give(conn, test.r.isOurs(), false); err != nil {
			t.Fatal(err)
		}
		if kept := db.Stats().OpenConnections; kept != test.kept {
			t.Errorf("%s: the pool keeps %d connections, want %d", name, kept, test.kept)
		}
	}
}

// unreachable is a driver whose connections never open.
type unreachable struct{}

func (unreachable) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (unreachable) Driver() driver.Driver { return nil }

// take returns an error after its limit if a pool with room for another connection opens
// none. Otherwise the failure would never be reported.
func TestTakeFailsWithoutAnswer(t *testing.T) {
	for _, maxOpenConns := range []int{0, minPool} {
		synctest.Test(t, func(t *testing.T) {
			db := sql.OpenDB(unreachable{})
			defer db.Close()
			db.SetMaxOpenConns(maxOpenConns)
			w := &connections{db: pgdriver.Pool{DB: db}, limits: usualLimits, sweepNow: wakeup.New()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			if _, err := w.take(ctx, w.limits.quick); !errors.Is(err, lockwatch.ErrNoAnswer) || time.Since(began) != w.limits.quick {
				t.Errorf("of a pool of %d, after %v: %v", maxOpenConns, time.Since(began), err)
			}
		})
	}
}

// Waiting for a connection while all are in use is no failure, however long it takes.
func TestTakeWaitsForConnectionInUse(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).DB
	db.SetMaxOpenConns(1)
	w := &connections{db: pgdriver.Pool{DB: db}, limits: usualLimits, sweepNow: wakeup.New()}
	held, err := w.take(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() {
		conn, err := w.take(context.Background(), time.Second)
		if err == nil {
			w.give(conn, false, false)
		}
		taken <- err
	}()
	await(t, "several bounds to pass", func() bool { return db.Stats().WaitCount > 2 })
	w.give(held, false, false)
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

// calm is a driver whose connections accept every statement without a server.
type calm struct{}

func (calm) Connect(context.Context) (driver.Conn, error)                 { return calm{}, nil }
func (calm) Driver() driver.Driver                                        { return nil }
func (calm) Prepare(string) (driver.Stmt, error)                          { return nil, driver.ErrSkip }
func (calm) Begin() (driver.Tx, error)                                    { return calm{}, nil }
func (calm) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return calm{}, nil }
func (calm) Commit() error                                                { return nil }
func (calm) Rollback() error                                              { return nil }
func (calm) Close() error                                                 { return nil }

// The limit of BEGIN ends with BEGIN. The batch may take longer, and continues while the
// worker stops.
func TestBeginLimitDoesNotEndBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(calm{})
		defer db.Close()
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		intake, stop := context.WithCancel(t.Context())
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		tx, err := begin(ctx, end, intake, conn, usualLimits.quick)
		if err != nil {
			t.Fatal(err)
		}
		defer rollback(tx, end, usualLimits.quick)
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Fatalf("an hour later the batch has ended: %v", context.Cause(ctx))
		}
		stop()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Errorf("the stop has ended the batch: %v", context.Cause(ctx))
		}
	})
}
