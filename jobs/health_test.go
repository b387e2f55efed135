package jobs_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
)

// Live and Ready succeed while the worker runs and the database answers.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := pgtest.OwnServer(t, nil)
	d, err := sql.Open("pgx", s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := migrations.ApplyJobs(t.Context(), d, nil); err != nil {
		t.Fatal(err)
	}
	awaits := &stage{t: t}
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(context.Context, *jobs.Job[Welcome]) error { return nil })
	w := jobs.NewWorker(d, handlers, jobs.WithHeartbeatInterval(100*time.Millisecond), jobs.WithHeartbeatTimeout(time.Second))
	says := func() string {
		var all []string
		for _, err := range w.Ready(t.Context(), 0) {
			all = append(all, err.Error())
		}
		return strings.Join(all, "\n")
	}
	if got := says(); !strings.Contains(got, "the worker is new") || w.Live() != nil {
		t.Errorf("a new worker: %q, %v", got, w.Live())
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.Background()) }()
	t.Cleanup(func() {
		w.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
		if got := says(); !strings.Contains(got, "the worker is stopped") || w.Live() == nil {
			t.Errorf("a worker that has stopped: %q, %v", got, w.Live())
		}
	})
	awaits.until("the worker to be ready", func() bool { return says() == "" })
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := says(); !strings.Contains(got, "the database does not answer") || w.Live() != nil {
		t.Errorf("the database is away: %q, %v", got, w.Live())
	}
	awaits.until("the heartbeat to be old", func() bool { return strings.Contains(says(), "the last heartbeat was") })
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaits.until("the worker to be ready again", func() bool { return says() == "" })
}

// Health fails while a loop hangs, although the heartbeats go on. Here a hook never returns.
func TestHealthWhileALoopIsDead(t *testing.T) {
	t.Parallel()
	for loop, observe := range map[string]func(hang func()) observe.Observer{
		`of queue "default"`:          func(hang func()) observe.Observer { return observe.On(func(observe.JobsClaimed) { hang() }) },
		"stores what became of jobs":  func(hang func()) observe.Observer { return observe.On(func(observe.JobDone) { hang() }) },
		"resets the jobs of the dead": func(hang func()) observe.Observer { return observe.On(func(observe.JobsReset) { hang() }) },
		"removes what is old":         func(hang func()) observe.Observer { return observe.On(func(observe.JobsExpired) { hang() }) },
		"the observer's NotifyFailed": func(hang func()) observe.Observer { return observe.On(func(observe.NotifyFailed) { hang() }) },
	} {
		t.Run(loop, func(t *testing.T) {
			s := newStage(t)
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
			leave := make(chan struct{})
			w := jobs.NewWorker(s.d.DB, s.Handlers, append(quick(), jobs.WithObserver(observe(func() { <-leave })),
				jobs.WithNotifyConnectionString("host=127.0.0.1 port=1"))...) // no server listens there
			jobs.SetHangsAfter(w, time.Second)
			jobs.SetMaintenance(w, 100*time.Millisecond)
			ended := make(chan error, 1)
			go func() { ended <- w.Start(context.Background()) }()
			t.Cleanup(func() {
				close(leave)
				w.Stop()
				if err := <-ended; err != nil {
					t.Errorf("the worker ended with %v", err)
				}
			})
			alone := func() bool { // alone reports whether the dead loop is the only reason, if there is a reason
				return !slices.ContainsFunc(w.Ready(t.Context(), 0), func(err error) bool { return !strings.Contains(err.Error(), loop) })
			}
			s.until("the worker to be ready", alone)
			s.add(task{1}, jobs.Queue("nobody"), jobs.GoodUntil(time.Now().Add(100*time.Millisecond)))
			s.add(task{2})
			dead := s.add(task{3}, jobs.In(time.Hour))
			s.d.Exec(t, `UPDATE jobs SET state = 'running', attempt = 1, claim = 1, claimed_by = gen_random_uuid(), claimed_at = now(), started_at = now() WHERE id = $1`, dead)
			s.until("the worker not to be live", func() bool {
				err := w.Live()
				return err != nil && strings.Contains(err.Error(), loop)
			})
			s.until("no other reason not to be ready", alone)
			if len(w.Ready(t.Context(), 0)) == 0 {
				t.Error("it is ready")
			}
		})
	}
}
