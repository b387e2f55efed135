package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// flow is a deployment in which each role does all that it ever does.
type flow struct {
	*deployment
	writer, worker *sql.DB
	*ops.Operator
	opts   []worker.Option
	mended atomic.Bool // the aggregate "bad" can be handled
}

// startFlow has a login for each role; work names that of the workers.
func startFlow(t *testing.T, d *deployment, work string, opts ...worker.Option) *flow {
	t.Helper()
	f := &flow{deployment: d, opts: d.options(opts...)}
	f.writer = d.open(t, d.login(t, "writing", d.roles.Writer))
	f.worker = d.open(t, work)
	d.Exec(t, `GRANT USAGE ON SCHEMA effects TO `+ident.Quote(work))
	d.Exec(t, `GRANT INSERT ON effects.ledger TO `+ident.Quote(work))
	d.Exec(t, `GRANT USAGE ON SEQUENCE effects.ledger_id_seq TO `+ident.Quote(work))
	o, err := ops.New(d.open(t, d.login(t, "operating", d.roles.Operator)), ops.WithNames(d.names))
	if err != nil {
		t.Fatal(err)
	}
	f.Operator = o
	return f
}

// effect is a consumer that writes where its role may.
type effect struct {
	name   string
	before func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (c *effect) Name() string { return c.name }

func (c *effect) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if c.before != nil {
		if err := c.before(ctx, tx, e); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects.ledger (consumer, position) VALUES ($1, $2)`, c.name, e.GlobalPosition)
	return err
}

type scopedEffect struct{ effect }

func (*scopedEffect) AggregateTypes() []string { return []string{"Order"} }

type partitionedEffect struct {
	effect
	count int
}

func (e *partitionedEffect) Partitions() consumer.Partitions {
	return consumer.Partitions{Count: e.count}
}

type headEffect struct{ effect }

func (*headEffect) StartAt() consumer.Start { return consumer.AtHead() }

// bad cannot be handled until it is mended.
func (f *flow) bad(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if e.AggregateID == "bad" && !f.mended.Load() {
		return errRefused
	}
	return nil
}

// held is a handler that tells when it has the aggregate "held", and waits for the end.
func held(begun chan<- struct{}, end <-chan struct{}) func(context.Context, *sql.Tx, store.PersistedEvent) error {
	return func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "held" {
			begun <- struct{}{}
			<-end
		}
		return nil
	}
}

// run starts a worker.
func (f *flow) run(t *testing.T, consumers []consumer.Consumer, opts ...worker.Option) *running {
	t.Helper()
	var log pgtest.Lines
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	opts = append(opts, worker.WithSlog(newLogger(&log)))
	w := runWorker(t, worker.New(f.worker, f.log, consumers, append(f.opts, opts...)...))
	await(t, "the worker to run", func() bool {
		select {
		case err := <-w.done:
			w.done <- err // for the cleanup
			t.Fatalf("Start returned %v", err)
		default:
		}
		return w.Status().State == observe.StateRunning
	})
	return w
}

func (f *flow) append(t *testing.T, id string, n int) (last int64) {
	t.Helper()
	commit(t, f.begin(t, f.writer, id, n))
	return one[int64](t, f.DB, `SELECT max(global_position) FROM events`)
}

func (f *flow) rollback(t *testing.T) {
	t.Helper()
	if err := f.begin(t, f.writer, "never", 2).Rollback(); err != nil {
		t.Fatal(err)
	}
}

// awaitAt waits for a checkpoint.
func (f *flow) awaitAt(t *testing.T, consumer string, position int64) {
	t.Helper()
	await(t, consumer+" to be through", func() bool { return checkpoint(t, f.DB, consumer) >= position })
}

func (f *flow) awaitRows(t *testing.T, what, query string, n int) {
	t.Helper()
	await(t, what, func() bool { return one[int](t, f.DB, query) == n })
}

func (f *flow) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var reason = ops.By{Operator: "ann", Reason: "a test"}

// play is everything that workers and operators ever do.
func (f *flow) play(t *testing.T) {
	t.Helper()
	w := f.run(t, []consumer.Consumer{&effect{"c", f.bad}, &scopedEffect{effect{name: "scoped"}}, &headEffect{effect{name: "head"}}},
		worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1),
		worker.WithStaleGapThreshold(100*time.Millisecond), worker.WithGapSkipRetention(time.Second))
	f.rollback(t)
	f.awaitAt(t, "c", f.append(t, "a", 3))
	f.rollback(t)
	f.awaitAt(t, "scoped", f.append(t, "b", 3))
	f.must(t, w.WaitFor(t.Context(), "c", 3))
	f.awaitLate(t)
	f.lettersComeAndGo(t)
	f.operate(t)
	f.awaitRows(t, "old rows of the audit to be deleted", `SELECT count(*) FROM consumer_gap_skips WHERE state = 'void' AND closed_at < now() - interval '5 s'`, 0)

	await(t, "the audit to be compacted", func() bool { return f.executed("width_bucket") })

	f.Exec(t, `DELETE FROM consumer_checkpoints_token`) // as crash recovery does
	f.awaitAt(t, "c", f.append(t, "a", 1))
	begun, end := make(chan struct{}, 1), make(chan struct{})
	second := f.run(t, []consumer.Consumer{&effect{"c", f.bad}, &effect{"other", held(begun, end)}})
	f.awaitAt(t, "other", f.append(t, "a", 1))
	w.Stop()
	f.must(t, w.result(t))
	f.awaitAt(t, "c", f.append(t, "held", 1))
	<-begun
	second.Stop()
	await(t, "the worker to say that it drains", func() bool { return f.executed("draining = true") })
	close(end)
	f.must(t, second.result(t))
	f.fail(t)
	f.rescale(t)
	f.must(t, f.Retire(t.Context(), "other", reason))
}

// rescale splits a consumer that has dead letters, and merges it.
func (f *flow) rescale(t *testing.T) {
	t.Helper()
	f.mended.Store(false)
	f.append(t, "bad", 1)
	for _, n := range []int{1, 2, 1} {
		w := f.run(t, []consumer.Consumer{&partitionedEffect{effect{"parts", f.bad}, n}}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
		last := f.append(t, "a", 3)
		f.awaitRows(t, fmt.Sprintf("%d units", n), fmt.Sprintf(`SELECT CASE WHEN min(last_position) >= %d THEN count(*) ELSE 0 END FROM consumer_checkpoints WHERE left(consumer_name, 5) = 'parts' AND split_at IS NULL`, last), n)
		f.awaitRows(t, "their letters", `SELECT least(count(*), 1) FROM consumer_dead_letters WHERE left(consumer_name, 5) = 'parts'`, 1)
		w.Stop()
		f.must(t, w.result(t))
	}
	f.must(t, f.Rename(t.Context(), "parts", "renamed", reason))
	f.must(t, f.Retire(t.Context(), "renamed", reason))
}

// awaitLate has positions passed in doubt: one range is filled late, one is
// skipped by the operator, one becomes void.
func (f *flow) awaitLate(t *testing.T) {
	t.Helper()
	late, skipped, never := f.begin(t, f.writer, "late", 1), f.begin(t, f.writer, "skipped", 1), f.begin(t, f.writer, "never", 1)
	f.awaitAt(t, "c", f.append(t, "a", 1))
	f.awaitRows(t, "an open range", `SELECT least(count(*), 1) FROM consumer_gap_skips WHERE state = 'open' AND consumer_name = 'c'`, 1)
	commit(t, late)
	f.awaitRows(t, "the late event to be delivered", `SELECT count(*) FROM effects.ledger JOIN events ON global_position = position WHERE aggregate_id = 'late' AND consumer = 'c'`, 1)
	f.must(t, f.Pause(t.Context(), "c", reason))
	commit(t, skipped)
	at := one[int64](t, f.DB, `SELECT global_position FROM events WHERE aggregate_id = 'skipped'`)
	f.must(t, f.SkipEvent(t.Context(), "c", at, reason))
	f.must(t, f.Resume(t.Context(), "c", reason))
	if err := never.Rollback(); err != nil {
		t.Fatal(err)
	}
	f.awaitRows(t, "no open range", `SELECT count(*) FROM consumer_gap_skips WHERE state = 'open'`, 0)
}

func (f *flow) lettersComeAndGo(t *testing.T) {
	t.Helper()
	letters := func() (all []ops.DeadLetter) {
		all, err := f.DeadLetters(t.Context(), "c")
		f.must(t, err)
		return all
	}
	first := f.append(t, "bad", 1)
	f.append(t, "bad", 1)
	f.awaitAt(t, "c", f.append(t, "a", 1))
	await(t, "two dead letters", func() bool { return len(letters()) == 2 })
	f.readsAll(t, f.Operator, 2)
	attempts := letters()[0].Attempts
	f.must(t, f.RetryDeadLetters(t.Context(), "c", first, reason))
	await(t, "the retry to fail", func() bool { l := letters(); return l[0].Attempts == attempts+1 && l[0].RetryAt == nil })
	f.must(t, f.DiscardDeadLetter(t.Context(), "c", first+1, reason))
	f.mended.Store(true)
	f.must(t, f.RetryDeadLetters(t.Context(), "c", first, reason))
	await(t, "no dead letters", func() bool { return len(letters()) == 0 })
	f.must(t, f.Replay(t.Context(), "c", "Order", "a", reason))
	await(t, "the aggregate to be handled again", func() bool { return len(letters()) == 0 })
}

// readsAll reads all that there is to know of a consumer.
func (f *flow) readsAll(t *testing.T, o *ops.Operator, lettersThere int) {
	t.Helper()
	log, err := o.Log(t.Context())
	f.must(t, err)
	_, err = o.Event(t.Context(), log.Head)
	f.must(t, err)
	_, err = o.Next(t.Context(), "c")
	f.must(t, err)
	_, err = o.Gaps(t.Context(), "c", ops.GapFilter{}, 10)
	f.must(t, err)
	_, err = o.Blockers(t.Context(), true)
	f.must(t, err)
	_, err = o.Consumers(t.Context())
	f.must(t, err)
	_, err = o.Workers(t.Context())
	f.must(t, err)
	_, err = o.StoppedWorkers(t.Context())
	f.must(t, err)
	if letters, err := o.FilterDeadLetters(t.Context(), "c", ops.DeadLetterFilter{OlderThan: time.Microsecond}, true, 10); err != nil || len(letters) != lettersThere {
		t.Errorf("%+v, %v", letters, err)
	}
}

// operate moves a paused consumer.
func (f *flow) operate(t *testing.T) {
	t.Helper()
	f.must(t, f.Pause(t.Context(), "c", reason))
	f.rollback(t)
	last := f.append(t, "a", 3)
	f.must(t, f.SkipEvent(t.Context(), "c", last-2, reason))
	await(t, "the log to be settled", func() bool {
		err := f.Reset(t.Context(), "c", last, reason)
		if notYet := (*ops.NotSettledError)(nil); !errors.As(err, &notYet) {
			f.must(t, err)
		}
		return err == nil
	})
	f.must(t, f.Reset(t.Context(), "c", last-1, reason))
	f.must(t, f.Resume(t.Context(), "c", reason))
	f.awaitAt(t, "c", last)
	consumers, err := f.Consumers(t.Context())
	if err != nil || len(consumers) < 3 {
		t.Errorf("Consumers: %v, %v", consumers, err)
	}
	operations, err := f.Operations(t.Context(), ops.OperationFilter{}, 10)
	if err != nil || len(operations) < 5 {
		t.Errorf("Operations: %v, %v", operations, err)
	}
}

// fail has handlers that break rules, and what a worker then writes.
func (f *flow) fail(t *testing.T) {
	t.Helper()
	f.mended.Store(false)
	f.append(t, "bad", 1)
	w := f.run(t, []consumer.Consumer{&effect{"pausing", f.bad}}, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(1))
	f.awaitRows(t, "the worker to pause its consumer", `SELECT count(*) FROM consumer_operations WHERE operation = 'pause' AND consumer_name = 'pausing'`, 1)
	w.Stop()
	f.must(t, w.result(t))
	f.must(t, f.Retire(t.Context(), "pausing", reason))
	w = f.run(t, []consumer.Consumer{&effect{"ending", func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error { return tx.Commit() }}})
	if err := w.result(t); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Errorf("Start returned %v", err)
	}
	if n := one[int](t, f.DB, `SELECT count(*) FROM consumer_operations WHERE operation = 'repair'`); n != 1 {
		t.Errorf("%d repairs are recorded, want 1", n)
	}
}

// mayNot fails the test if the role may do one of these.
func (d *deployment) mayNot(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v, want it denied", s, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.denied = nil
}

// Each role does all that it ever does with what migrations.Grants gives it.
func TestRolesUnderTheirGrants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		names    store.Names
		strategy worker.LeaderStrategy
		notify   bool
	}{
		"advisory, notify, in schemas": {inSchemas, worker.LeaderStrategyAdvisory, true},
		"lease, poll, no schema named": {store.Names{}, worker.LeaderStrategyLease, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, test.names)
			d.grant(t)
			work := d.login(t, "working", d.roles.Worker)
			opts := []worker.Option{worker.WithLeaderStrategy(test.strategy)}
			if test.notify {
				opts = append(opts, worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString(d.url(t, work)))
			}
			f := startFlow(t, d, work, opts...)
			f.play(t)
			d.noneDenied(t)
			if test.names == (store.Names{}) {
				f.read(t)
				f.exceed(t)
			}
		})
	}
}

// read does what readers do.
func (f *flow) read(t *testing.T) {
	t.Helper()
	db := f.open(t, f.login(t, "reading", f.roles.Reader))
	o, err := ops.New(db, ops.WithNames(f.names))
	f.must(t, err)
	_, err = o.Consumers(t.Context())
	f.must(t, err)
	_, err = o.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 1)
	f.must(t, err)
	f.readsAll(t, o, 0)
	_, err = o.DeadLetters(t.Context(), "")
	f.must(t, err)
	events, err := f.log.ReadEvents(t.Context(), db, 0, 1)
	f.must(t, err)
	_, err = f.log.ReadAggregateStream(t.Context(), db, events[0].AggregateType, events[0].AggregateID, nil, nil)
	f.must(t, err)
	_, err = f.log.GetLatestGlobalPosition(t.Context(), db)
	f.must(t, err)
	f.must(t, migrations.Check(t.Context(), db, &migrations.Config{Names: f.names}))
	for _, query := range []string{`SELECT worker_id, status FROM worker_nodes`, `SELECT * FROM consumer_gap_skips`, `SELECT * FROM consumer_assignments`} {
		_, err = db.ExecContext(t.Context(), query)
		f.must(t, err)
	}
	f.noneDenied(t)
	if err := o.Pause(t.Context(), "c", reason); err == nil || !strings.Contains(err.Error(), "42501") {
		t.Errorf("a reader pauses a consumer: %v", err)
	}
	f.mayNot(t, db, `DELETE FROM events`, `UPDATE consumer_checkpoints SET last_position = 0`, `INSERT INTO aggregate_heads VALUES ('a', 'b', 1)`, `CREATE TABLE mine ()`)
}

// exceed tries what the other roles may not do.
func (f *flow) exceed(t *testing.T) {
	t.Helper()
	f.mayNot(t, f.writer, `SELECT payload FROM events`, `SELECT * FROM events`, `UPDATE events SET payload = ''`, `DELETE FROM events`, `TRUNCATE events`,
		`DELETE FROM aggregate_heads`, `SELECT setval('events_global_position_seq', 1)`, `SELECT last_value FROM events_global_position_seq`,
		`SELECT * FROM consumer_checkpoints`, `CREATE TABLE mine ()`)
	f.mayNot(t, f.worker, `DELETE FROM events`, `UPDATE events SET payload = ''`, `SELECT nextval('events_global_position_seq')`, `SELECT * FROM aggregate_heads`,
		`DELETE FROM consumer_operations`, `TRUNCATE consumer_gap_skips`, `UPDATE consumer_checkpoints_schema SET version = 9`, `CREATE TABLE mine ()`)
	operator := f.open(t, f.login(t, "exceeding", f.roles.Operator))
	f.mayNot(t, operator, `DELETE FROM events`, `INSERT INTO aggregate_heads VALUES ('a', 'b', 1)`, `UPDATE worker_nodes SET heartbeat_at = now()`, `UPDATE consumer_operations SET operator = ''`,
		`DELETE FROM consumer_operations`, `UPDATE consumer_assignments SET worker_id = NULL`, `DELETE FROM worker_nodes`)
}
