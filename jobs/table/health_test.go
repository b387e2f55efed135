package table_test

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/health"
)

var _ health.Worker = (*table.Worker)(nil)

// reasons returns why a worker is not ready.
func reasons(t *testing.T, w *table.Worker) string {
	var all []string
	for _, err := range w.Ready(t.Context(), 0) {
		all = append(all, err.Error())
	}
	return strings.Join(all, "\n")
}

// Live and Ready succeed while the worker runs and the database answers.
func TestHealth(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, nil)
	db, err := sql.Open("pgx", server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(10)
	if _, err := db.ExecContext(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, d: &pgtest.Database{URL: server.URL(""), DB: db}, o: options()}
	s.h.Handle = func(context.Context, *table.Job[example]) error { return nil }
	w := s.worker(db, nil)
	if got := reasons(t, w); !strings.Contains(got, "the worker is new") || w.Live() != nil {
		t.Errorf("a new worker: %q, %v", got, w.Live())
	}
	stop := s.start(w)
	s.until("the worker to be ready", func() bool { return reasons(t, w) == "" })
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := reasons(t, w); !strings.Contains(got, "the database does not answer") || w.Live() != nil {
		t.Errorf("the database is away: %q, %v", got, w.Live())
	}
	s.until("the claims to fail", func() bool { return strings.Contains(reasons(t, w), "it is tried again") })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.until("the worker to be ready again", func() bool { return reasons(t, w) == "" })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got := reasons(t, w); !strings.Contains(got, "the worker is stopped") || w.Live() == nil {
		t.Errorf("a worker that has stopped: %q, %v", got, w.Live())
	}
}

// Health fails while a loop hangs. Here code of the user never returns.
func TestHealthWhileALoopIsDead(t *testing.T) {
	t.Parallel()
	hook := func(of func(hang func()) observe.Observer) func(*stage, *table.WorkerOptions, func()) {
		return func(_ *stage, o *table.WorkerOptions, hang func()) { o.Observers = []observe.Observer{of(hang)} }
	}
	for name, c := range map[string]struct {
		with func(s *stage, o *table.WorkerOptions, hang func())
		loop string
	}{
		"PreDequeue": {func(s *stage, _ *table.WorkerOptions, hang func()) {
			s.h.PreDequeue = func(context.Context) (ok bool, c table.Condition, err error) { hang(); return false, c, nil }
		}, "that claims jobs"},
		"JobsClaimed": {hook(func(hang func()) observe.Observer {
			return observe.On(func(observe.JobsClaimed) { hang() })
		}), "that claims jobs"},
		"JobDone": {hook(func(hang func()) observe.Observer {
			return observe.On(func(observe.JobDone) { hang() })
		}), "that stores what became of jobs"},
		"JobReset": {hook(func(hang func()) observe.Observer {
			return observe.On(func(observe.RowReset) { hang() })
		}), "that resets the jobs of lost workers"},
		"Failed": {func(s *stage, o *table.WorkerOptions, hang func()) {
			s.d.Exec(s.t, `ALTER TABLE example_jobs ADD CHECK (state <> 'processing' OR last_heartbeat_at <= started_at)`)
			s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error { <-ctx.Done(); return ctx.Err() }
			o.Observers = []observe.Observer{observe.On(func(f observe.StatementFailed) {
				if f.Condition == observe.ConditionHeartbeat {
					hang()
				}
			})}
		}, "of the heartbeats"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			var hangs atomic.Bool
			leave, o := make(chan struct{}), quick()
			c.with(s, &o, func() {
				if hangs.Load() {
					<-leave
				}
			})
			w := table.NewWorker(table.NewStore(s.d.DB, s.o), s.h, o)
			table.SetHangsAfter(w, time.Second)
			s.start(w)
			t.Cleanup(func() { close(leave) })
			s.until("the worker to be ready", func() bool { return len(w.Ready(t.Context(), 0)) == 0 })
			hangs.Store(true)
			s.add("")
			s.add(`(state, worker_hostname, last_heartbeat_at) VALUES ('processing', 'gone/1', now() - interval '1 hour')`)
			s.until("the worker not to be live", func() bool {
				err := w.Live()
				return err != nil && strings.Contains(err.Error(), c.loop)
			})
			s.until("the status to say so", func() bool {
				err := w.Status().LoopError
				return err != nil && strings.Contains(err.Error(), c.loop)
			})
			s.until("that to be why it is not ready", func() bool { return strings.Contains(reasons(t, w), c.loop) })
		})
	}
}
