package crontest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type tickJob struct{ Tick time.Time }

func (tickJob) Kind() string { return "tick" }

func tick(at time.Time) jobs.Args { return tickJob{at} }

func parse(t *testing.T, text string) schedule.Spec {
	t.Helper()
	s, err := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor).Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Cron has the times of Daily, in zones too, on days without a change of the clock.
// What comes of a time that is left out is each library's own: Daily is the moment
// after it, cron leaves the day out.
func TestCronAndDaily(t *testing.T) {
	for _, zone := range []string{"UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"} {
		l, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := schedule.Daily(7, 30, l), parse(t, "CRON_TZ="+zone+" 30 7 * * *")
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 1_000 {
			a, b := ours.Next(at), theirs.Next(at)
			if !a.Equal(b) {
				t.Fatalf("%s: after %v comes %v, cron says %v", zone, at, a, b)
			}
			at = a
		}
	}
}

// Processes that parse the same text have the same schedule, and each tick is one job.
func TestCronOnTwoProcesses(t *testing.T) {
	for _, text := range []string{"CRON_TZ=Europe/Berlin * * * * * *", "@every 1s"} {
		t.Run(text, func(t *testing.T) { onTwoProcesses(t, text) })
	}
}

func onTwoProcesses(t *testing.T, text string) {
	d := pgtest.Empty(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	var all []*schedule.Scheduler
	for range 2 {
		s := schedule.New(d.DB, jobs.NewClient(d.DB), schedule.Job("each second", parse(t, text), tick, schedule.CatchUp(100)))
		all = append(all, s)
		go func() { done <- s.Start(ctx) }()
	}
	const ticks = 4
	for deadline := time.Now().Add(pgtest.Patience); all[0].Status()[0].Jobs+all[1].Status()[0].Jobs < ticks; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the ticks did not come")
		}
	}
	for _, s := range all {
		if st := s.Status()[0]; st.Foreign || st.Err != nil {
			t.Errorf("%+v", st)
		}
	}
	stop()
	for range all {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var jobs, seconds int
	if err := d.DB.QueryRow(`SELECT count(*), 1 + extract(epoch FROM max(tick) - min(tick))::int FROM (SELECT (args->>'Tick')::timestamptz AS tick FROM jobs) AS j`).Scan(&jobs, &seconds); err != nil {
		t.Fatal(err)
	}
	if jobs < ticks || jobs != seconds {
		t.Error(fmt.Sprint(jobs, " jobs in ", seconds, " seconds"))
	}
}
