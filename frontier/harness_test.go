package frontier

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

// patience is how long a test waits for an expected event.
const patience = pgtest.Patience

// eventLog reads the events table itself, so that these tests need no event store. It does not
// name the source of its positions.
type eventLog struct{}

func (eventLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	rows, err := q.QueryContext(ctx, `SELECT global_position FROM events WHERE global_position > $1::bigint ORDER BY 1 LIMIT $2::int`, after, limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
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

// namedLog is an eventLog that names the source of its positions.
type namedLog struct {
	eventLog
	table, column string
}

func (l namedLog) PositionColumn() (table, column string) { return l.table, l.column }

func events() namedLog { return namedLog{table: "events", column: "global_position"} }

// testConfig returns a Config whose Frontier logs its failures to the test.
func testConfig(t testing.TB, db *sql.DB) Config {
	return Config{
		DB:         db,
		Log:        events(),
		Token:      ident.Table{Name: "consumer_checkpoints_token"},
		Settled:    ident.Table{Name: "consumer_checkpoints_settled"},
		Changes:    ident.Table{Name: "consumer_checkpoints_changes"},
		StaleAfter: time.Minute,
		Interval:   20 * time.Millisecond,
		OnFailure:  func(err error) { t.Log("frontier failed, retrying:", err) },
		OnStale:    func(h Holder) { t.Logf("transaction stays open: %+v", h) },
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

// rollBackEvent makes a position void.
func rollBackEvent(t testing.TB, db *sql.DB) (position int64) {
	t.Helper()
	tx := begin(t, db)
	position = appendEvent(t, tx)
	if err := tx.Rollback(); err != nil {
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

func commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, q store.Querier, query string, args ...any) {
	t.Helper()
	if _, err := q.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
}

// run runs a frontier until the test ends or stop is called.
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

// await waits for a Value that satisfies ok.
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
			t.Fatalf("waited for %s: the value is %+v, blocked by %+v", what, *f.Value(), f.Blocked())
		}
	}
}

// awaitSettled waits until the frontier has settled a position and nothing above the position.
func awaitSettled(t testing.TB, f *Frontier, position int64) {
	t.Helper()
	v := await(t, f, fmt.Sprintf("settled %d", position), func(v *Value) bool { return v.Token != "" && v.Settled >= position })
	if v.Settled != position || v.Safe != position || len(v.Doubts) > 0 {
		t.Fatalf("want settled and safe %d, got %+v", position, *v)
	}
}

// stepper runs a session statement by statement, with a clock that only pass moves.
type stepper struct {
	testing.TB
	f     *Frontier
	s     *session
	clock *time.Time
}

func open(t testing.TB, cfg Config) stepper {
	t.Helper()
	f := New(cfg)
	s, err := f.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	clock := time.UnixMilli(0)
	s.now = func() time.Time { return clock }
	return stepper{t, f, s, &clock}
}

// step checks the next statements and runs them.
func (s stepper) step(statements ...statement) {
	s.Helper()
	for _, want := range statements {
		if do := s.s.machine.next(*s.clock).do; do != want {
			s.Fatalf("next is statement %d, want %d; the value is %+v", do, want, *s.f.Value())
		}
		if err := s.s.step(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
}

// rescan moves the clock past the pause before the next scan.
func (s stepper) rescan(after ...statement) {
	s.Helper()
	s.pass(lastPause + lastPause/2)
	s.step(append([]statement{readTail, scanLocks}, after...)...)
}

// raise moves the clock to the time at which the settled row is raised.
func (s stepper) raise() {
	s.Helper()
	s.pass(time.Second)
	s.step(raiseSettled)
}

// wake delivers a notification.
func (s stepper) wake() {
	s.Helper()
	s.f.Wake()
	if !s.s.wait(s.Context()) {
		s.Fatal(s.Context().Err())
	}
}

func (s stepper) pass(d time.Duration) { *s.clock = s.clock.Add(d) }

func (s stepper) published(settled, safe int64, doubts ...store.Range) {
	s.Helper()
	if v := s.f.Value(); v.Token == "" || v.Settled != settled || v.Safe != safe || !slices.Equal(v.Doubts, doubts) {
		s.Fatalf("published %+v, want settled %d, safe %d, doubts %v", *v, settled, safe, doubts)
	}
}

// start runs the statements with which a session on a fresh database begins.
func (s stepper) start() {
	s.Helper()
	s.step(readStart, insertToken, readStart, placeSettled, readStart)
}
