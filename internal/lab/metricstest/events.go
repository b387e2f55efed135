package metricstest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// picky is a consumer that fails at events of the aggregate "bad".
type picky struct {
	name    string
	handled atomic.Int64
}

func (p *picky) Name() string { return p.name }

func (p *picky) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if e.AggregateID == "bad" {
		return errors.New("cannot handle this")
	}
	p.handled.Add(1)
	return nil
}

var by = ops.By{Operator: "ann", Reason: "a test"}

// Append appends events of one aggregate in a transaction of its own, which it leaves open.
func Append(t testing.TB, db *sql.DB, aggregate string, events ...store.Event) *sql.Tx {
	t.Helper()
	for i := range events {
		events[i].AggregateType, events[i].AggregateID, events[i].EventType, events[i].EventID = "Order", aggregate, "Placed", uuid.New()
		events[i].Payload = []byte(`{}`)
	}
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := Store().Append(context.Background(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

// Commit commits a transaction.
func Commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// Store is the store of events.
func Store() *storepostgres.Store { return storepostgres.NewStore(storepostgres.DefaultStoreConfig()) }

// Quick are options of a worker that notices everything soon.
func Quick() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherInterval(20 * time.Millisecond),
		worker.WithPollInterval(20 * time.Millisecond),
		worker.WithMaxPollInterval(100 * time.Millisecond),
		worker.WithHeartbeatInterval(100 * time.Millisecond),
		worker.WithHeartbeatTimeout(2 * time.Second),
		worker.WithRebalanceInterval(100 * time.Millisecond),
	}
}

// Start runs a worker with an adapter until the test ends, or end is called.
func Start(t testing.TB, db *sql.DB, a Adapter, consumers []consumer.Consumer, options ...worker.Option) (w *worker.Worker, end func()) {
	t.Helper()
	log := worker.WithSlog(slog.New(slog.NewTextHandler(t.Output(), nil))) // shown if the test fails
	w = worker.New(db, Store(), consumers, append(append(append(Quick(), log), a.Options()...), options...)...)
	a.Watch(w)
	return w, run(t, w.Start, w.Stop)
}

// Events has consumers on a real server do what each metric counts. Each call of subject makes
// an adapter of its own.
func Events(t *testing.T, subject func(t *testing.T) Subject) {
	d := pgtest.New(t)
	seen := map[string]bool{}
	first := &probe{t, subject(t), seen}
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	first.await("before a start", map[string]string{"worker.up{}": "none"})
	_, end := Start(t, d.DB, first, []consumer.Consumer{&picky{name: "a"}, &picky{name: "b"}}, worker.WithFailurePolicy(worker.FailDeadLetter),
		worker.WithMaxConsecutiveFailures(2), worker.WithStaleGapThreshold(200*time.Millisecond), worker.WithMaxOpenRanges(7))
	first.await("a start", map[string]string{
		"worker.up{}": "1", "worker.leader{}": "1", "frontier.up{}": "1", "log.head{}": "0", "consumers.assigned{}": "2", "consumers.unowned{}": "0",
		"consumer.events{consumer=a,late=false}": "0", "consumer.retries{consumer=a,cause=handler}": "0", "letters.added{consumer=a}": "0",
		"consumer.positions.skipped{consumer=b,state=void}": "0", "consumer.batches{consumer=b,outcome=failed}": "0",
		"consumer.paused{consumer=a}": "0", "open_ranges.limit{}": "7",
	})
	first.committed(d)
	first.failed(d)
	first.skipped(d)
	first.paused(t, d, o)
	first.replayed(t, o)
	first.verified(t, d, o)
	first.altered(d)
	second := &probe{t, subject(t), seen}
	_, _ = Start(t, d.DB, second, []consumer.Consumer{&picky{name: "b"}}, worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(200*time.Millisecond))
	second.await("a second worker", map[string]string{"worker.up{}": "1", "worker.leader{}": "0", "consumers.unowned{}": "none", "consumer.position{consumer=a}": "none"})
	end()
	first.await("the end of a worker", map[string]string{"worker.up{}": "0", "worker.leader{}": "none", "consumer.position{consumer=a}": "none"})
	second.await("a change of the leader", map[string]string{
		"worker.leader{}": "1", "consumers.unowned{}": "1", "consumers.assigned{}": "1",
		"consumer.events{consumer=b,late=false}": "0", "consumer.events{consumer=a,late=false}": "none", "consumer.position{consumer=b}": "> 0",
	})
	second.blocked(d)
	second.all(func(m *metrics.Metric) bool { return !ofJobs(m) })
}

func (p *probe) committed(d *pgtest.Database) {
	p.t.Helper()
	Commit(p.t, Append(p.t, d.DB, "good", make([]store.Event, 5)...))
	p.await("five events", map[string]string{
		"log.head{}": "5", "frontier.safe{}": "5", "frontier.settled{}": "5",
		"consumer.position{consumer=a}": "5", "consumer.lag{consumer=a}": "0", "consumer.behind{consumer=a}": "0", "consumer.oldest.age{consumer=a}": "0",
		"consumer.events{consumer=a,late=false}": "5", "consumer.events{consumer=b,late=false}": "5", "consumer.events{consumer=a,late=true}": "0",
		"consumer.batches{consumer=a,outcome=committed}": "> 0", "consumer.batches{consumer=a,outcome=failed}": "0",
		"delivery.duration{consumer=a}": "5", "delivery.duration{consumer=b}": "5",
		"batch.duration{consumer=a,part=read}": "> 0", "batch.duration{consumer=a,part=guard}": "> 0",
		"batch.duration{consumer=a,part=handle}": "> 0", "batch.duration{consumer=a,part=commit}": "> 0",
	})
}

func (p *probe) failed(d *pgtest.Database) {
	p.t.Helper()
	Commit(p.t, Append(p.t, d.DB, "bad", store.Event{}))
	p.await("an event that fails", map[string]string{
		"consumer.batches{consumer=a,outcome=failed}": "2", "consumer.retries{consumer=a,cause=handler}": "> 0", "consumer.retries{consumer=a,cause=database}": "0",
		"letters.added{consumer=a}": "1", "letters.added{consumer=b}": "1", "letters.open{consumer=a}": "1", "consumer.position{consumer=a}": "6",
		"consumer.events{consumer=a,late=false}": "5", "delivery.duration{consumer=a}": "5",
	})
}

// skipped has a transaction roll back (7), and another stay open (9) for too long.
func (p *probe) skipped(d *pgtest.Database) {
	p.t.Helper()
	if err := Append(p.t, d.DB, "void", store.Event{}).Rollback(); err != nil {
		p.t.Fatal(err)
	}
	Commit(p.t, Append(p.t, d.DB, "good", store.Event{}))
	p.await("a transaction that rolls back", map[string]string{
		"consumer.positions.skipped{consumer=a,state=void}": "1", "consumer.positions.skipped{consumer=a,state=open}": "0", "consumer.position{consumer=a}": "8",
	})
	open := Append(p.t, d.DB, "late", store.Event{})
	Commit(p.t, Append(p.t, d.DB, "good", store.Event{}))
	p.await("a transaction that stays open", map[string]string{
		"consumer.positions.skipped{consumer=a,state=void}": "1", "consumer.positions.skipped{consumer=a,state=open}": "1",
		"consumer.positions.skipped{consumer=a,state=late}": "0", "consumer.position{consumer=a}": "10", "frontier.safe{}": "10", "frontier.settled{}": "8",
		"open_ranges{consumer=a}": "1", "frontier.blockers{state=passed}": "1", "frontier.blockers{state=holding}": "0", "frontier.blocked.age{}": "0",
	})
	Commit(p.t, open)
	p.await("its end", map[string]string{
		"consumer.positions.skipped{consumer=a,state=late}": "1", "consumer.events{consumer=a,late=true}": "1", "consumer.events{consumer=a,late=false}": "7",
		"open_ranges{consumer=a}": "0", "frontier.blockers{state=passed}": "0", "frontier.settled{}": "10", "delivery.duration{consumer=a}": "8",
	})
}

func (p *probe) paused(t *testing.T, d *pgtest.Database, o *ops.Operator) {
	t.Helper()
	if err := o.Pause(t.Context(), "a", by); err != nil {
		t.Fatal(err)
	}
	Commit(t, Append(t, d.DB, "good", make([]store.Event, 3)...))
	p.await("a pause", map[string]string{
		"consumer.paused{consumer=a}": "1", "consumer.paused{consumer=b}": "0", "consumer.lag{consumer=a}": "3", "consumer.behind{consumer=a}": "3",
		"consumer.oldest.age{consumer=a}": "> 0", "consumer.oldest.age{consumer=b}": "0", "worker.wakeups{source=changes}": "> 0",
	})
	if err := o.Resume(t.Context(), "a", by); err != nil {
		t.Fatal(err)
	}
	p.await("its end", map[string]string{"consumer.paused{consumer=a}": "0", "consumer.lag{consumer=a}": "0", "consumer.oldest.age{consumer=a}": "0"})
}

// replayed has a consumer handle one aggregate again. It has had the effects.
func (p *probe) replayed(t *testing.T, o *ops.Operator) {
	t.Helper()
	before := p.read()["pgfrontier.consumer.events{consumer=a,late=true}"]
	if err := o.Replay(t.Context(), "a", "Order", "late", by); err != nil {
		t.Fatal(err)
	}
	p.await("a replay", map[string]string{
		"consumer.events{consumer=a,late=true}": fmt.Sprint(before + 1), "delivery.duration{consumer=a}": "11", "letters.open{consumer=a}": "1",
	})
}

// forgetful is the consumer "a" with rows in the table extra, of which no event is the reason.
type forgetful struct{ *picky }

func (forgetful) Forget(ctx context.Context, tx *sql.Tx, _, aggregateID string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM extra WHERE id = $1`, aggregateID)
	return err
}

// verified verifies aggregates without rows, and with rows that should not be there.
func (p *probe) verified(t *testing.T, d *pgtest.Database, o *ops.Operator) {
	t.Helper()
	d.Exec(t, `CREATE TABLE extra (id text)`)
	v := ops.Verification{Consumer: forgetful{&picky{name: "a"}}, Log: Store(), AggregateType: "Order", Rows: `SELECT * FROM extra WHERE id = $1`}
	ctx, cancel := context.WithCancel(context.Background())
	end := run(t, func(context.Context) error { return o.VerifyEvery(ctx, v, time.Second, p.Observer()) }, cancel)
	p.await("right rows", map[string]string{"consumer.verified{consumer=a,outcome=right}": "> 0", "consumer.verified{consumer=a,outcome=differs}": "none"})
	d.Exec(t, `INSERT INTO extra VALUES ('good'), ('late')`)
	p.await("rows that differ", map[string]string{"consumer.verified{consumer=a,outcome=differs}": "> 0", "consumer.verified{consumer=a,outcome=failed}": "none"})
	end()
}

// altered takes from the log what its proof rests on.
func (p *probe) altered(d *pgtest.Database) {
	p.t.Helper()
	d.Exec(p.t, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	p.await("a sequence with a cache", map[string]string{"frontier.up{}": "0", "frontier.read.age{}": "> 0.5", "consumer.behind{consumer=a}": "0"})
	d.Exec(p.t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	p.await("a sequence without", map[string]string{"frontier.up{}": "1", "consumer.behind{consumer=a}": "0"})
}

// blocked has a transaction hold back a worker that waits for it.
func (p *probe) blocked(d *pgtest.Database) {
	p.t.Helper()
	open := Append(p.t, d.DB, "slow", store.Event{})
	Commit(p.t, Append(p.t, d.DB, "good", store.Event{}))
	p.await("a transaction that is waited for", map[string]string{
		"frontier.blockers{state=holding}": "1", "frontier.blockers{state=passed}": "0", "frontier.blocked.age{}": "> 0.2", "frontier.still{}": "> 0.1",
		"consumer.lag{consumer=b}": "0", "consumer.behind{consumer=b}": "> 0", "consumer.oldest.age{consumer=b}": "> 0.1",
	})
	Commit(p.t, open)
	p.await("its end", map[string]string{
		"frontier.blockers{state=holding}": "0", "frontier.blocked.age{}": "0", "frontier.still{}": "0", "consumer.behind{consumer=b}": "0",
		"consumer.events{consumer=b,late=false}": "2", "worker.heartbeat.age{}": "> 0",
	})
}
