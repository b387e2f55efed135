package frontier

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// eventLog reads the events table by itself, so that these tests need no
// event store.
type eventLog struct{}

func (eventLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	rows, err := q.QueryContext(ctx, `SELECT global_position FROM events WHERE global_position > $1::bigint ORDER BY 1 LIMIT $2::int`, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var events []store.PersistedEvent
	for rows.Next() {
		var e store.PersistedEvent
		if err := rows.Scan(&e.GlobalPosition); err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, rows.Err()
}

func (eventLog) GetLatestGlobalPosition(ctx context.Context, q store.Querier) (head int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(global_position), 0) FROM events`).Scan(&head)
	return head, err
}

// namedLog says where its positions come from.
type namedLog struct {
	eventLog
	table, column string
}

func (l namedLog) PositionColumn() (table, column string) { return l.table, l.column }

func events() namedLog { return namedLog{table: "events", column: "global_position"} }

// testLogger shows what the frontier says when a test fails.
type testLogger struct {
	store.NoOpLogger
	t testing.TB
}

func (l testLogger) Info(_ context.Context, msg string, kv ...any) {
	l.t.Log(append([]any{msg}, kv...)...)
}
func (l testLogger) Error(_ context.Context, msg string, kv ...any) {
	l.t.Log(append([]any{msg}, kv...)...)
}

func testConfig(t testing.TB, db *sql.DB) Config {
	return Config{
		DB:         db,
		Log:        events(),
		Token:      ident.Table{Name: "consumer_checkpoints_token"},
		Settled:    ident.Table{Name: "consumer_checkpoints_settled"},
		StaleAfter: time.Minute,
		Interval:   20 * time.Millisecond,
		Logger:     testLogger{t: t},
	}
}

const insertEvent = `
INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
VALUES ('t', gen_random_uuid()::text, 1, gen_random_uuid(), 'e', '') RETURNING global_position`

// appendEvent appends an event and returns its position.
func appendEvent(t testing.TB, q store.Querier) (position int64) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), insertEvent).Scan(&position); err != nil {
		t.Fatal(err)
	}
	return position
}

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// run runs a frontier until the test ends, or stop is called.
func run(t testing.TB, cfg Config) (f *Frontier, stop func()) {
	t.Helper()
	f = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Run did not return after its context ended")
		}
	}
	t.Cleanup(stop)
	return f, stop
}

// await waits for a value that satisfies ok.
func await(t testing.TB, f *Frontier, what string, ok func(*Value) bool) *Value {
	t.Helper()
	deadline := time.After(patience)
	for {
		changed := f.Changed()
		if v := f.Value(); ok(v) {
			return v
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("awaited %s, the value is %s", what, describe(f.Value()))
		}
	}
}

func awaitSafe(t testing.TB, f *Frontier, position int64) *Value {
	t.Helper()
	return await(t, f, fmt.Sprintf("safe %d", position), func(v *Value) bool { return v.Token != "" && v.Safe >= position })
}

func describe(v *Value) string { return fmt.Sprintf("%+v", *v) }

func TestFollowsCommitsInOrder(t *testing.T) {
	d := pgtest.New(t)
	f, _ := run(t, testConfig(t, d.DB))
	for range 20 {
		position := appendEvent(t, d.DB)
		f.Wake()
		v := awaitSafe(t, f, position)
		if v.Safe != position || v.Settled != position || len(v.Doubts) > 0 {
			t.Fatalf("after position %d: %s", position, describe(v))
		}
	}
}

func TestRolledBackAppendIsVoidAtOnce(t *testing.T) {
	d := pgtest.New(t)
	f, _ := run(t, testConfig(t, d.DB))
	tx := begin(t, d.DB)
	appendEvent(t, tx)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	position := appendEvent(t, d.DB)
	if position != 2 {
		t.Fatalf("position %d, want 2", position)
	}
	if v := awaitSafe(t, f, 2); v.Settled != 2 {
		t.Fatal(describe(v))
	}
}
