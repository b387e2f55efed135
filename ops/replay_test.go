package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// forgetter is a ledger that forgets aggregates, and records each Forget.
type forgetter struct {
	ledger
	forgets func() error
}

func (f *forgetter) Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error {
	if of, ok := consumer.Info(ctx); !ok || !of.Late {
		return fmt.Errorf("the delivery is %+v", of)
	}
	if f.forgets != nil {
		if err := f.forgets(); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position, replay) SELECT $1::text, -1, (SELECT count(*) > 0 FROM ledger WHERE position = -1)`, aggregateType+" "+aggregateID)
	return err
}

// delivered returns the ledger in order: -1 is a Forget, and r marks a replayed event.
func (s site) delivered(t testing.TB) (all string) {
	s.scan(t, `SELECT coalesce(string_agg(position || CASE WHEN replay AND position > 0 THEN 'r' ELSE '' END, ' ' ORDER BY id), '') FROM ledger`, &all)
	return all
}

func (s site) awaitDelivered(t testing.TB, want string) {
	t.Helper()
	await(t, want, func() bool { return len(s.delivered(t)) >= len(want) })
	if got := s.delivered(t); got != want {
		t.Fatalf("delivered %q, want %q", got, want)
	}
}

func (s site) awaitNoDeadLetters(t testing.TB) {
	t.Helper()
	await(t, "no letter to be left", func() bool { return s.count(t, `SELECT count(*) FROM consumer_dead_letters`) == 0 })
}

// After Forget, all events of the aggregate are delivered again, and no others.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.append(t, "b", 2)
	s.append(t, "a", 1)
	s.work(t, &forgetter{})
	s.awaitDelivered(t, "1 2 3 4 5 6")
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.awaitDelivered(t, "1 2 3 4 5 6 -1 1r 2r 3r 6r")
	s.awaitNoDeadLetters(t)
	var d struct {
		AggregateType string `json:"aggregate_type"`
		AggregateID   string `json:"aggregate_id"`
		To, Events    int64
	}
	if op := s.last(t, &d); op.Kind != ops.KindReplay || d.AggregateType != "Order" || d.AggregateID != "a" || d.To != 6 || d.Events != 4 {
		t.Errorf("recorded %+v", op)
	}
	s.append(t, "a", 1)
	s.awaitDelivered(t, "1 2 3 4 5 6 -1 1r 2r 3r 6r 7")
}

// New events of the aggregate wait behind the replayed ones, and are not marked as replayed.
// None counts as a dead letter.
func TestReplayKeepsOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	var reported atomic.Int32
	var w *worker.Worker
	var replays atomic.Bool
	var once sync.Once // a batch may be repeated
	l := &forgetter{}
	l.before = func(e store.PersistedEvent) error {
		switch {
		case replays.Load() && e.GlobalPosition == 1:
			once.Do(func() {
				s.append(t, "a", 1)
				s.append(t, "b", 1)
			})
		case replays.Load() && e.GlobalPosition == 2: // the new events are next
			await(t, "the new events to be safe", func() bool { return w.Status().Safe >= 5 })
		case replays.Load() && e.GlobalPosition == 3:
			all, err := s.DeadLetters(t.Context(), "c")
			if err != nil || len(all) != 2 || !all[0].Replay || all[1].Position != 4 || !all[1].Replay || all[1].RetryAt == nil {
				t.Errorf("the letters are %+v, %v", all, err)
			}
			if c, err := s.Consumers(t.Context()); err != nil || c[0].DeadLetters != 0 {
				t.Errorf("%+v, %v", c, err)
			}
			if status := w.Status().Consumers[0]; status.DeadLetters != 0 || status.LastError != nil {
				t.Errorf("the status is %+v", status)
			}
			limit := 50 * time.Millisecond
			await(t, "WaitFor to look, and to go on waiting", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				limit *= 2 // until it suffices for a read
				err := w.WaitFor(ctx, "c", 3)
				if err == nil || errors.Is(err, worker.ErrDeadLettered) {
					t.Errorf("WaitFor: %v", err)
					return true
				}
				return strings.Contains(err.Error(), "the event's aggregate is replayed")
			})
		}
		return nil
	}
	s.workWith(t, l, func(made *worker.Worker) { w = made }, worker.WithObserver(observe.On(func(observe.DeadLettered) { reported.Add(1) })))
	s.awaitDelivered(t, "1 2 3")
	replays.Store(true)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.awaitNoDeadLetters(t)
	await(t, "6 events", func() bool { return strings.Contains(s.delivered(t), " 5") })
	if got := strings.Replace(s.delivered(t), " 5", "", 1); got != "1 2 3 -1 1r 2r 3r 4" {
		t.Errorf("delivered %s", got)
	}
	if n := reported.Load(); n != 0 {
		t.Errorf("%d dead letters were told", n)
	}
}

// DiscardDeadLettersWhere does not discard events that wait for a replay.
func TestDiscardDeadLettersWhereKeepsReplayedEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	if n, err := s.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{AggregateType: "Order"}, 10, by); !errors.Is(err, ops.ErrNoDeadLetter) {
		t.Errorf("discarded %d, %v", n, err)
	}
	if all, err := s.FilterDeadLetters(t.Context(), "c", ops.DeadLetterFilter{}, false, 10); err != nil || len(all) != 3 || !all[0].Replay {
		t.Errorf("listed %+v, %v", all, err)
	}
}

// A replayed event that fails becomes a dead letter, with the events behind it. A retry
// continues there.
func TestFailingReplayIsDeadLetter(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int64{"at the first": 1, "later": 2, "in Forget": -1} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 3)
			var fails atomic.Bool
			refuse := func(p int64) error {
				if fails.Load() && p == at {
					return errors.New("refused")
				}
				return nil
			}
			l := &forgetter{forgets: func() error { return refuse(-1) }}
			l.before = func(e store.PersistedEvent) error { return refuse(e.GlobalPosition) }
			s.work(t, l, worker.WithMaxConsecutiveFailures(2), worker.WithFailurePolicy(worker.FailDeadLetter))
			s.awaitDelivered(t, "1 2 3")
			fails.Store(true)
			if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
				t.Fatal(err)
			}
			var all []ops.DeadLetter
			await(t, "a dead letter", func() bool {
				all, _ = s.DeadLetters(t.Context(), "c")
				return len(all) > 0 && all[0].Error != ""
			})
			for _, l := range all {
				if l.Replay || l.RetryAt != nil {
					t.Errorf("there is %+v", l)
				}
			}
			if c, err := s.Consumers(t.Context()); err != nil || c[0].DeadLetters != int64(len(all)) {
				t.Errorf("%+v, %v", c, err)
			}
			fails.Store(false)
			if err := s.RetryDeadLetters(t.Context(), "c", all[0].Position, by); err != nil {
				t.Fatal(err)
			}
			s.awaitDelivered(t, "1 2 3 -1 1r 2r 3r")
			s.awaitNoDeadLetters(t)
		})
	}
}

// Forget is called before a dead letter that is the aggregate's first event. It is also called
// before a replay that is repeated in the middle.
func TestReplayForgetsBeforeDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 'refused', 1 FROM events WHERE global_position = 1`)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	stop := s.work(t, &forgetter{})
	s.awaitDelivered(t, "-1 1 2r 3r")
	s.awaitNoDeadLetters(t)
	stop()
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position = 1`)
	s.Exec(t, `UPDATE consumer_dead_letters SET forget = false`) // as after the first event
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.work(t, &forgetter{})
	s.awaitDelivered(t, "-1 1 2r 3r -1 1r 2r 3r")
	s.awaitNoDeadLetters(t)
}

// Replay omits events above the checkpoint. It includes events that were delivered late, and
// events that another consumer has in doubt or as dead letters.
func TestReplayEndsAtTheCheckpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 2)
	s.open(t, 1, 2)
	s.deadLetter(t, 1, "a", 1)
	s.Exec(t, `UPDATE consumer_gap_skips SET consumer_name = 'd'`)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'd'`)
	s.open(t, 1, 1) // was delivered late
	s.Exec(t, `UPDATE consumer_gap_skips SET state = 'late', closed_at = now() WHERE consumer_name = 'c'`)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	if all, err := s.DeadLetters(t.Context(), "c"); err != nil || len(all) != 2 || all[1].Position != 2 {
		t.Errorf("the letters are %+v, %v", all, err)
	}
	s.work(t, &forgetter{})
	s.awaitDelivered(t, "-1 1r 2r 3")
}

