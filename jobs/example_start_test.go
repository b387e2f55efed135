package jobs_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
)

// A user signs up and gets a mail. The job is enqueued in the transaction that creates the user. A
// worker runs the job after the commit.
func Example() {
	ctx := context.Background()
	db, drop := database(`CREATE TABLE users (id BIGSERIAL, name TEXT)`) // sql.Open("pgx", url) and migrations.ApplyJobs
	defer drop()

	// The process in which users sign up enqueues jobs.
	client := jobs.NewClient(db)
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	var id int64
	check(tx.QueryRowContext(ctx, `INSERT INTO users (name) VALUES ('Ann') RETURNING id`).Scan(&id))
	_, err = client.Enqueue(ctx, tx, Welcome{UserID: id, Name: "Ann"})
	check(err)
	check(tx.Commit()) // without the commit there is neither a user nor a job

	// Any number of processes run jobs.
	var w *jobs.Worker
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Welcome]) error {
		fmt.Printf("welcome, %s\n", j.Args.Name) // nil completes the job, an error is retried
		w.Stop()                                 // this example needs one job only
		return nil
	}, jobs.Timeout(time.Minute), jobs.MaxAttempts(5))
	w = jobs.NewWorker(db, handlers)
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// welcome, Ann
	// error: <nil>
}

// A worker runs until its context ends. Then it claims no more jobs, and waits for the running
// jobs.
func ExampleWorker_Start() {
	// Kubernetes and systemd send SIGTERM to end a process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db, drop := database(``) // sql.Open("pgx", url)
	defer drop()
	// ApplyJobs waits while the database is away. Any number of processes may call it at once.
	check(migrations.ApplyJobs(ctx, db, nil))
	_, err := jobs.NewClient(db).Enqueue(ctx, nil, Welcome{Name: "Ann"})
	check(err)

	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Welcome]) error {
		self, err := os.FindProcess(os.Getpid())
		check(err)
		check(self.Signal(syscall.SIGTERM)) // an operator ends the process while the job runs
		select {
		case <-time.After(100 * time.Millisecond): // the work
			fmt.Println("done, though the process is to end")
			return nil
		case <-ctx.Done(): // 20 seconds later
			return ctx.Err() // another worker runs the job
		}
	})
	w := jobs.NewWorker(db, handlers,
		jobs.WithQueue("default", 100),
		jobs.WithShutdownTimeout(20*time.Second)) // less than the platform grants
	fmt.Println("error:", w.Start(ctx))
	// Output:
	// done, though the process is to end
	// error: <nil>
}
