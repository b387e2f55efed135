package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// mailer enqueues two jobs for each event. The first job may be refused.
type mailer struct {
	client  *jobs.Client
	refused bool
}

func (mailer) Name() string { return "mailer" }

func (m mailer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	for n := range 2 {
		if n == 0 && m.refused {
			if _, err := m.client.EnqueueFor(ctx, tx, e, ofJSON(`"\u0000"`)); !errors.Is(err, jobs.ErrInvalid) {
				return fmt.Errorf("enqueued with a NUL: %w", err)
			}
			continue
		}
		if _, err := m.client.EnqueueFor(ctx, tx, e, task{n}); err != nil {
			return err
		}
	}
	return nil
}

// A consumer enqueues each job of an event once. This holds if the consumer is reset and handles
// the event again, and after keys of settled events were removed.
func TestEnqueueFor(t *testing.T) {
	t.Parallel()
	e := newEmitting(t)
	e.append(10)
	e.catchUp(false)
	if n := e.count(`SELECT count(*) FROM jobs`); n != 20 {
		t.Fatalf("%d jobs for ten events", n)
	}
	s := &stage{Client: jobs.NewClient(e.d.DB), Handlers: jobs.NewHandlers(), t: t, d: e.d}
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.run()
	s.until("the notes of settled events to be removed", func() bool { return e.count(`SELECT count(*) FROM jobs_emitted`) == 0 })
	e.reset()
	e.append(1)
	e.catchUp(false)
	s.until("all jobs to end", func() bool { return e.count(`SELECT count(*) FROM jobs`) == 0 })
	if n := e.count(`SELECT count(*) FROM jobs_history`); n != 22 {
		t.Errorf("%d jobs for eleven events, after a reset", n)
	}
}

// Keys of a consumer without a checkpoint stay, and a worker reports them once.
func TestKeysOfAnUnknownEmitterAreReported(t *testing.T) {
	t.Parallel()
	e := newEmitting(t)
	e.append(3)
	e.catchUp(false)
	e.d.Exec(t, `CREATE TABLE my_checkpoints (LIKE consumer_checkpoints INCLUDING ALL)`)
	e.d.Exec(t, `CREATE TABLE my_gap_skips (LIKE consumer_gap_skips INCLUDING ALL)`)
	s := &stage{Client: jobs.NewClient(e.d.DB), Handlers: jobs.NewHandlers(), t: t, d: e.d}
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	for _, names := range [][2]string{{"my_checkpoints", "my_gap_skips"}, {"no_checkpoints", "no_gap_skips"}} {
		reported := make(chan observe.TaskFailed, 100)
		_, stop := s.runOn(e.d.DB, jobs.WithNames(store.Names{ConsumerCheckpoints: names[0], ConsumerGapSkips: names[1]}), jobs.WithObserver(observe.On(func(f observe.TaskFailed) { reported <- f })))
		if f := <-reported; !strings.Contains(f.Err.Error(), `consumer "mailer" in public.jobs_emitted`) || !strings.Contains(f.Err.Error(), names[0]) {
			t.Errorf("reported: %+v", f)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(reported) > 0 {
			t.Errorf("reported again: %+v", <-reported)
		}
	}
	if n := e.count(`SELECT count(*) FROM jobs_emitted`); n != 6 {
		t.Errorf("%d notes of three events", n)
	}
	_, stop := s.runOn(e.d.DB, jobs.WithObserver(observe.On(func(f observe.TaskFailed) { t.Error(f) })))
	s.until("the notes to be removed", func() bool { return e.count(`SELECT count(*) FROM jobs_emitted`) == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A refused call counts. After the call is mended and the consumer reset, its job is enqueued. The
// job of the next call is not enqueued again.
func TestEnqueueForOfARefusedCall(t *testing.T) {
	e := newEmitting(t)
	e.append(3)
	e.catchUp(true)
	e.reset()
	e.catchUp(false)
	for n := range 2 {
		if got := e.count(`SELECT count(*) FROM jobs WHERE args->>'N' = $1::text`, fmt.Sprint(n)); got != 3 {
			t.Errorf("%d jobs of call %d, for three events", got, n)
		}
	}
}

// emitting is a log, and a consumer that enqueues.
type emitting struct {
	t      *testing.T
	d      *pgtest.Database
	events *postgres.Store
}

func newEmitting(t *testing.T) emitting {
	t.Helper()
	e := emitting{t, pgtest.New(t), postgres.NewStore(postgres.DefaultStoreConfig())}
	if err := migrations.ApplyJobs(t.Context(), e.d.DB, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e emitting) append(n int) {
	e.t.Helper()
	for range n {
		tx, err := e.d.DB.BeginTx(e.t.Context(), nil)
		if err != nil {
			e.t.Fatal(err)
		}
		if _, err := e.events.Append(e.t.Context(), tx, store.Any(), []store.Event{{AggregateType: "A", AggregateID: uuid.NewString(), EventID: uuid.New(), EventType: "E", Payload: []byte(`{}`)}}); err != nil {
			e.t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			e.t.Fatal(err)
		}
	}
}

func (e emitting) catchUp(refused bool) {
	e.t.Helper()
	m := mailer{jobs.NewClient(e.d.DB), refused}
	if err := workertest.CatchUp(e.t.Context(), e.d.DB, e.events, []consumer.Consumer{m}, worker.WithBatchSize(3)); err != nil {
		e.t.Fatal(err)
	}
}

func (e emitting) reset() {
	e.t.Helper()
	o, err := ops.New(e.d.DB)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := o.Reset(e.t.Context(), "mailer", 0, ops.By{Operator: "somebody", Reason: "a test"}); err != nil {
		e.t.Fatal(err)
	}
}

func (e emitting) count(query string, args ...any) (n int) {
	e.t.Helper()
	if err := e.d.DB.QueryRowContext(e.t.Context(), query, args...).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}