// An event that an operator skips or discards is later delivered without Replay.
func TestSkippedEventIsNotMarkedReplay(t *testing.T) {
	t.Parallel()
	for name, leaveOut := range map[string]func(t *testing.T, s site) error{
		"discarded": func(t *testing.T, s site) error {
			s.deadLetter(t, 2, "a", 1)
			return s.DiscardDeadLetter(t.Context(), "c", 2, by)
		},
		"discarded by a filter": func(t *testing.T, s site) error {
			s.deadLetter(t, 2, "a", 1)
			_, err := s.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{}, 10, by)
			return err
		},
		"skipped late": func(t *testing.T, s site) error {
			s.open(t, 2, 2)
			return s.SkipEvent(t.Context(), "c", 2, by)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 3)
			s.place(t, 3)
			if err := leaveOut(t, s); err != nil {
				t.Fatal(err)
			}
			if err := s.Reset(t.Context(), "c", 0, by); err != nil {
				t.Fatal(err)
			}
			s.work(t, &ledger{})
			s.awaitDelivered(t, "1r 2 3r")
		})
	}
}

// A Forget that commits stops the worker. All dead letters are restored, also those whose mark
// was removed. The next attempt calls Forget first, and then handles all events.
func TestForgetThatCommits(t *testing.T) {
	t.Parallel()
	for name, discard := range map[string]bool{"then it is tried again": false, "then the first is discarded": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 4)
			c := &committer{}
			stop := s.work(t, c)
			s.awaitDelivered(t, "1 2 3 4")
			stop()
			if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
				t.Fatal(err)
			}
			c.commits = true
			if err := worker.New(s.DB, newStore(), []consumer.Consumer{c}).Start(t.Context()); !errors.Is(err, worker.ErrTransactionEnded) {
				t.Fatalf("Start returned %v", err)
			}
			c.commits = false
			want := "1 2 3 4 -1 1r 2r 3r 4r"
			if discard {
				want = "1 2 3 4 -1 2r 3r 4r"
				if err := s.DiscardDeadLetter(t.Context(), "c", 1, by); err != nil {
					t.Fatal(err)
				}
			}
			s.work(t, c)
			s.awaitDelivered(t, want)
			s.awaitNoDeadLetters(t)
		})
	}
}

