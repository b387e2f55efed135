package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

var by = ops.By{Operator: "alice", Reason: "a test"}

func operator(t testing.TB, d *pgtest.Database) *ops.Operator {
	t.Helper()
	o, err := ops.New(d.DB, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// refusing is a ledger that fails at some positions while it is told to.
type refusing struct {
	ledger
	refuses atomic.Bool
	tries   sync.Map // position -> *atomic.Int32
}

var errRefused = errors.New("refused")

func newRefusing(name string, positions ...int64) *refusing {
	r := &refusing{ledger: ledger{name: name}}
	r.refuses.Store(true)
	r.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		n, _ := r.tries.LoadOrStore(e.GlobalPosition, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
		if r.refuses.Load() && slices.Contains(positions, e.GlobalPosition) {
			return errRefused
		}
		return nil
	}
	return r
}

func (r *refusing) tried(position int64) int32 {
	n, ok := r.tries.Load(position)
	if !ok {
		return 0
	}
	return n.(*atomic.Int32).Load()
}

func statusOf(w *worker.Worker, name string) worker.ConsumerStatus {
	for _, c := range w.Status().Consumers {
		if c.Name == name {
			return c
		}
	}
	return worker.ConsumerStatus{}
}

func TestFailPause(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 20)
	c, other := newRefusing("failing", 13), &ledger{name: "other"}
	var paused atomic.Int32
	w := start(t, d.DB, []consumer.Consumer{c, other},
		worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(3),
		worker.WithObserver(worker.Observer{ConsumerPaused: func(worker.ConsumerInfo) { paused.Add(1) }}))
	await(t, "the consumer to be paused", func() bool { return statusOf(w.Worker, "failing").Paused != nil })
	appendN(t, d.DB, "Order", "1", 5)
	awaitHandled(t, d.DB, "other", upTo(25)...)
	awaitHandled(t, d.DB, "failing", upTo(12)...)
	if n := c.tried(13); n != 3 {
		t.Errorf("the failing event was tried %d times, want 3", n)
	}
	s := statusOf(w.Worker, "failing")
	if !strings.Contains(s.Paused.Reason, "position 13") || !strings.Contains(s.Paused.Reason, "refused") || s.Paused.By != "worker "+w.ID().String() {
		t.Errorf("paused: %+v", *s.Paused)
	}
	if paused.Load() != 1 {
		t.Errorf("ConsumerPaused was called %d times", paused.Load())
	}
	o := operator(t, d)
	all, err := o.Operations(t.Context(), "failing", 10)
	if err != nil || len(all) != 1 || all[0].By.Operator != s.Paused.By {
		t.Errorf("operations: %+v, %v", all, err)
	}
	if err := o.Resume(t.Context(), "failing", by); err != nil {
		t.Fatal(err)
	}
	await(t, "the resumed consumer to be paused again", func() bool { return paused.Load() == 2 && statusOf(w.Worker, "failing").Paused != nil })
	if err := o.SkipEvent(t.Context(), "failing", 13, by); err != nil {
		t.Fatal(err)
	}
	if err := o.Resume(t.Context(), "failing", by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "failing", slices.DeleteFunc(upTo(25), func(p int64) bool { return p == 13 })...)
	if s := statusOf(w.Worker, "failing"); s.Paused != nil || s.Failures != 0 || s.LastError != nil {
		t.Errorf("after all that the status is %+v", s)
	}
}

// An operator's pause holds at once, also for another worker, and leaves the
// batch in hand whole.
func TestPauseByAnOperator(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	o := operator(t, d)
	first := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	awaitHandled(t, d.DB, "c", upTo(5)...)
	if err := o.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 5)
	await(t, "the worker to see the pause", func() bool { s := statusOf(first.Worker, "c"); return s.Paused != nil && s.Lag == 5 })
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	second := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	await(t, "the next worker to see the pause", func() bool { s := statusOf(second.Worker, "c"); return s.Paused != nil && s.Lag == 5 })
	if p := statusOf(second.Worker, "c").Paused; p.By != "alice" || p.Reason != "a test" {
		t.Errorf("paused: %+v", p)
	}
	if err := o.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "c", upTo(10)...)
}

