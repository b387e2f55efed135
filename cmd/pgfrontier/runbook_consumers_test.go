package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// named is a consumer with a name and a handler.
type named struct {
	name   string
	handle func(ctx context.Context, e store.PersistedEvent) error
}

func (n named) Name() string { return n.name }

func (n named) Handle(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if n.handle == nil {
		return nil
	}
	return n.handle(ctx, e)
}

// appendBad appends an event that the handler may fail at, and one behind it.
func (s *scene) appendBad(t *testing.T) {
	t.Helper()
	if err := s.begin(t, "bad", 1).Commit(); err != nil {
		t.Fatal(err)
	}
	s.vars["POSITION"] = fmt.Sprint(value[int64](t, s.site, `SELECT max(global_position) FROM events`))
	s.append(t, 1)
}

// consumerAlarms are about single consumers.
var consumerAlarms = []alarm{
	{
		name: "A consumer is paused at an event", age: soon,
		start: func(t *testing.T, s *scene) {
			s.work(t, counter{}, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(2))
		},
		happen: func(t *testing.T, s *scene) { s.appendBad(t) },
	},
	deadLetters(),
	rowsDiffer(),
	{
		name: "A session keeps a consumer's row", age: soon,
		happen: func(t *testing.T, s *scene) {
			await(t, "the checkpoint", func() bool {
				return value[int64](t, s.site, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'c'`) == 1
			})
			tx, err := s.DB.Begin() // as somebody does in psql
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			if _, err := tx.Exec(`UPDATE consumer_checkpoints SET last_position = last_position WHERE consumer_name = 'c'`); err != nil {
				t.Fatal(err)
			}
			s.keep(t, tx)
			s.append(t, 1)
		},
	},
	handlerHangs(),
	{
		name: "No worker has the code of a consumer", age: soon,
		start: func(t *testing.T, s *scene) {
			s.vars["NAME"] = "old"
			s.workAll(t, []consumer.Consumer{counter{}, named{name: "old"}})
		},
		happen: func(t *testing.T, s *scene) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			s.work(t, counter{})
			s.append(t, 1)
		},
	},
}

// deadLetters has a handler that is mended.
func deadLetters() alarm {
	var broken atomic.Bool
	return alarm{
		name: "A consumer has dead letters",
		start: func(t *testing.T, s *scene) {
			broken.Store(true)
			s.work(t, named{"c", func(_ context.Context, e store.PersistedEvent) error {
				if broken.Load() && e.AggregateID == "bad" {
					return errors.New("the mail server is down")
				}
				return nil
			}}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
		},
		happen: func(t *testing.T, s *scene) { s.appendBad(t) },
		mend: func(t *testing.T, _ *scene, r remedy) {
			broken.Store(false)
			r()
		},
	}
}

// orders is the consumer "c", which counts the events of each aggregate.
type orders struct{}

func (orders) Name() string { return "c" }

func (orders) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders AS o VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = o.n + 1`, e.AggregateID)
	return err
}

func (orders) Forget(ctx context.Context, tx *sql.Tx, _, aggregateID string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM orders WHERE id = $1`, aggregateID)
	return err
}

// rowsDiffer has a row that was changed by hand.
func rowsDiffer() alarm {
	counted := func(t *testing.T, s *scene) {
		t.Helper()
		await(t, "the row of a", func() bool {
			return value[int64](t, s.site, `SELECT coalesce(max(n), 0) FROM orders WHERE id = 'a'`) == 2
		})
	}
	return alarm{
		name: "The rows of an aggregate differ",
		start: func(t *testing.T, s *scene) {
			s.build(t)
			s.Exec(t, `CREATE TABLE orders (id text PRIMARY KEY, n bigint NOT NULL)`)
			s.vars["ID"] = "a"
			s.work(t, orders{})
			s.append(t, 2)
			counted(t, s)
		},
		happen: func(t *testing.T, s *scene) {
			s.Exec(t, `UPDATE orders SET n = 7 WHERE id = 'a'`)
			s.verify(t)
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			r()
			counted(t, s)
		},
	}
}

// verify runs VerifyEvery until the test ends. Of its events, those count that tell of rows that differ.
func (s *scene) verify(t *testing.T) {
	t.Helper()
	o, err := ops.New(s.DB)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- o.VerifyEvery(ctx, ops.Verification{Consumer: orders{}, Log: newStore(), AggregateType: "Order", Rows: `SELECT * FROM orders WHERE id = $1`}, time.Second, observe.On(func(e observe.Verified) {
			if e.AggregateID == "a" && e.Missing == 1 && e.Unexpected == 1 {
				s.observer(e)
			}
		}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("VerifyEvery ended with: %v", err)
		}
	})
}

// handlerHangs has a handler that returns when the test ends.
func handlerHangs() alarm {
	return alarm{
		name: "A handler does not return",
		start: func(t *testing.T, s *scene) {
			released := make(chan struct{})
			t.Cleanup(func() { close(released) })
			s.work(t, named{"c", func(_ context.Context, e store.PersistedEvent) error {
				if e.AggregateID == "bad" {
					<-released
				}
				return nil
			}}, worker.WithBatchTimeout(200*time.Millisecond), worker.WithShutdownTimeout(100*time.Millisecond))
		},
		happen: func(t *testing.T, s *scene) { s.appendBad(t) },
		mend: func(t *testing.T, s *scene, r remedy) {
			if err := s.end(); !errors.Is(err, worker.ErrHandlerOverdue) {
				t.Errorf("the worker ended with: %v", err)
			}
			s.work(t, named{name: "c"})
			r()
		},
	}
}