// committer commits the worker's transaction in Forget.
type committer struct {
	forgetter
	commits bool
}

func (c *committer) Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error {
	if c.commits {
		_, err := tx.ExecContext(ctx, `COMMIT`)
		return err
	}
	return c.forgetter.Forget(ctx, tx, aggregateType, aggregateID)
}

// A skipped event or a dead letter that is replayed is delivered without Replay. A discarded
// one is not delivered.
func TestReplayOfUnhandledEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 4)
	var heals atomic.Bool
	l := &ledger{before: func(e store.PersistedEvent) error {
		if !heals.Load() && e.GlobalPosition == 2 {
			return errors.New("refused")
		}
		return nil
	}}
	s.work(t, l, worker.WithMaxConsecutiveFailures(2), worker.WithFailurePolicy(worker.FailDeadLetter))
	s.awaitDelivered(t, "1")
	await(t, "three letters", func() bool { return s.count(t, `SELECT count(*) FROM consumer_dead_letters`) == 3 })
	if err := s.DiscardDeadLetter(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	heals.Store(true)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.awaitDelivered(t, "1 1r 2 3 4")
	s.awaitNoDeadLetters(t)
	if err := s.Reset(t.Context(), "c", 0, by); err != nil {
		t.Fatal(err)
	}
	s.awaitDelivered(t, "1 1r 2 3 4 1r 2r 3r 4r")
}

