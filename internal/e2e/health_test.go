package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// ready asks the worker with some patience, and joins the reasons.
func ready(w *running, maxAge time.Duration) string {
	var lines []string
	for _, err := range w.Ready(context.Background(), maxAge) {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

func awaitReady(t *testing.T, w *running) {
	t.Helper()
	await(t, "the worker to be ready", func() bool { return ready(w, time.Minute) == "" })
}

// awaitPatient waits until a probe that tolerates an hour finds nothing.
func awaitPatient(t *testing.T, w *running) {
	t.Helper()
	await(t, "a patient probe to find the worker ready", func() bool { return ready(w, time.Hour) == "" })
}

// awaitUnready also checks that the reason is one line with words in it.
func awaitUnready(t *testing.T, w *running, maxAge time.Duration, words ...string) {
	t.Helper()
	await(t, fmt.Sprintf("the worker not to be ready, with %q", words), func() bool {
		for _, line := range strings.Split(ready(w, maxAge), "\n") {
			found := 0
			for _, word := range words {
				if strings.Contains(line, word) {
					found++
				}
			}
			if found == len(words) {
				return true
			}
		}
		return false
	})
}

// Health is not green before, between and after.
func TestHealthOfAWorkersLife(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	early := &running{Worker: worker.New(d.DB, newStore(), nil)}
	if got := ready(early, time.Minute); !strings.Contains(got, "the worker is new") || early.Live() != nil {
		t.Errorf("a new worker: %q, %v", got, early.Live())
	}
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	awaitReady(t, w)
	if err := w.Live(); err != nil {
		t.Errorf("a worker that runs: %v", err)
	}
	// A worker that has read knows its server. Its proof takes the altered log for that of
	// another one.
	appendN(t, d.DB, "Order", "1", 5)
	await(t, "5 events", func() bool { return statusOf(w.Worker, "c").Position == 5 })
	const sequence = `events_global_position_seq`
	d.Exec(t, `ALTER SEQUENCE `+sequence+` CACHE 2`)
	awaitUnready(t, w, time.Minute, sequence, "cache 2")
	var setup *frontier.SetupError
	if all := w.Ready(t.Context(), time.Minute); len(all) == 0 || !errors.As(all[0], &setup) {
		t.Errorf("the first reason is no SetupError: %v", all)
	}
	d.Exec(t, `ALTER SEQUENCE `+sequence+` CACHE 1`)
	awaitReady(t, w)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	if got := ready(w, time.Minute); !strings.Contains(got, "the worker is stopped") {
		t.Errorf("a worker that has stopped: %q", got)
	}
	if err := w.Live(); err == nil || !strings.Contains(err.Error(), "has stopped") {
		t.Errorf("a worker that has stopped is live: %v", err)
	}
}

// Health is not green while Safe stands still and the head of the log moves, though
// every lag is 0.
func TestHealthWhileSafeStandsStill(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithGapPolicy(worker.GapWait))
	awaitReady(t, w)
	const maxAge = 300 * time.Millisecond
	open := beginAppend(t, d.DB, "Order", "open", 1) // position 1
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	awaitUnready(t, w, maxAge, "may read up to position 0", "the head of the log is 2", "pg_terminate_backend")
	awaitUnready(t, w, maxAge, `consumer "c" has not moved for`, "at position 1 or above")
	if s := statusOf(w.Worker, "c"); !lags(s.Lag, 0) {
		t.Errorf("the lag is %v", s.Lag)
	}
	awaitPatient(t, w)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, w)
	await(t, "nothing to wait", func() bool { s := statusOf(w.Worker, "c"); return s.OldestAge != nil && *s.OldestAge == 0 })
}

// Health is not green while a loop is dead, though the worker knows of no error: here
// a hook never returns, so nobody reads the log.
func TestHealthWhileALoopIsDead(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	hung, leave := make(chan struct{}), make(chan struct{})
	w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}, append(quick(), worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(stale),
		worker.WithHeartbeatTimeout(time.Minute), // no heartbeat is late
		worker.WithObserver(observe.On(func(observe.FrontierBlocked) { close(hung); <-leave })))...)
	setTurn(w, 300*time.Millisecond)
	r := runWorker(t, w)
	t.Cleanup(func() { close(leave) }) // before the worker is stopped
	awaitReady(t, r)
	open := beginAppend(t, d.DB, "Order", "open", 1)
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	select {
	case <-hung:
	case <-time.After(pgtest.Patience):
		t.Fatal("the frontier does not report the open transaction")
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 5)
	await(t, "the worker not to be live", func() bool {
		err := w.Live()
		return err != nil && strings.Contains(err.Error(), "reads the log has hung")
	})
	awaitUnready(t, r, time.Hour, "reads the log has hung", "start the process again")
	awaitUnready(t, r, 300*time.Millisecond, "the head of the log is 7") // which the frontier has not seen
	awaitUnready(t, r, 300*time.Millisecond, `consumer "c" has not moved for`)
	if s := w.Status(); s.FrontierError != nil || s.CoordinationError != nil {
		t.Errorf("the errors are %v and %v", s.FrontierError, s.CoordinationError)
	}
}

// Health is not green while a hook does not return, of the consumer's loop or of the one that
// starts these.
func TestHealthWhileAHookDoesNotReturn(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	defer close(leave) // before the workers are stopped
	for hook, o := range map[string]observe.Observer{
		"ConsumerStarted": observe.On(func(observe.ConsumerStarted) { <-leave }),
		"BatchDone":       observe.On(func(observe.BatchDone) { <-leave }),
	} {
		d := newLog(t)
		appendN(t, d.DB, "Order", "1", 1)
		w := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}, append(quick(), worker.WithObserver(o))...)
		setTurn(w, 300*time.Millisecond)
		r := runWorker(t, w)
		await(t, "the worker not to be live", func() bool {
			err := w.Live()
			return err != nil && strings.Contains(err.Error(), "the observer's "+hook+" has hung")
		})
		awaitUnready(t, r, time.Hour, "the observer's "+hook+" has hung", "start the process again")
	}
}

