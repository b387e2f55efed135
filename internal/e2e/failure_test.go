package e2e

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

var by = ops.By{Operator: "alice", Reason: "a test"}

func operator(t testing.TB, d *pgtest.Database) *ops.Operator {
	t.Helper()
	o, err := ops.New(d.DB)
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

func statusOf(w *worker.Worker, name string) observe.ConsumerStatus {
	for _, c := range w.Status().Consumers {
		if c.Name == name {
			return c
		}
	}
	return observe.ConsumerStatus{}
}

func TestFailPause(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 20)
	c, other := newRefusing("failing", 13), &ledger{name: "other"}
	var paused atomic.Int32
	w := start(t, d.DB, []consumer.Consumer{c, other},
		worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(3),
		worker.WithObserver(observe.On(func(observe.ConsumerPaused) { paused.Add(1) })))
	await(t, "the consumer to be paused", func() bool { return statusOf(w.Worker, "failing").Paused != nil })
	appendN(t, d.DB, "Order", "1", 5)
	awaitHandled(t, d.DB, "other", upTo(25)...)
	awaitHandled(t, d.DB, "failing", upTo(12)...)
	if n := c.tried(13); n != 3 {
		t.Errorf("the failing event was tried %d times, want 3", n)
	}
	s := statusOf(w.Worker, "failing")
	if s.Stuck != 13 || !strings.Contains(s.Paused.Reason, "position 13") || !strings.Contains(s.Paused.Reason, "refused") || s.Paused.By != "worker "+w.ID().String() {
		t.Errorf("paused: %+v", *s.Paused)
	}
	if paused.Load() != 1 {
		t.Errorf("ConsumerPaused was called %d times", paused.Load())
	}
	o := operator(t, d)
	all, err := o.Operations(t.Context(), ops.OperationFilter{Consumer: "failing"}, 10)
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
	await(t, "the status to say that it is over", func() bool { // which it does after the COMMIT
		s := statusOf(w.Worker, "failing")
		return s.Paused == nil && s.Failures == 0 && s.LastError == nil
	})
}

// A pause whose answer was lost is a pause: it is told of, and the consumer
// starts afresh when somebody resumes it.
func TestFailPauseOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)
	c := newRefusing("failing", 2)
	cut := cutter{statement: "SET paused_at = clock_timestamp()"}
	cut.after.Store(1)
	var paused atomic.Int32
	w := start(t, cut.open(t, d), []consumer.Consumer{c},
		worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(3),
		worker.WithObserver(observe.On(func(observe.ConsumerPaused) { paused.Add(1) })))
	for n := int32(1); n <= 2; n++ {
		await(t, "the consumer to be paused", func() bool { return paused.Load() == n && statusOf(w.Worker, "failing").Paused != nil })
		if tried := c.tried(2); tried != 3*n {
			t.Errorf("at pause %d the failing event was tried %d times, want %d", n, tried, 3*n)
		}
		if err := operator(t, d).Resume(t.Context(), "failing", by); err != nil {
			t.Fatal(err)
		}
	}
	if cut.after.Load() > 0 {
		t.Error("no pause was cut")
	}
}