// A replay omits an event that appeared behind the consumer: it is delivered late, without
// Replay.
func TestReplayOmitsDoubts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 1)
	doubted := s.begin(t, "b", 1)
	s.append(t, "a", 1)
	stop := s.work(t, &ledger{})
	s.awaitDelivered(t, "1 3")
	stop()
	end(t, doubted.Commit)
	if err := s.Replay(t.Context(), "c", "Order", "b", by); !errors.Is(err, ops.ErrNoEvents) {
		t.Fatalf("the replay of an event that is still to be delivered: %v", err)
	}
	if err := s.Reset(t.Context(), "c", 0, by); err != nil {
		t.Fatal(err)
	}
	s.work(t, &ledger{})
	s.awaitDelivered(t, "1 3 1r 2 3r")
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 2)
	for name, refused := range map[string]struct {
		consumer, typ, id string
		want              error
	}{
		"no such aggregate": {"c", "Order", "b", ops.ErrNoEvents},
		"no such type":      {"c", "Other", "a", ops.ErrNoEvents},
		"no such consumer":  {"d", "Order", "a", ops.ErrNoCheckpoint},
		"no type":           {"c", "", "a", ops.ErrInvalid},
		"no id":             {"c", "Order", "\x00", ops.ErrInvalid},
	} {
		if err := s.Replay(t.Context(), refused.consumer, refused.typ, refused.id, by); !errors.Is(err, refused.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Replay(t.Context(), "c", "Order", "a", ops.By{}); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("nobody: %v", err)
	}
	s.expectUntouched(t, 2)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, partitions) VALUES (gen_random_uuid(), '{c}', '{"c": {"count": 1, "key": "customer"}}')`)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), "customer") {
		t.Errorf("a key of its own: %v", err)
	}
	s.expectUntouched(t, 2)
}

// Replay refuses a unit to which the aggregate does not belong. The owning unit may not have
// handled the events, and would handle them after the replay.
func TestReplayInAnotherUnit(t *testing.T) {
	t.Parallel()
	s, low, high := splitSite(t, "")
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 8 WHERE consumer_name = 'c#000-7ff'`)
	if err := s.Replay(t.Context(), "c#000-7ff", "Order", high, by); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), "c#000-7ff") {
		t.Errorf("of another unit: %v", err)
	}
	if got := s.stands(t); got != "0:8.0 8:5.0" || s.deadLetters(t) != "1 "+low+" false; " {
		t.Errorf("it stands at %s, with the letters %s", got, s.deadLetters(t))
	}
	if err := s.Replay(t.Context(), "c#000-7ff", "Order", low, by); err != nil {
		t.Errorf("of its own: %v", err)
	}
}

// A worker refuses a replay that only its code can refuse. The consumer does not select the
// type, or has its own key.
func TestWorkerRefusesReplay(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]consumer.Consumer{"AggregateTypes": &ofOthers{}, `its key "customer"`: &ofCustomers{}} {
		t.Run(says, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 2)
			s.place(t, 2)
			if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
				t.Fatal(err)
			}
			s.work(t, c)
			var all []ops.DeadLetter
			await(t, "a dead letter", func() bool {
				all, _ = s.DeadLetters(t.Context(), "c")
				return len(all) != 2 || all[0].Error != ""
			})
			if len(all) != 2 || !strings.Contains(all[0].Error, says) || all[0].Replay || s.delivered(t) != "" {
				t.Errorf("delivered %q, the letters are %+v", s.delivered(t), all)
			}
		})
	}
}

type ofOthers struct{ ledger }

func (*ofOthers) AggregateTypes() []string { return []string{"Other"} }

type ofCustomers struct{ ledger }

func (*ofCustomers) Partitions() consumer.Partitions {
	return consumer.Partitions{Count: 1, Key: consumer.ByKey("customer", func(e store.PersistedEvent) string { return e.AggregateID })}
}

