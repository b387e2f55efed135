package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
)

// mail is a job.
type mail struct{ To int }

func (mail) Kind() string { return "welcome" }

// bill is another job.
type bill struct{}

func (bill) Kind() string { return "bill" }

// workJobs runs a worker of the queue "mail" that has handlers for both.
func (s *scene) workJobs(t *testing.T, handle func() error) {
	t.Helper()
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(context.Context, *jobs.Job[mail]) error { return handle() }, jobs.MaxAttempts(1))
	jobs.Register(handlers, func(context.Context, *jobs.Job[bill]) error { return nil })
	s.workWith(t, handlers)
}

// workWith runs a worker of the queue "mail".
func (s *scene) workWith(t *testing.T, handlers *jobs.Handlers) {
	t.Helper()
	s.build(t)
	w := jobs.NewWorker(s.DB, handlers, jobs.WithQueue("mail", 1), jobs.WithPollInterval(20*time.Millisecond),
		jobs.WithHeartbeatInterval(100*time.Millisecond), jobs.WithObserver(s.observer))
	s.serve(t, w, w.Start, w.Stop)
}

// enqueue enqueues a job.
func (s *scene) enqueue(t *testing.T, opts ...jobs.EnqueueOption) {
	t.Helper()
	got, err := jobs.NewClient(s.DB).Enqueue(t.Context(), nil, mail{7}, append(opts, jobs.Queue("mail"))...)
	if err != nil {
		t.Fatal(err)
	}
	s.vars["ID"] = fmt.Sprint(got.ID)
}

func done() error { return nil }

// jobsAlarms are about jobs.
var jobsAlarms = []alarm{
	{
		name:  "A queue is paused",
		start: func(t *testing.T, s *scene) { s.workJobs(t, done) },
		happen: func(t *testing.T, s *scene) {
			s.vars["QUEUE"] = "mail"
			s.expect(t, exitDone, split(t, `pgfrontier jobs pause mail --reason "the mail server is down"`)[1:])
			s.enqueue(t)
		},
	},
	{
		name: "No worker of jobs lives",
		start: func(t *testing.T, s *scene) {
			s.vars["QUEUE"] = "mail"
			s.workJobs(t, done)
		},
		happen: func(t *testing.T, s *scene) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			s.enqueue(t, jobs.At(time.Now().Add(-time.Hour)))
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			s.workJobs(t, done)
			r()
		},
	},
	{
		name: "Jobs are due that no worker can run", age: time.Second,
		start: func(t *testing.T, s *scene) {
			s.vars["QUEUE"] = "mail"
			handlers := jobs.NewHandlers()
			jobs.Register(handlers, func(context.Context, *jobs.Job[bill]) error { return nil })
			s.workWith(t, handlers)
		},
		happen: func(t *testing.T, s *scene) { s.enqueue(t, jobs.At(time.Now().Add(-time.Hour))) },
		mend: func(t *testing.T, s *scene, r remedy) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			s.workJobs(t, done)
			r()
		},
	},
	jobFailed(),
	scheduleOverdue(),
}

// jobFailed has a handler that is mended.
func jobFailed() alarm {
	var broken atomic.Bool
	return alarm{
		name: "A job has failed for good",
		start: func(t *testing.T, s *scene) {
			broken.Store(true)
			s.vars["QUEUE"] = "mail"
			s.workJobs(t, func() error {
				if broken.Load() {
					return errors.New("no such mailbox")
				}
				return nil
			})
		},
		happen: func(t *testing.T, s *scene) { s.enqueue(t) },
		mend: func(t *testing.T, s *scene, r remedy) {
			broken.Store(false)
			r()
			await(t, "the job to complete", func() bool {
				return value[int64](t, s.site, `SELECT count(*) FROM jobs_history WHERE state = 'completed'`) == 1
			})
		},
	}
}

// scheduleOverdue has a scheduler that ends, and comes back.
func scheduleOverdue() alarm {
	run := func(t *testing.T, s *scene) (end func()) {
		scheduler := schedule.New(s.DB, jobs.NewClient(s.DB),
			schedule.Job("nightly", schedule.Every(time.Second), func(time.Time) jobs.Args { return mail{7} }, schedule.Enqueue(jobs.Queue("mail"))))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- scheduler.Start(ctx) }()
		end = sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(end)
		return end
	}
	var end func()
	return alarm{
		name: "A schedule is overdue", age: 3 * time.Second,
		start: func(t *testing.T, s *scene) {
			s.workJobs(t, done)
			end = run(t, s)
			await(t, "a tick", func() bool { return value[int64](t, s.site, `SELECT count(*) FROM jobs_history`) > 0 })
		},
		happen: func(t *testing.T, s *scene) {
			end()
			s.Exec(t, `UPDATE jobs_schedules SET next_at = next_at - interval '1 hour'`) // which has passed
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			r()
			run(t, s)
		},
	}
}