// Health is not green while the database is away, from the first probe on; the
// process is live all the same.
func TestHealthWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	s, db := ownLog(t)
	w := start(t, db, []consumer.Consumer{&ledger{name: "c"}}, worker.WithHeartbeatTimeout(3*time.Second))
	awaitReady(t, w)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ready(w, time.Hour); !strings.Contains(got, "the database does not answer") {
		t.Errorf("at once: %q", got)
	}
	awaitUnready(t, w, time.Hour, "the last heartbeat was")
	if err := w.Live(); err != nil {
		t.Errorf("the process is not live: %v", err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, w)
}

// Health does not take connections that the server has ended for a database that is away.
func TestHealthWhenConnectionsHaveEnded(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.DB.SetMaxIdleConns(16)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithHeartbeatTimeout(time.Minute))
	awaitReady(t, w)
	others := d.OpenMode(t, pgx.QueryExecModeExec)
	for range 10 {
		var used sync.WaitGroup
		for range 12 {
			used.Go(func() { _, _ = d.DB.ExecContext(t.Context(), `SELECT pg_sleep(0.01)`) })
		}
		used.Wait() // pgx pings what has rested for a second
		if _, err := others.ExecContext(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
		if got := ready(w, time.Hour); strings.Contains(got, "the database") {
			t.Fatal(got)
		}
	}
	awaitReady(t, w)
}

// Probes give their connections back.
func TestReadyKeepsNoConnection(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	const connections = 12
	d.DB.SetMaxOpenConns(connections)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithHeartbeatTimeout(time.Minute)) // no heartbeat is late
	awaitReady(t, w)
	for n := range connections {
		if got := ready(w, time.Hour); got != "" {
			t.Fatalf("the probe after %d: %s", n, got)
		}
	}
}

// The age is that of the first event of the consumer's types. It grows while the
// consumer is stuck. A consumer is unready that does not move, not one that is late and
// moves, nor one that is paused.
func TestOldestAge(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	stuck := func(context.Context, *sql.Tx, store.PersistedEvent) error { return errors.New("not today") }
	w := start(t, d.DB, []consumer.Consumer{
		&ledger{name: "all", before: stuck},
		&scopedLedger{ledger{name: "rare", types: []string{"Rare", "None"}, before: stuck}},
		&scopedLedger{ledger{name: "none", types: []string{"None"}}},
	}, worker.WithMaxConsecutiveFailures(1_000_000), worker.WithHeartbeatTimeout(time.Minute))
	awaitReady(t, w)
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, created_at)
		SELECT type, '1', 1, gen_random_uuid(), 'e', '', clock_timestamp() - age * interval '1 hour' FROM (VALUES ('Order', 3), ('Rare', 2)) AS e (type, age)`)
	age := func(name string) time.Duration {
		s := statusOf(w.Worker, name)
		if s.OldestAge == nil {
			return -1
		}
		return s.OldestAge.Truncate(time.Hour)
	}
	await(t, "the watch to find the ages", func() bool { return age("all") == 3*time.Hour && age("rare") == 2*time.Hour && age("none") == 0 })
	if got := ready(w, time.Hour); got != "" {
		t.Errorf("late, and it moved within its patience: %s", got)
	}
	const maxAge = 300 * time.Millisecond
	awaitUnready(t, w, maxAge, "has not handled an event that is 3h", "not today", "SkipEvent")
	before := *statusOf(w.Worker, "all").OldestAge
	await(t, "the age to grow without a look", func() bool { return *statusOf(w.Worker, "all").OldestAge > before })
	o := operator(t, d)
	for _, name := range []string{"all", "rare"} {
		if err := o.Pause(t.Context(), name, by); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "paused consumers not to count", func() bool { return ready(w, maxAge) == "" })
}

// Health is not green while a consumer does not move, whatever time the writer has given to
// the event that waits for it.
func TestHealthTrustsNoTimeOfAnEvent(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		return errors.New("not today")
	}}}, worker.WithMaxConsecutiveFailures(1_000_000))
	awaitReady(t, w)
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, created_at)
		SELECT 'Order', '1', 1, gen_random_uuid(), 'e', '', clock_timestamp() + interval '1 day'`)
	const maxAge = 300 * time.Millisecond
	awaitUnready(t, w, maxAge, `consumer "c" has not moved for`, "at position 1 or above", "not today")
	awaitPatient(t, w)
	if s := statusOf(w.Worker, "c"); s.OldestAge == nil || *s.OldestAge > time.Hour {
		t.Errorf("the event is %v old", s.OldestAge)
	}
}

// Health is not green while a worker cannot load the progress of a consumer that it is to run.
func TestHealthOfAConsumerThatIsNotLoaded(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, effects) VALUES ('c', 0, '{"of": "another version"}')`)
	appendN(t, d.DB, "Order", "1", 1)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	awaitReady(t, w)
	const maxAge = 300 * time.Millisecond
	awaitUnready(t, w, maxAge, `consumer "c" is assigned to this worker, which has not loaded its progress for`, "json")
	d.Exec(t, `UPDATE consumer_checkpoints SET effects = '[]'`)
	awaitHandled(t, d.DB, "c", 1)
	await(t, "the worker to be ready", func() bool { return ready(w, maxAge) == "" })
}
