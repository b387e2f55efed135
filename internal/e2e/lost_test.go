package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// retries keeps what an Observer is told of retries.
type retries struct {
	mu  sync.Mutex
	all []observe.Retrying
}

func (r *retries) observe() worker.Option {
	return worker.WithObserver(observe.On(func(about observe.Retrying) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, about)
	}))
}

func (r *retries) told() []observe.Retrying {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// An event that always costs its batch the connection, or the server's memory,
// goes to the dead letters, and no other. Only what may be the database's own
// failure is forgiven, once.
func TestEventThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	raise := func(state string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'out of it' USING ERRCODE = '`+state+`'; END $$`)
			return err
		}
	}
	for name, test := range map[string]struct {
		handle   func(ctx context.Context, tx *sql.Tx) error
		forgiven bool
	}{
		"the handler's own deadline": {func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			if _, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`); err != nil {
				return fmt.Errorf("projecting took too long: %w", err)
			}
			return nil
		}, false},
		"it ends its backend": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}, true},
		"COMMIT never arrives": {func(ctx context.Context, _ *sql.Tx) error { return decide(ctx, neverArrives) }, true},
		"out of memory":        {raise("53200"), true},
		"an I/O error":         {raise("58030"), true},
		"transaction_timeout":  {raise("25P04"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			for i := range 6 {
				appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
			}
			c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition == 3 {
					return test.handle(ctx, tx)
				}
				return nil
			}}
			var r retries
			start(t, (&cutter{}).open(t, d), []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2), r.observe())
			awaitHandled(t, d.DB, "c", 1, 2, 4, 5, 6)
			letters, err := operator(t, d).DeadLetters(t.Context(), "c")
			if err != nil || len(letters) != 1 || letters[0].Position != 3 || letters[0].Attempts != 2 {
				t.Errorf("the dead letters are %+v, %v; want the one at 3 after 2 attempts", letters, err)
			}
			for i, told := range r.told() {
				if told.ByHandler != (i > 0 || !test.forgiven) {
					t.Errorf("retry %d of %s by the handler: %+v", i+1, map[bool]string{true: "is", false: "is not"}[told.ByHandler], told)
				}
			}
		})
	}
}

// A COMMIT into a network that has died is ended by the batch's deadline. That
// is not the handler's failure.
func TestCommitIntoSilence(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	db, hole := d.OpenHole(t)
	var once sync.Once
	c := &ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		once.Do(func() { hole.Swallow("commit") })
		return nil
	}}
	var r retries
	start(t, db, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1_000_000), worker.WithBatchTimeout(500*time.Millisecond), r.observe())
	awaitHandled(t, d.DB, "c", upTo(3)...)
	// On a slow machine a handler may be too slow before.
	told := slices.DeleteFunc(r.told(), func(r observe.Retrying) bool { return r.ByHandler && !strings.Contains(r.Err.Error(), "commit") })
	if len(told) != 1 || told[0].ByHandler || !strings.Contains(told[0].Err.Error(), "in its commit") {
		t.Errorf("told of %+v, want one retry that is not the handler's", told)
	}
	if hole.Fallen() != 1 {
		t.Errorf("%d connections died, want 1", hole.Fallen())
	}
}

// The server goes away under a handler again and again, at the same event: none
// of that is the handler's failure.
func TestOutageUnderAHandlerNeverCounts(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]func(ctx context.Context, s *embedded.Server, others *sql.DB) error{
		"it crashes": func(ctx context.Context, s *embedded.Server, _ *sql.DB) error {
			if err := s.Kill(); err != nil {
				return err
			}
			return s.Restart(ctx)
		},
		"it is restarted": func(ctx context.Context, s *embedded.Server, _ *sql.DB) error { return s.Restart(ctx) },
		"all connections are ended": func(ctx context.Context, _ *embedded.Server, others *sql.DB) error {
			_, err := others.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, db := ownLog(t)
			others, err := sql.Open("pgx", s.URL(""))
			if err != nil {
				t.Fatal(err)
			}
			defer others.Close()
			others.SetMaxIdleConns(0) // none is kept over an outage
			appendN(t, db, "Order", "1", 5)
			const outages = 2
			var tries atomic.Int32
			c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition != 3 || tries.Add(1) > outages {
					return nil
				}
				return outage(context.WithoutCancel(ctx), s, others) // what follows meets it
			}}
			var r retries
			w := start(t, db, []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1), r.observe(),
				worker.WithDispatcherInterval(10*time.Second)) // the frontier notices nothing unless it is asked
			await(t, "the consumer to come to the head", func() bool { return statusOf(w.Worker, "c").Position == 5 })
			awaitHandled(t, others, "c", upTo(5)...)
			for _, told := range r.told() {
				if told.ByHandler {
					t.Errorf("the handler is to blame for %+v", told)
				}
			}
			if n := tries.Load(); n != outages+1 {
				t.Errorf("the event was tried %d times, want %d", n, outages+1)
			}
		})
	}
}

// ownLog makes an empty log and an empty ledger on a server of their own.
func ownLog(t *testing.T) (*embedded.Server, *sql.DB) {
	t.Helper()
	s := pgtest.OwnServer(t, nil)
	db, err := sql.Open("pgx", s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(16)
	if err := migrations.Apply(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return s, db
}
