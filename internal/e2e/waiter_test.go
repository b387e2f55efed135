package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store/consumer"
)

// A process that runs no consumer waits with the right to read the tables of the workers alone.
func TestWaiter(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	owner := start(t, d.DB, []consumer.Consumer{newRefusing("c", 12)}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
	var role string
	if err := d.DB.QueryRow(`SELECT current_database() || '_reader'`).Scan(&role); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	for {
		err := worker.NewWaiter(d.OpenSet(t, "role", role)).WaitFor(t.Context(), "c", 0)
		if !errors.Is(err, worker.ErrPrivileges) {
			break
		}
		_, grants, _ := strings.Cut(err.Error(), "GRANT ")
		d.Exec(t, "GRANT "+strings.ReplaceAll(grants, `"`+role+`"`, role))
	}
	d.Exec(t, `ALTER TABLE consumer_dead_letters ENABLE ROW LEVEL SECURITY`)
	if err := worker.NewWaiter(d.OpenSet(t, "role", role)).WaitFor(t.Context(), "c", 0); !errors.Is(err, worker.ErrPrivileges) || !strings.Contains(err.Error(), "consumer_dead_letters") {
		t.Errorf("dead letters that do not show: %v", err)
	}
	d.Exec(t, `ALTER TABLE consumer_dead_letters DISABLE ROW LEVEL SECURITY`)
	if err := owner.WaitFor(t.Context(), "c", 0); err != nil { // it is known from then on
		t.Fatal(err)
	}
	w := worker.NewWaiter(d.OpenSet(t, "role", role))
	for range 11 {
		appendN(t, d.DB, "Order", "1", 1)
		head := latestPosition(t, d.DB)
		if err := w.WaitFor(t.Context(), "c", head); err != nil {
			t.Fatal(err)
		}
		if got := handled(t, d.DB, "c"); int64(len(got)) != head {
			t.Fatalf("at position %d only %v are handled", head, got)
		}
	}
	appendN(t, d.DB, "Order", "1", 1)
	if err := w.WaitFor(t.Context(), "c", 12); !errors.Is(err, worker.ErrDeadLettered) {
		t.Errorf("a dead letter: %v", err)
	}
	for name, text := range map[string]string{"C": `"C"`, "c#000-3ff": `wait for "c"`} {
		if err := w.WaitFor(t.Context(), name, 1); !errors.Is(err, worker.ErrNoConsumer) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	quiet := d.OpenSet(t, "role", role)
	w = worker.NewWaiter(quiet)
	if err := w.WaitFor(t.Context(), "c", 12); !errors.Is(err, worker.ErrDeadLettered) || quiet.Stats().OpenConnections == 0 {
		t.Errorf("%v; %d connections are kept", err, quiet.Stats().OpenConnections)
	}
	// Until the error says what was seen: it says nothing if the time is over before.
	limit := 100 * time.Millisecond
	await(t, "the position in the error", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		limit *= 2
		err := w.WaitFor(ctx, "c", 99)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a context that ended: %v", err)
		}
		return strings.Contains(err.Error(), "it is at position 12")
	})
}

// A Waiter tells the workers what it waits for, if the consumer is in partitions: some of them
// may have passed it, and deferred the commit.
func TestWaiterAsksPartitions(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('whole', 6), ('parts#000-7ff', 7), ('parts#800-fff', 6)`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, paused_at, split_at) VALUES ('parts', now(), now())`)
	listener, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close(context.Background()) })
	channel := one[string](t, d.DB, `SELECT 'worker_waits_' || 'consumer_checkpoints_changes'::regclass::oid`)
	if _, err := listener.Exec(t.Context(), "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	w := worker.NewWaiter(d.DB, worker.WithDispatcherInterval(10*time.Millisecond))
	patience := 100 * time.Millisecond
	await(t, "a wait for the consumer that is not in partitions", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		patience *= 2 // for a slow machine
		return strings.Contains(w.WaitFor(ctx, "whole", 7).Error(), "it is at position 6")
	})
	waited := make(chan error, 1)
	go func() { waited <- w.WaitFor(t.Context(), "parts", 7) }()
	if n, err := listener.WaitForNotification(t.Context()); err != nil || n.Payload != `{"consumer":"parts","position":7}` {
		t.Errorf("the workers hear %+v, %v", n, err)
	}
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 7`)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

// A Waiter outlives the loss of its connections, and goes on.
func TestWaiterOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	owner := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	appendN(t, d.DB, "Order", "1", 1)
	w := worker.NewWaiter(d.OpenSet(t, "application_name", "waiter"), worker.WithDispatcherInterval(10*time.Millisecond))
	if err := owner.WaitFor(t.Context(), "c", 1); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- w.WaitFor(t.Context(), "c", 2) }()
	killed := 0
	await(t, "some connections to be lost", func() bool {
		var n int
		if err := d.DB.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waiter'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		killed += n
		return killed >= 5
	})
	appendN(t, d.DB, "Order", "1", 1)
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

// On a standby, a Waiter waits until what the consumer has done shows there.
func TestWaiterOnAStandby(t *testing.T) {
	t.Parallel()
	p := newServerPair(t)
	owner := start(t, p.onPrimary, []consumer.Consumer{&ledger{name: "c"}})
	w := worker.NewWaiter(p.onStandby)
	if err := changes.SendWait(t.Context(), p.onStandby, ident.Table{Name: "consumer_checkpoints_changes"}, "{}"); err != nil {
		t.Errorf("to ask on a standby: %v", err)
	}
	if err := owner.WaitFor(t.Context(), "c", 0); err != nil {
		t.Fatal(err)
	}
	await(t, "the consumer to show on the standby", func() bool { return w.WaitFor(t.Context(), "c", 0) == nil })
	if _, err := p.onStandby.Exec(`SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	appendN(t, p.onPrimary, "Order", "1", 1)
	if err := owner.WaitFor(t.Context(), "c", 1); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- w.WaitFor(t.Context(), "c", 1) }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := w.WaitFor(ctx, "c", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the standby does not have it: %v", err)
	}
	if _, err := p.onStandby.Exec(`SELECT pg_wal_replay_resume()`); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if got := handled(t, p.onStandby, "c"); len(got) != 1 {
		t.Errorf("on the standby %v are handled", got)
	}
}

func TestWaiterSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	empty := pgtest.Empty(t)
	for name, is := range map[string]struct {
		waiter *worker.Waiter
		want   error
		text   string
	}{
		"no db":       {worker.NewWaiter(nil), worker.ErrInvalidConfig, "db is nil"},
		"an interval": {worker.NewWaiter(d.DB, worker.WithDispatcherInterval(-1)), worker.ErrInvalidConfig, "WithDispatcherInterval"},
		"no tables":   {worker.NewWaiter(empty.DB), migrations.ErrNotApplied, "consumer_checkpoints"},
		"other names": {worker.NewWaiter(d.DB, worker.WithConsumerCheckpointsTable("others")), migrations.ErrNotApplied, "others"},
	} {
		if err := is.waiter.WaitFor(t.Context(), "c", 1); !errors.Is(err, is.want) || !strings.Contains(err.Error(), is.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