func TestFailDeadLetter(t *testing.T) {
	d := newLog(t)
	// Positions 1 to 15, in turn of the aggregates a, b and c.
	for range 5 {
		for _, id := range []string{"a", "b", "c"} {
			appendN(t, d.DB, "Order", id, 1)
		}
	}
	var letters atomic.Int32
	c := newRefusing("failing", 5, 11) // of b
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2),
		worker.WithObserver(worker.Observer{DeadLettered: func(worker.DeadLetter) { letters.Add(1) }}))
	others := []int64{1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15}
	awaitHandled(t, d.DB, "failing", others...)
	await(t, "the checkpoint to reach the head", func() bool { return checkpoint(t, d.DB, "failing") == 15 })
	o := operator(t, d)
	buried := func(want ...int64) {
		t.Helper()
		all, err := o.DeadLetters(t.Context(), "failing")
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, l := range all {
			got = append(got, l.Position)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the dead letters are %v, want %v", got, want)
		}
	}
	buried(5, 8, 11, 14)
	all, _ := o.DeadLetters(t.Context(), "failing")
	if l := all[0]; !strings.Contains(l.Error, "refused") || l.Attempts != 2 || l.AggregateID != "b" {
		t.Errorf("the letter of the event that failed is %+v", l)
	}
	if l := all[1]; l.Error != "" || l.Attempts != 0 {
		t.Errorf("the letter of an event that follows is %+v", l)
	}
	if letters.Load() != 4 || c.tried(5) != 2 || c.tried(8) != 0 {
		t.Errorf("%d letters were reported, 5 was tried %d times, 8 %d times", letters.Load(), c.tried(5), c.tried(8))
	}

	// Tried again while it still fails: it stays, and what follows it too.
	if err := o.RetryDeadLetters(t.Context(), "failing", 5, by); err != nil {
		t.Fatal(err)
	}
	await(t, "the dead letter to be tried again", func() bool {
		all, err := o.DeadLetters(t.Context(), "failing")
		return err == nil && all[0].Attempts == 3 && all[0].RetryAt == nil
	})
	buried(5, 8, 11, 14)

	// Discarded: the rest still follows nobody but is to be tried.
	if err := o.DiscardDeadLetter(t.Context(), "failing", 5, by); err != nil {
		t.Fatal(err)
	}
	buried(8, 11, 14)
	c.refuses.Store(false)
	appendN(t, d.DB, "Order", "b", 1) // 16
	await(t, "the next event of the aggregate to follow", func() bool { return checkpoint(t, d.DB, "failing") == 16 })
	buried(8, 11, 14, 16)
	if err := o.RetryDeadLetters(t.Context(), "failing", 8, by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "failing", append(slices.Clone(others), 8, 11, 14, 16)...)
	buried()
	appendN(t, d.DB, "Order", "b", 1)
	awaitHandled(t, d.DB, "failing", append(slices.Clone(others), 8, 11, 14, 16, 17)...)
	if s := statusOf(w.Worker, "failing"); s.DeadLetters != 0 || s.Failures != 0 {
		t.Errorf("after all that the status is %+v", s)
	}
}

// bulkLedger writes a batch in one statement.
type bulkLedger struct {
	name  string
	fails func(events []store.PersistedEvent) error
	sizes chan int
}

func (b *bulkLedger) Name() string { return b.name }

func (b *bulkLedger) Handle(context.Context, *sql.Tx, store.PersistedEvent) error {
	return errors.New("Handle was called in place of HandleBatch")
}

