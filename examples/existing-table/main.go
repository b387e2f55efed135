// Command existing-table runs the rows of a table that an application has had for long as
// durable jobs: it makes a thumbnail for each photo.
//
//	go run ./examples/existing-table
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

// before is the table as it was.
const before = `
CREATE TABLE photos (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, path TEXT NOT NULL, width INT NOT NULL);
CREATE TABLE thumbnails (photo_id BIGINT PRIMARY KEY REFERENCES photos, path TEXT NOT NULL);
INSERT INTO photos (path, width) VALUES ('cat.jpg', 4000), ('empty.jpg', 0), ('dog.jpg', 3000)`

// migration adds what a worker needs. The rows that are there become jobs: to leave them
// alone, add the column state with DEFAULT 'completed', and change the default then.
const migration = `
ALTER TABLE photos
	ADD COLUMN state             TEXT NOT NULL DEFAULT 'queued',
	ADD COLUMN failure_message   TEXT,
	ADD COLUMN queued_at         TIMESTAMPTZ DEFAULT now(),
	ADD COLUMN started_at        TIMESTAMPTZ,
	ADD COLUMN last_heartbeat_at TIMESTAMPTZ,
	ADD COLUMN finished_at       TIMESTAMPTZ,
	ADD COLUMN process_after     TIMESTAMPTZ,
	ADD COLUMN num_resets        INT NOT NULL DEFAULT 0,
	ADD COLUMN num_failures      INT NOT NULL DEFAULT 0,
	ADD COLUMN execution_logs    JSON[],
	ADD COLUMN worker_hostname   TEXT NOT NULL DEFAULT '',
	ADD COLUMN cancel            BOOLEAN NOT NULL DEFAULT false;
CREATE INDEX photos_due ON photos (id) WHERE state IN ('queued', 'errored');
CREATE INDEX photos_processing ON photos (id) WHERE state = 'processing'`

// Photo is what the handler needs of a row.
type Photo struct {
	ID    int64
	Path  string
	Width int
}

func scanPhoto(row table.Row) (p Photo, err error) {
	err = row.Scan(&p.ID, &p.Path, &p.Width)
	return p, err
}

// makeThumbnail writes the thumbnail and completes the job in one transaction: both are
// committed, or neither.
func makeThumbnail(ctx context.Context, db *sql.DB, j *table.Job[Photo]) error {
	photo := j.Record
	fmt.Printf("%s, attempt %d\n", photo.Path, j.NumFailures+1)
	if photo.Width == 0 {
		return table.NonRetryable(errors.New("the photo is empty"))
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if _, err := tx.ExecContext(ctx, `INSERT INTO thumbnails VALUES ($1::bigint, $2::text)`, photo.ID, "small-"+photo.Path); err != nil {
		return err
	}
	if photo.Path == "dog.jpg" && j.NumFailures == 0 {
		return errors.New("no memory left") // rolls back, and is tried again
	}
	if err := j.CompleteTx(ctx, tx); err != nil {
		return err // another worker has the job
	}
	return tx.Commit()
}

func run(ctx context.Context, db *sql.DB) error {
	for _, statements := range []string{before, migration} {
		if _, err := db.ExecContext(ctx, statements); err != nil {
			return err
		}
	}
	photos := table.NewStore(db, table.Options[Photo]{
		TableName:         "photos",
		ColumnExpressions: []string{"id", "path", "width"},
		Scan:              scanPhoto,
		MaxNumRetries:     3,
		RetryAfter:        2 * time.Second,
	})

	// A job is enqueued by an INSERT, as ever, in a transaction of yours or on its own.
	if _, err := db.ExecContext(ctx, `INSERT INTO photos (path, width) VALUES ('bird.jpg', 2000)`); err != nil {
		return err
	}

	var w *table.Worker
	var unfinished atomic.Int32
	unfinished.Store(4)
	w = table.NewWorker(photos, table.Handler[Photo]{
		Handle: func(ctx context.Context, j *table.Job[Photo]) error { return makeThumbnail(ctx, db, j) },
	}, table.WorkerOptions{
		NumHandlers:          1, // one at a time
		Interval:             100 * time.Millisecond,
		MaximumRuntimePerJob: time.Minute,
		Observers: []observe.Observer{observe.On(func(d observe.JobDone) {
			if (d.State == string(table.StateCompleted) || d.State == string(table.StateFailed)) && unfinished.Add(-1) == 0 {
				w.Stop() // a program of yours goes on until ctx ends
			}
		})},
	})
	if err := w.Start(ctx); err != nil {
		return err
	}
	return show(ctx, db)
}

// show prints what has become of the rows.
func show(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `
		SELECT p.path, p.state, coalesce(t.path, p.failure_message) FROM photos AS p LEFT JOIN thumbnails AS t ON t.photo_id = p.id ORDER BY p.id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var path, state, result string
		if err := rows.Scan(&path, &state, &result); err != nil {
			return err
		}
		fmt.Printf("%s %s: %s\n", path, state, result)
	}
	return rows.Err()
}
