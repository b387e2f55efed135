package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
)

type digest struct{ Day string }

func (digest) Kind() string { return "digest" }

// A job each second, here; a digest each morning would be
// schedule.Daily(7, 0, berlin).
func Example() {
	t, done := pgtest.Example()
	defer done()
	db := pgtest.Empty(t).DB // sql.Open("pgx", ...) in a program
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := migrations.ApplyJobs(ctx, db, nil); err != nil {
		fmt.Println(err)
		return
	}

	scheduler := schedule.New(db, jobs.NewClient(db),
		schedule.Job("digest", schedule.Every(time.Second), func(tick time.Time) jobs.Args {
			return digest{tick.Format(time.DateOnly)}
		}))
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Start(ctx) }()

	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[digest]) error {
		fmt.Println("a digest of today:", j.Args.Day == time.Now().UTC().Format(time.DateOnly))
		return nil
	})
	if err := jobs.NewWorker(db, handlers, jobs.WithStopAfterJobs(1)).Start(ctx); err != nil {
		fmt.Println(err)
	}
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output: a digest of today: true
}