func (b *bulkLedger) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if b.fails != nil {
		if err := b.fails(events); err != nil {
			return err
		}
	}
	var list strings.Builder
	for i, e := range events {
		fmt.Fprintf(&list, "%s(%d)", map[bool]string{true: ",", false: ""}[i > 0], e.GlobalPosition)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) SELECT $1, p FROM (VALUES `+list.String()+`) AS v(p)`, b.name)
	if b.sizes != nil {
		b.sizes <- len(events)
	}
	return err
}

func TestBatchConsumer(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 250)
	b := &bulkLedger{name: "bulk", sizes: make(chan int, 100)}
	start(t, d.DB, []consumer.Consumer{b})
	awaitHandled(t, d.DB, "bulk", upTo(250)...)
	if first := <-b.sizes; first != 100 {
		t.Errorf("the first batch had %d events", first)
	}
}

// The event that fails is found in a batch, named or not, and goes alone.
func TestBatchConsumerThatFails(t *testing.T) {
	for name, fail := range map[string]func(events []store.PersistedEvent, at int) error{
		"names it":         func(_ []store.PersistedEvent, at int) error { return &consumer.EventError{Index: at, Err: errRefused} },
		"does not name it": func([]store.PersistedEvent, int) error { return errRefused },
		"names what is not": func(e []store.PersistedEvent, _ int) error {
			return &consumer.EventError{Index: len(e), Err: errRefused}
		},
		"panics": func([]store.PersistedEvent, int) error { panic(errRefused) },
		"names it, in words": func(_ []store.PersistedEvent, at int) error {
			return fmt.Errorf("projection: %w", &consumer.EventError{Index: at, Err: errRefused})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			for i := range 100 {
				appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
			}
			b := &bulkLedger{name: "bulk", fails: func(events []store.PersistedEvent) error {
				if at := slices.IndexFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == 37 }); at >= 0 {
					return fail(events, at)
				}
				return nil
			}}
			start(t, d.DB, []consumer.Consumer{b}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2))
			awaitHandled(t, d.DB, "bulk", slices.DeleteFunc(upTo(100), func(p int64) bool { return p == 37 })...)
			letters, err := operator(t, d).DeadLetters(t.Context(), "bulk")
			if err != nil || len(letters) != 1 || letters[0].Position != 37 || !strings.Contains(letters[0].Error, "refused") {
				t.Errorf("the dead letters are %+v, %v", letters, err)
			}
		})
	}
}

func TestBatchMiddleware(t *testing.T) {
	type spanKey struct{}
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	var outcomes []error
	var mu sync.Mutex
	c := newRefusing("c", 2)
	c.before = func(inner func(context.Context, *sql.Tx, store.PersistedEvent) error) func(context.Context, *sql.Tx, store.PersistedEvent) error {
		return func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if ctx.Value(spanKey{}) != "c" {
				return errors.New("the middleware's context did not arrive")
			}
			err := inner(ctx, tx, e)
			c.refuses.Store(false) // once is enough
			return err
		}
	}(c.before)
	start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		return func(ctx context.Context, b worker.Batch) error {
			err := next(context.WithValue(ctx, spanKey{}, b.Consumer), b)
			mu.Lock()
			outcomes = append(outcomes, err)
			mu.Unlock()
			return errors.New("what the middleware says changes nothing")
		}
	}))
	awaitHandled(t, d.DB, "c", upTo(3)...)
	mu.Lock()
	defer mu.Unlock()
	if len(outcomes) == 0 {
		t.Error("the middleware was not called")
	}
	for _, err := range outcomes {
		if err != nil && !errors.Is(err, errRefused) {
			t.Errorf("next said %v", err)
		}
	}
}

func TestBatchMiddlewareThatDoesNothing(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithMaxConsecutiveFailures(1),
		worker.WithBatchMiddleware(func(worker.BatchFunc) worker.BatchFunc {
			return func(context.Context, worker.Batch) error { return nil }
		}))
	if err := w.result(t); !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), "did not call") || strings.Contains(err.Error(), "%!") {
		t.Fatalf("Start returned %v", err)
	}
	if got := handled(t, d.DB, "c"); len(got) != 0 || checkpoint(t, d.DB, "c") != 0 {
		t.Errorf("handled %v", got)
	}
}

// A consumer whose batches fail through no fault of its handler ends its worker
// after RetryLimit, though the heartbeats arrive.
func TestOutageOfOneConsumer(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	c := &ledger{name: "cut off", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	}}
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithRetryLimit(300*time.Millisecond))
	if err := w.result(t); !errors.Is(err, worker.ErrOutage) || !strings.Contains(err.Error(), `"cut off"`) {
		t.Errorf("the worker ended with %v", err)
	}
}

// Without a limit a worker outlasts its server's absence; with one it ends.
func TestOutage(t *testing.T) {
	s := pgtest.OwnServer(t, nil)
	db, err := sql.Open("pgx", s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := migrations.Apply(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "Order", "1", 5)
	patient := start(t, db, []consumer.Consumer{&ledger{name: "patient"}})
	impatient := start(t, db, []consumer.Consumer{&ledger{name: "impatient"}}, worker.WithRetryLimit(300*time.Millisecond))
	awaitHandled(t, db, "patient", upTo(5)...)
	awaitHandled(t, db, "impatient", upTo(5)...)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := impatient.result(t); !errors.Is(err, worker.ErrOutage) || !strings.Contains(err.Error(), "WithRetryLimit") {
		t.Errorf("the impatient worker ended with %v", err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the server to take an append", func() bool { return db.PingContext(t.Context()) == nil })
	appendN(t, db, "Order", "1", 5) // after a crash, not from position 6 on
	head := latestPosition(t, db)
	awaitHandled(t, db, "patient", append(upTo(5), head-4, head-3, head-2, head-1, head)...)
	patient.Stop()
	if err := patient.result(t); err != nil {
		t.Error(err)
	}
}