// ReplayTypes delivers each event that a build passed without its type, once, in the order of
// its aggregate. Handled events are replayed only together with passed ones.
func TestReplayTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	build := func(types ...string) (stop func()) { return s.work(t, &scopedForgetter{types: types}) }
	passes := func(id string, n int) {
		t.Helper()
		s.append(t, id, n)
		await(t, "the consumer to have passed them", func() bool {
			return s.count(t, `SELECT last_position FROM consumer_checkpoints`) == s.count(t, `SELECT max(global_position) FROM events`)
		})
	}
	stop := build("Other")
	await(t, "the consumer", func() bool { return s.count(t, `SELECT count(*) FROM consumer_checkpoints`) == 1 })
	passes("a", 2) // 1 2
	passes("b", 1) // 3
	stop()
	if err := s.ReplayTypes(t.Context(), "c", []string{"Order"}, by); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), `its code selects Other, and not "Order": deploy a build that names the type first`) {
		t.Fatal(err)
	}
	stop = build("Order", "Other")
	passes("a", 1) // 4
	passes("d", 1) // 5
	s.awaitDelivered(t, "4 5")
	if err := s.ReplayTypes(t.Context(), "c", []string{"Order"}, by); err != nil {
		t.Fatal(err)
	}
	s.awaitNoDeadLetters(t)
	if got := s.delivered(t); got != "4 5 -1 1 2 -1 3 4r" {
		t.Fatalf("delivered %q", got)
	}
	var d struct{ To, Events, Missed int64 }
	if op := s.last(t, &d); op.Kind != ops.KindReplayTypes || d.To != 5 || d.Events != 4 || d.Missed != 3 {
		t.Errorf("recorded %+v, %s", op, op.Detail)
	}
	if err := s.ReplayTypes(t.Context(), "c", []string{"Order"}, by); !errors.Is(err, ops.ErrNoEvents) {
		t.Errorf("again: %v", err)
	}
	stop()
	stop = build("Other")
	passes("b", 2) // 6 7
	stop()
	build("Order", "Other")
	passes("d", 1)                                           // 8
	if err := s.Reset(t.Context(), "c", 6, by); err != nil { // this also delivers 7
		t.Fatal(err)
	}
	await(t, "it to be back", func() bool {
		return strings.HasSuffix(s.delivered(t), " 7r 8r") || strings.HasSuffix(s.delivered(t), " 7 8r")
	})
	if err := s.ReplayTypes(t.Context(), "c", []string{"Order"}, by); err != nil {
		t.Fatal(err)
	}
	s.awaitNoDeadLetters(t)
	if got := s.delivered(t); !strings.HasSuffix(got, "-1 3r 6 7r") {
		t.Errorf("delivered %q", got)
	}
	stop()
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 0`) // as if no event was delivered
	s.Exec(t, `DELETE FROM consumer_operations WHERE operation IN ('replay types', 'reset')`)
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 8, scope_since = 8`)
	if err := s.ReplayTypes(t.Context(), "c", []string{"Order"}, by); !errors.Is(err, ops.ErrNoEvents) {
		t.Errorf("of what came before the consumer began: %v", err)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET scope_since = 0`)
	if _, err := s.Preview(func(o *ops.Operator) error { return o.ReplayTypes(t.Context(), "c", []string{"Order"}, by) }); err != nil {
		t.Errorf("of the same, from the beginning: %v", err)
	}
	for want, do := range map[string]func() error{
		"no type is named":  func() error { return s.ReplayTypes(t.Context(), "c", nil, by) },
		"name the consumer": func() error { return s.ReplayTypes(t.Context(), "c#000-7ff", []string{"Order"}, by) },
		"type is empty":     func() error { return s.ReplayTypes(t.Context(), "c", []string{""}, by) },
	} {
		if err := do(); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

type scopedForgetter struct {
	forgetter
	types []string
}

func (s *scopedForgetter) AggregateTypes() []string { return s.types }
