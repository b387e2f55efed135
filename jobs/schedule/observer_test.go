package schedule_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// An Observer is notified of each tick that this process has enqueued, with the number of jobs, and
// of a tick whose job cannot be made. A hook that panics ends no goroutine, and is logged once.
func TestObserver(t *testing.T) {
	t.Parallel()
	d := database(t)
	d.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('paused', '', NULL)`)
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.PauseSchedule(t.Context(), "paused", ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ticked, failed := map[string][]observe.Ticked{}, map[string][]observe.TickFailed{}
	seen := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(ticked[name]) + len(failed[name])
	}
	var said bytes.Buffer // written by the Scheduler's goroutine, which has ended before the read
	s := schedule.New(d.DB, jobs.NewClient(d.DB),
		schedule.Job("fine", each(20*time.Millisecond), jobOf),
		schedule.Job("paused", each(20*time.Millisecond), jobOf),
		schedule.Job("broken", each(20*time.Millisecond), func(time.Time) jobs.Args { panic("no job today") })).
		WithLogger(slog.New(slog.NewTextHandler(&said, nil))).
		WithObserver(observe.On(func(observe.Ticked) { panic("the observer's") })).
		WithObserver(observe.On(func(k observe.Ticked) {
			mu.Lock()
			defer mu.Unlock()
			ticked[k.Schedule] = append(ticked[k.Schedule], k)
		}),
			observe.On(func(f observe.TickFailed) {
				mu.Lock()
				defer mu.Unlock()
				failed[f.Schedule] = append(failed[f.Schedule], f)
			}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	until(t, "ticks of all", func() bool { return seen("fine") > 2 && seen("paused") > 2 && seen("broken") > 0 })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, k := range ticked["fine"] {
		total += k.Jobs
		if k.Tick.IsZero() || k.Late < 0 || k.Took <= 0 {
			t.Errorf("notified %+v", k)
		}
	}
	if n := count(t, d, `SELECT count(*) FROM jobs`); total == 0 || total > n || int64(total) != s.Status()[0].Jobs { // the answer to the last commit may be lost
		t.Errorf("notified of %d jobs, there are %d, and Status has %d", total, n, s.Status()[0].Jobs)
	}
	for _, k := range ticked["paused"] {
		if k.Jobs != 0 {
			t.Errorf("of a paused one: %+v", k)
		}
	}
	if f := failed["broken"]; len(ticked["broken"])+len(failed["fine"])+len(failed["paused"]) > 0 || !strings.Contains(f[0].Err.Error(), "no job today") {
		t.Errorf("ticked %v, failed %v", ticked["broken"], failed)
	}
	if n := strings.Count(said.String(), "hook panicked"); n != 1 || !strings.Contains(said.String(), "the observer's") {
		t.Errorf("%d lines of the panic in\n%s", n, &said)
	}
}
