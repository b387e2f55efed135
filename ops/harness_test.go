package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) {
	// Each check plays a script on a real server. The command line may set another number of
	// checks.
	checks := "3"
	if tier.IsLong() {
		checks = "60"
	}
	_ = flag.Set("rapid.checks", checks)
	pgtest.Main(m)
}

const patience = pgtest.Patience

var by = ops.By{Operator: "ann", Reason: "a test"}

// await polls until done returns true, and fails the test after a long time.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !pgtest.Poll(done) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// site is a database with the library's tables, a ledger, and an operator.
type site struct {
	*pgtest.Database
	*ops.Operator
}

func newSite(t testing.TB) site {
	t.Helper()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL, replay BOOLEAN, tx BIGINT NOT NULL DEFAULT txid_current())`)
	return site{d, operator(t, d.DB)}
}

func operator(t testing.TB, db *sql.DB) *ops.Operator {
	t.Helper()
	o, err := ops.New(db)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// scan reads one row.
func (s site) scan(t testing.TB, query string, into ...any) {
	t.Helper()
	if err := s.DB.QueryRow(query).Scan(into...); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
}

func (s site) count(t testing.TB, query string) (n int64) {
	t.Helper()
	s.scan(t, query, &n)
	return n
}

// place gives the consumer "c" a checkpoint by SQL.
func (s site) place(t testing.TB, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', $1)
		ON CONFLICT (consumer_name) DO UPDATE SET last_position = excluded.last_position`, position)
}

// settle writes the settled row, as a frontier does.
func (s site) settle(t testing.TB, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled)
		SELECT ('events_global_position_seq'::regclass::oid::bigint << 32) | pg_relation_filenode('events_global_position_seq')::bigint, $1::bigint
		ON CONFLICT (log) DO UPDATE SET settled = excluded.settled`, position)
}

// open records an open range of the consumer "c", first seen long ago.
func (s site) open(t testing.TB, first, last int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at)
		VALUES ('c', gen_random_uuid(), $1::bigint, $2::bigint, $2::bigint - $1::bigint + 1, 'open', $2::bigint, $2::bigint, '2020-02-02')`, first, last)
}

// spans returns the consumer's audit in a state as text, in order of position.
func (s site) spans(t testing.TB, state string) (spans string) {
	t.Helper()
	if err := s.DB.QueryRow(`SELECT coalesce(string_agg(gap_position || '-' || gap_end || '/' || missing, ' ' ORDER BY gap_position, id), '')
		FROM consumer_gap_skips WHERE consumer_name = 'c' AND state = $1 AND (closed_at IS NULL) = ($1 = 'open')`, state).Scan(&spans); err != nil {
		t.Fatal(err)
	}
	return spans
}

func (s site) expectSpans(t testing.TB, state, want string) {
	t.Helper()
	if got := s.spans(t, state); got != want {
		t.Errorf("audited as %s: %q, want %q", state, got, want)
	}
}

// progress returns the checkpoint and the revision of the consumer "c".
func (s site) progress(t testing.TB) (position, revision int64) {
	t.Helper()
	s.scan(t, `SELECT last_position, revision FROM consumer_checkpoints WHERE consumer_name = 'c'`, &position, &revision)
	return position, revision
}

func (s site) expectProgress(t testing.TB, position, revision int64) {
	t.Helper()
	if p, r := s.progress(t); p != position || r != revision {
		t.Errorf("the checkpoint is %d with revision %d, want %d and %d", p, r, position, revision)
	}
}

// last returns the latest operation, and unmarshals its detail.
func (s site) last(t testing.TB, detail any) ops.Operation {
	t.Helper()
	all, err := s.Operations(t.Context(), ops.OperationFilter{}, 1)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d operations, %v", len(all), err)
	}
	if err := json.Unmarshal(all[0].Detail, detail); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}

// begin appends n events of one aggregate and leaves the transaction open. It waits up to
// patience for another transaction that locks the aggregate.
func (s site) begin(t testing.TB, aggregate string, n int) *sql.Tx {
	t.Helper()
	tx, err := s.DB.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]store.Event, n)
	for i := range events {
		events[i] = store.Event{AggregateType: "Order", AggregateID: aggregate, EventType: "Happened", EventID: uuid.New(), Payload: []byte(`{}`)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := newStore().Append(ctx, tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

func (s site) append(t testing.TB, aggregate string, n int) {
	t.Helper()
	end(t, s.begin(t, aggregate, n).Commit)
}

// burn draws n positions and rolls back.
func (s site) burn(t testing.TB, n int) {
	t.Helper()
	end(t, s.begin(t, "burnt", n).Rollback)
}

func end(t testing.TB, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// ledger is the consumer "c", which records its deliveries.
type ledger struct {
	before func(e store.PersistedEvent) error
}

func (l *ledger) Name() string { return "c" }

func (l *ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if l.before != nil {
		if err := l.before(e); err != nil {
			return err
		}
	}
	of, _ := consumer.Info(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position, replay) VALUES ('c', $1::bigint, $2::boolean)`, e.GlobalPosition, of.Replay)
	return err
}

// work runs a worker until the test ends or stop is called.
func (s site) work(t testing.TB, c consumer.Consumer, opts ...worker.Option) (stop func()) {
	t.Helper()
	return s.workWith(t, c, func(*worker.Worker) {}, opts...)
}

// workWith is work with a function made that is called before the worker runs.
func (s site) workWith(t testing.TB, c consumer.Consumer, made func(*worker.Worker), opts ...worker.Option) (stop func()) {
	t.Helper()
	w := worker.New(s.DB, newStore(), []consumer.Consumer{c}, append([]worker.Option{
		worker.WithDispatcherInterval(5 * time.Millisecond),
		worker.WithPollInterval(5 * time.Millisecond),
		worker.WithMaxPollInterval(20 * time.Millisecond),
		worker.WithHeartbeatInterval(100 * time.Millisecond),
		worker.WithHeartbeatTimeout(time.Minute), // a busy machine makes no worker dead
		worker.WithRebalanceInterval(100 * time.Millisecond),
		worker.WithStaleGapThreshold(10 * time.Millisecond),
		worker.WithMaxConsecutiveFailures(1_000_000),
	}, opts...)...)
	made(w)
	done := make(chan error, 1)
	go func() { done <- w.Start(context.Background()) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		w.Stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the worker ended with: %v", err)
			}
		case <-time.After(patience):
			t.Errorf("awaited for %v that the worker stops", patience)
		}
	}
	t.Cleanup(stop)
	return stop
}

// handled returns the positions in the ledger, in order of handling.
func (s site) handled(t testing.TB) string {
	t.Helper()
	var all string
	s.scan(t, `SELECT coalesce(string_agg(position::text, ' ' ORDER BY id), '') FROM ledger`, &all)
	return all
}

func (s site) awaitHandled(t testing.TB, want string) {
	t.Helper()
	if !pgtest.Poll(func() bool { return s.handled(t) == want }) {
		t.Fatalf("handled %q, want %q", s.handled(t), want)
	}
}

func (s site) awaitSettled(t testing.TB, position int64) {
	t.Helper()
	await(t, fmt.Sprintf("the settled row to reach %d", position), func() bool {
		return s.count(t, `SELECT coalesce(max(settled), 0) FROM consumer_checkpoints_settled`) >= position
	})
}

func (s site) awaitCheckpoint(t testing.TB, position int64) {
	t.Helper()
	await(t, fmt.Sprintf("the checkpoint to reach %d", position), func() bool {
		return s.count(t, `SELECT coalesce(max(last_position), 0) FROM consumer_checkpoints`) >= position
	})
}
