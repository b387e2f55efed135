package health_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe/health"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// mail is the job of a mail, and digest that of a daily report.
type (
	mail   struct{ Order string }
	digest struct{ Day string }
)

func (mail) Kind() string   { return "mail" }
func (digest) Kind() string { return "digest" }

// mailer is a consumer that enqueues a mail for each order.
type mailer struct{ client *jobs.Client }

func (mailer) Name() string { return "mailer_v1" }

func (m mailer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := m.client.EnqueueFor(ctx, tx, e, mail{e.AggregateID})
	return err
}

// One process has a worker of events, a worker of jobs, schedules and probes. If one of them ends, all end.
func ExampleAll() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t, done := pgtest.Example()
	defer done()
	db := pgtest.Empty(t).DB // sql.Open("pgx", url) in a program
	config := migrations.DefaultConfig()
	check(migrations.Apply(ctx, db, &config))
	check(migrations.ApplyJobs(ctx, db, nil))

	client, handlers := jobs.NewClient(db), jobs.NewHandlers()
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[mail]) error {
		fmt.Println("a mail for", j.Args.Order)
		stop() // this example needs one job only
		return nil
	})
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[digest]) error { return nil })
	log := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	events := worker.New(db, log, []consumer.Consumer{mailer{client}})
	mails := jobs.NewWorker(db, handlers)
	digests := schedule.New(db, client, schedule.Job("digest", schedule.Daily(7, 0, time.UTC), func(tick time.Time) jobs.Args {
		return digest{tick.Format(time.DateOnly)}
	}))

	probes := http.NewServeMux()
	probes.Handle("/livez", health.Live(health.All(events, mails)))
	probes.Handle("/readyz", health.Ready(health.All(events, mails), 5*time.Minute))
	server := httptest.NewServer(probes) // an http.Server with Addr ":8080"
	defer server.Close()

	place(ctx, db, log, "4711")
	ended := make(chan error)
	parts := []func(context.Context) error{events.Start, mails.Start, digests.Start}
	for _, start := range parts {
		go func() {
			err := start(ctx)
			stop()
			ended <- err
		}()
	}
	for range parts {
		check(<-ended)
	}
	// Output: a mail for 4711
}

// place appends the event of an order.
func place(ctx context.Context, db *sql.DB, log *storepostgres.Store, order string) {
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	_, err = log.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: order, EventType: "OrderPlaced", EventID: uuid.New(), Payload: []byte(`{}`),
	}})
	check(err)
	check(tx.Commit())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
