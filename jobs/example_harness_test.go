package jobs_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
)

// Welcome are the arguments of a job that sends a mail.
type Welcome struct {
	UserID int64  `json:"user_id"`
	Name   string `json:"name"`
}

func (Welcome) Kind() string { return "welcome" }

// database makes a database for an Example, with the tables of jobs, the log of events, and one
// more table.
func database(table string) (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.New(t)
	check(migrations.ApplyJobs(context.Background(), d.DB, nil))
	d.Exec(t, table)
	return d.DB, drop
}

// background starts a worker. stop ends the worker and waits until it has ended.
func background(db *sql.DB, handlers *jobs.Handlers, opts ...jobs.Option) (stop func()) {
	w := jobs.NewWorker(db, handlers, opts...)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.Background()) }()
	return func() {
		w.Stop()
		check(<-ended)
	}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
