package consume

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// A crash loses a batch that was committed asynchronously, and a reset counts the revision
// up to the same value. A loop that has noticed neither knows the current row's revision
// and place, but not its position. It must not continue from its own position under the new
// incarnation's token.
func TestProgressReloadsAfterCrash(t *testing.T) {
	t.Parallel()
	server := newSteppedServer(t)
	events, err := sql.Open("pgx", server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	batches, err := sql.Open("pgx", server.URL("")+"&synchronous_commit=off")
	if err != nil {
		t.Fatal(err)
	}
	defer batches.Close()
	batches.SetMaxIdleConns(0) // so that no broken connection reveals the crash
	events.SetMaxIdleConns(0)

	c := steppedConsumer{"all", nil, new(atomic.Bool)}
	h := newStepper(t, batches, storepostgres.NewStore(nil), c)
	appendOne(t, events, "1")
	appendOne(t, events, "1") // commits synchronously, which also makes all earlier commits durable
	h.stepFrontierTo(t, 2)
	h.handle(t)
	before := *h.loop.progress
	h.frontier.Close()

	if err := server.crash(); err != nil {
		t.Fatal(err)
	}
	stored := func() *progress.State {
		p, err := h.checkpoints.Load(t.Context(), events, "all")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := stored(); p.Position != 0 || p.Revision >= before.Revision {
		t.Fatalf("the crash lost nothing: the progress is %+v, it was %+v", p, before)
	}
	// The lost row may have reached the disk without its commit. The new one takes its place.
	if _, err := events.ExecContext(t.Context(), `VACUUM consumer_checkpoints`); err != nil {
		t.Fatal(err)
	}
	for stored().Revision < before.Revision {
		if _, err := events.ExecContext(t.Context(), `UPDATE consumer_checkpoints SET last_position = 0, revision = revision + 1`); err != nil {
			t.Fatal(err)
		}
	}
	appendOne(t, events, "1")
	h.own(t)
	h.open(t)
	h.stepFrontier(t, "the events in another life", func(v *frontier.Value) bool { return v.Token != before.Token && v.Safe >= 3 })
	if p, now := h.loop.progress, stored(); p == nil || p.Revision != now.Revision || p.Row != now.Row || p.Position == now.Position {
		t.Fatalf("the loop knows %+v, which differs from the current progress %+v", p, stored())
	}
	h.handle(t)
	var handled int
	if err := events.QueryRowContext(t.Context(), `SELECT count(*) FROM ledger`).Scan(&handled); err != nil || handled != 3 {
		t.Fatalf("%d events handled, want 3; %v", handled, err)
	}
}

// A lost first checkpoint would never be written again. So it survives a crash even if
// commits are asynchronous.
func TestFirstCheckpointSurvivesCrash(t *testing.T) {
	t.Parallel()
	server := newSteppedServer(t)
	db, err := sql.Open("pgx", server.URL("")+"&synchronous_commit=off")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxIdleConns(0)
	h := newStepper(t, db, storepostgres.NewStore(nil), steppedConsumer{"all", nil, new(atomic.Bool)})
	h.frontier.Close()
	if err := server.crash(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.checkpoints.Load(t.Context(), db, "all"); err != nil {
		t.Fatal(err)
	}
}

// A consumer begins at a head that was read in the current incarnation. After a crash,
// positions up to an earlier incarnation's head may be issued again.
func TestPlaceRejectsHeadOfAnotherIncarnation(t *testing.T) {
	d := pgtest.New(t)
	if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	w := newWorker(d.DB, storepostgres.NewStore(nil), []consumer.Consumer{headConsumer{steppedConsumer{"new", nil, new(atomic.Bool)}}})
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.placer.first(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.frontier.Close()
	for w.frontier.Value().Token == "" {
		if err := w.frontier.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	if err := w.placer.settled(t.Context(), w.units); err == nil {
		t.Fatal("placed under the token of an earlier life")
	}
	if _, err := w.checkpoints.Load(t.Context(), d.DB, "new"); err == nil {
		t.Fatal("there is a checkpoint")
	}
}

type headConsumer struct{ steppedConsumer }

func (headConsumer) StartAt() consumer.Start { return consumer.AtHead() }

// The consumer's position counts only on the server where the worker works. An abandoned
// primary may be ahead of the promoted one.
func TestWaitForIgnoresAnotherServer(t *testing.T) {
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.handle(t)
	if a, err := h.arrivals.read(t.Context(), "all", 1); err != nil || !a.Handled {
		t.Errorf("where the worker works: %+v, %v", a, err)
	}
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	if a, err := h.arrivals.read(t.Context(), "all", 1); !errors.Is(err, store.ErrIncarnation) {
		t.Errorf("on another server: %+v, %v", a, err)
	}
}
