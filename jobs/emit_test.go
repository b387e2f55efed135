package jobs_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// mailer enqueues two jobs for each event.
type mailer struct{ client *jobs.Client }

func (mailer) Name() string { return "mailer" }

func (m mailer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	for n := range 2 {
		if _, err := m.client.EnqueueFor(ctx, tx, e, task{n}); err != nil {
			return err
		}
	}
	return nil
}

// For an event a consumer enqueues each job once, also when it is reset and
// handles the event again, and after the notes of settled events were removed.
func TestEnqueueFor(t *testing.T) {
	d := pgtest.New(t)
	ctx := t.Context()
	if err := migrations.ApplyJobs(ctx, d.DB, nil); err != nil {
		t.Fatal(err)
	}
	events := postgres.NewStore(postgres.DefaultStoreConfig())
	appendOne := func(n int) {
		t.Helper()
		tx, err := d.DB.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := events.Append(ctx, tx, store.Any(), []store.Event{{AggregateType: "A", AggregateID: fmt.Sprint(n), EventID: uuid.New(), EventType: "E", Payload: []byte(`{}`)}}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := d.DB.QueryRowContext(ctx, query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	catchUp := func() {
		t.Helper()
		if err := workertest.CatchUp(ctx, d.DB, events, []consumer.Consumer{mailer{jobs.NewClient(d.DB)}}, worker.WithBatchSize(3)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10 {
		appendOne(n)
	}
	catchUp()
	if n := count(`SELECT count(*) FROM jobs`); n != 20 {
		t.Fatalf("%d jobs for ten events", n)
	}
	s := &stage{Client: jobs.NewClient(d.DB), Handlers: jobs.NewHandlers(), t: t, d: d}
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.run()
	s.until("the notes of settled events to be removed", func() bool { return count(`SELECT count(*) FROM jobs_emitted`) == 0 })
	o, err := ops.New(d.DB, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Reset(ctx, "mailer", 0, ops.By{Operator: "somebody", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	appendOne(10)
	catchUp()
	s.until("all jobs to end", func() bool { return count(`SELECT count(*) FROM jobs`) == 0 })
	if n := count(`SELECT count(*) FROM jobs_history`); n != 22 {
		t.Errorf("%d jobs for eleven events, after a reset", n)
	}
}