// Conflicts are told of, each with its pause. Those that the same batch meets
// again and again come from its handler.
func TestConflictsOfAHandler(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"40001", "40P01"} {
		t.Run(state, func(t *testing.T) {
			d := newLog(t)
			for _, id := range []string{"a", "b", "c"} {
				appendN(t, d.DB, "Order", id, 1)
			}
			c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition != 2 {
					return nil
				}
				_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'sacrificed' USING ERRCODE = '`+state+`'; END $$`)
				return err
			}}
			var r retries
			start(t, d.DB, []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(3), r.observe())
			awaitHandled(t, d.DB, "c", 1, 3)
			told := r.told()
			if len(told) != 7 {
				t.Fatalf("told of %d retries, want 5 conflicts and 2 failures: %+v", len(told), told)
			}
			for i, about := range told {
				if about.ByHandler != (i >= 5) || about.InARow != i%5+1 || about.Pause <= 0 && i != 5 {
					t.Errorf("retry %d: %+v", i+1, about)
				}
			}
			if letters, err := operator(t, d).DeadLetters(t.Context(), "c"); err != nil || len(letters) != 1 || letters[0].Position != 2 {
				t.Errorf("the dead letters are %+v, %v", letters, err)
			}
		})
	}
}

// An operator's pause holds at once, also for another worker, and leaves the
// batch in flight whole.
func TestPauseByAnOperator(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	o := operator(t, d)
	first := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	awaitHandled(t, d.DB, "c", upTo(5)...)
	if err := o.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 5)
	await(t, "the worker to see the pause", func() bool { s := statusOf(first.Worker, "c"); return s.Paused != nil && lags(s.Lag, 5) })
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	second := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	await(t, "the next worker to see the pause", func() bool { s := statusOf(second.Worker, "c"); return s.Paused != nil && lags(s.Lag, 5) })
	if p := statusOf(second.Worker, "c").Paused; p.By != "alice" || p.Reason != "a test" {
		t.Errorf("paused: %+v", p)
	}
	if err := o.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "c", upTo(10)...)
}

func TestFailDeadLetter(t *testing.T) {
	t.Parallel()
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
		worker.WithObserver(observe.On(func(observe.DeadLettered) { letters.Add(1) })))
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
	await(t, "the status to count the aggregate", func() bool { return statusOf(w.Worker, "failing").DeadLetters == 1 })
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

	// Tried again while it still fails, each time that somebody asks for it: it
	// stays, and what follows it too.
	for n := 3; n <= 4; n++ {
		if err := o.RetryDeadLetters(t.Context(), "failing", 5, by); err != nil {
			t.Fatal(err)
		}
		await(t, "the dead letter to be tried again", func() bool {
			all, err := o.DeadLetters(t.Context(), "failing")
			return err == nil && all[0].Attempts == n && all[0].RetryAt == nil
		})
		if tried := c.tried(5); tried != int32(n) {
			t.Errorf("the dead letter was tried %d times, want %d", tried, n)
		}
	}
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
	if !pgtest.Poll(func() bool { return statusOf(w.Worker, "failing").Failures == 0 }) || statusOf(w.Worker, "failing").DeadLetters != 0 {
		s := statusOf(w.Worker, "failing")
		t.Errorf("after all that the status is %+v", s)
	}
}

// Start returns ErrPoolClosed after the program has closed db. The batch in flight finishes.
func TestPoolClosedUnderTheWorker(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	db := d.OpenSet(t, "application_name", "closed")
	begun, goOn := make(chan struct{}), make(chan struct{})
	c := &ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		close(begun)
		<-goOn
		return nil
	}}
	w := start(t, db, []consumer.Consumer{c})
	<-begun
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the worker to drain", func() bool { return w.Status().State == observe.StateDraining })
	close(goOn)
	if err := w.result(t); !errors.Is(err, worker.ErrPoolClosed) {
		t.Errorf("Start returned %v", err)
	}
	if err := w.Live(); err == nil {
		t.Error("the worker is said to live")
	}
	awaitHandled(t, d.DB, "c", 1)
}

// What ends a batch comes with the error that the handler returned.
func TestBatchTimeoutKeepsTheHandlersError(t *testing.T) {
	t.Parallel()
	boom := errors.New("the ship has sailed")
	for name, handle := range map[string]func(ctx context.Context, w *worker.Worker, e store.PersistedEvent) error{
		"its own": func(ctx context.Context, _ *worker.Worker, _ store.PersistedEvent) error {
			<-ctx.Done()
			return boom
		},
		"of WaitFor": func(ctx context.Context, w *worker.Worker, e store.PersistedEvent) error {
			return errors.Join(w.WaitFor(ctx, "c", e.GlobalPosition), boom)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			await(t, "a batch in which WaitFor has looked, if it is to", func() bool {
				self := make(chan *worker.Worker, 2)
				c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
					w := <-self
					self <- w
					return handle(ctx, w, e)
				}}
				w := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1), worker.WithBatchTimeout(300*time.Millisecond))
				self <- w.Worker
				err := w.result(t)
				if !errors.Is(err, boom) || !strings.Contains(err.Error(), "longer than BatchTimeout") {
					t.Fatalf("Start returned %v", err)
				}
				return name != "of WaitFor" || strings.Contains(err.Error(), "it is at position 0")
			})
		})
	}
}

// A worker that ends at an event leaves the checkpoint just before the event, whosever the
// events before are: SkipEvent takes the event that it names.
func TestFailStopAtTheOnlyEventOfItsType(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Invoice", "1", 3)
	appendN(t, d.DB, "Order", "1", 1)
	consumers := func(bad ...int64) []consumer.Consumer {
		c := newRefusing("failing", bad...)
		return []consumer.Consumer{&scopedLedger{ledger{name: "failing", types: []string{"Order"}, before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			return c.before(ctx, tx, e)
		}}}}
	}
	w := start(t, d.DB, consumers(4), worker.WithMaxConsecutiveFailures(2))
	err := w.result(t)
	var ce *worker.ConsumerError
	if !errors.Is(err, worker.ErrConsecutiveFailures) || !errors.As(err, &ce) || ce.Position != 4 || ce.Failures != 2 {
		t.Fatalf("Start returned %v", err)
	}
	if s := statusOf(w.Worker, "failing"); s.LastError == nil {
		t.Error("the status forgets why the worker has ended")
	}
	if err := operator(t, d).SkipEvent(t.Context(), "failing", ce.Position, by); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 1)
	start(t, d.DB, consumers())
	awaitHandled(t, d.DB, "failing", 5)
}
