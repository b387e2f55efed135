package postgres_test

import (
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestReadReturnsAppendedEvents(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		at := time.Date(2024, 2, 29, 23, 59, 59, 123456789, time.FixedZone("", 5*3600))
		full := store.Event{
			AggregateType: "Order", AggregateID: `o'"\1`, EventType: "Placed", EventID: uuid.New(), EventVersion: 3,
			Payload:  []byte{0, 255, '\\', 'x', '"', '\''},
			Metadata: []byte(`{"q": "\"\\ü{},NULL", "n": [1, null]}`),
			TraceID:  sql.NullString{Valid: true}, CorrelationID: sql.NullString{String: `NULL`, Valid: true},
			CausationID: sql.NullString{String: `\"`, Valid: true}, CreatedAt: at,
		}
		bare := store.Event{AggregateType: "Order", AggregateID: `o'"\1`, EventType: "Paid", EventID: uuid.New()}
		result := mustAppend(t, defaultStore, db, store.NoStream(), full, bare, again(full))

		read, err := defaultStore.ReadEvents(t.Context(), db, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(read, result.Events) {
			t.Fatalf("read\n%+v\nappended\n%+v", read, result.Events)
		}
		if result.FromVersion() != 0 || result.ToVersion() != 3 {
			t.Errorf("versions %d to %d, want 0 to 3", result.FromVersion(), result.ToVersion())
		}
		for i, e := range read {
			if e.AggregateVersion != int64(i+1) || e.GlobalPosition != result.GlobalPositions[i] || i > 0 && e.GlobalPosition <= read[i-1].GlobalPosition {
				t.Errorf("event %d has version %d and position %d, the result's is %d", i, e.AggregateVersion, e.GlobalPosition, result.GlobalPositions[i])
			}
		}
		want := store.PersistedEvent{
			GlobalPosition: read[0].GlobalPosition, AggregateVersion: 1,
			AggregateType: "Order", AggregateID: full.AggregateID, EventType: "Placed", EventID: full.EventID, EventVersion: 3,
			Payload: full.Payload, Metadata: []byte(`{"n": [1, null], "q": "\"\\ü{},NULL"}`),
			TraceID: full.TraceID, CorrelationID: full.CorrelationID, CausationID: full.CausationID,
			CreatedAt: at.Truncate(time.Microsecond).UTC(),
		}
		if !reflect.DeepEqual(read[0], want) {
			t.Errorf("got  %+v\nwant %+v", read[0], want)
		}
		if got := read[1]; got.EventVersion != 1 || got.Payload == nil || len(got.Payload) != 0 || got.Metadata != nil || got.TraceID.Valid || time.Since(got.CreatedAt).Abs() > time.Hour {
			t.Errorf("the defaults of a bare event: %+v", got)
		}
	})
}

// again returns a new event with the content of e.
func again(e store.Event) store.Event {
	e.EventID, e.EventType = uuid.New(), "Placed again"
	return e
}

func TestExpectedVersions(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		one := func() store.Event { return newEvent("Order", "1") }
		for i, step := range []struct {
			expected store.ExpectedVersion
			events   int
			want     int64 // the version after, 0 for a conflict
		}{
			{store.Exact(1), 1, 0},
			{store.NoStream(), 2, 2},
			{store.NoStream(), 1, 0},
			{store.Exact(0), 1, 0},
			{store.ExpectedVersion{}, 1, 0},
			{store.Exact(1), 1, 0},
			{store.Exact(3), 1, 0},
			{store.Exact(2), 100, 102},
			{store.Any(), 1, 103},
			{store.Exact(103), 1, 104},
		} {
			events := newEvents(step.events-1, "Order", "1")
			inTx(t, db, func(tx *sql.Tx) {
				before := int64(count(t, tx, `SELECT count(*) FROM events`))
				result, err := defaultStore.Append(t.Context(), tx, step.expected, append(events, one()))
				if step.want > 0 {
					if err != nil || result.ToVersion() != step.want || result.FromVersion() != before {
						t.Errorf("step %d: got %v, %v", i, result, err)
					}
					return
				}
				var conflict *storepostgres.ConflictError
				if !errors.Is(err, store.ErrOptimisticConcurrency) || !errors.As(err, &conflict) {
					t.Fatalf("step %d: got %v, want a conflict", i, err)
				}
				if conflict.Actual != before || conflict.Expected != step.expected || conflict.AggregateID != "1" || conflict.Err != nil {
					t.Errorf("step %d: %+v, the version is %d", i, conflict, before)
				}
				// The transaction can still be used.
				if _, err := defaultStore.Append(t.Context(), tx, store.NoStream(), newEvents(1, "Audit", uuid.NewString())); err != nil {
					t.Errorf("step %d: an append after a conflict: %v", i, err)
				}
				if _, err := tx.Exec(`DELETE FROM events WHERE aggregate_type = 'Audit'`); err != nil {
					t.Error(err)
				}
			})
		}
		if head := count(t, db, `SELECT aggregate_version FROM aggregate_heads WHERE aggregate_type = 'Order'`); head != 104 {
			t.Errorf("the head is at %d, want 104", head)
		}
	})
}

// Database errors are told apart with every driver.
func TestDatabaseErrors(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		first := newEvent("Order", "1")
		mustAppend(t, defaultStore, db, store.NoStream(), first)
		attempt := func(isolation string, during func(), expected store.ExpectedVersion, e store.Event) error {
			tx, end := begin(t, db)
			defer end()
			if err := tx.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL `+isolation); err != nil {
				t.Fatal(err)
			}
			return in(tx, func(tx *sql.Tx) error {
				count(t, tx, `SELECT count(*) FROM events`) // takes the snapshot
				during()
				_, err := defaultStore.Append(t.Context(), tx, expected, []store.Event{newEvent("Other", uuid.NewString())})
				if err != nil {
					t.Fatal(err)
				}
				_, err = defaultStore.Append(t.Context(), tx, expected, []store.Event{e})
				return err
			})
		}
		nothing := func() {}

		twin := newEvent("Order", "1")
		twin.EventID = first.EventID
		err := attempt("READ COMMITTED", nothing, store.Any(), twin)
		if !errors.Is(err, storepostgres.ErrDuplicateEventID) || errors.Is(err, store.ErrOptimisticConcurrency) || !strings.Contains(err.Error(), first.EventID.String()) {
			t.Errorf("a duplicate EventID: %v", err)
		}

		wantConflict := func(what, code string, err error) {
			t.Helper()
			var conflict *storepostgres.ConflictError
			if !errors.Is(err, store.ErrOptimisticConcurrency) || !errors.As(err, &conflict) || conflict.Err == nil || conflict.Actual != -1 {
				t.Errorf("%s: %v", what, err)
			}
			if got := sqlState(t, err); got != code {
				t.Errorf("%s: SQLSTATE %s, want %s", what, got, code)
			}
		}
		wantConflict("an aggregate changed since the snapshot", "40001", attempt("REPEATABLE READ", func() {
			mustAppend(t, defaultStore, db, store.Exact(1), newEvent("Order", "1"))
		}, store.Any(), newEvent("Order", "1")))
		wantConflict("an aggregate made since the snapshot", "40001", attempt("SERIALIZABLE", func() {
			mustAppend(t, defaultStore, db, store.NoStream(), newEvent("Order", "2"))
		}, store.NoStream(), newEvent("Order", "2")))
		wantConflict("an event that the head does not know of", "23505", attempt("READ COMMITTED", func() {
			if _, err := db.Exec(`DELETE FROM aggregate_heads WHERE aggregate_id = $1`, "2"); err != nil {
				t.Fatal(err)
			}
		}, store.NoStream(), newEvent("Order", "2")))

		if _, err := db.Exec(`SELECT setval('events_global_position_seq', 1, false)`); err != nil {
			t.Fatal(err)
		}
		tx, end := begin(t, db)
		defer end()
		err = in(tx, func(tx *sql.Tx) error {
			_, err := defaultStore.Append(t.Context(), tx, store.Any(), newEvents(1, "Order", "3"))
			return err
		})
		if err == nil || errors.Is(err, store.ErrOptimisticConcurrency) || errors.Is(err, storepostgres.ErrDuplicateEventID) || sqlState(t, err) != "23505" {
			t.Errorf("a position that is taken: %v", err)
		}
	})
}

func sqlState(t *testing.T, err error) string {
	t.Helper()
	var ofPgx *pgconn.PgError
	var ofPq *pq.Error
	switch {
	case errors.As(err, &ofPgx):
		return ofPgx.Code
	case errors.As(err, &ofPq):
		return string(ofPq.Code)
	}
	t.Errorf("%v is no database error", err)
	return ""
}

// Append refuses positions below 1, since consumers begin at position 1.
func TestAppendRefusesPositionsBelowOne(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq MINVALUE -1 START -1 RESTART`)
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	_, err = defaultStore.Append(t.Context(), tx, store.NoStream(), newEvents(3, "Order", "1"))
	if err == nil || !strings.Contains(err.Error(), "position -1") || !strings.Contains(err.Error(), "MINVALUE 1 START 1 RESTART 1") {
		t.Fatalf("Append returned %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq MINVALUE 1 START 1 RESTART 1`)
	if r := mustAppend(t, defaultStore, d.DB, store.NoStream(), newEvent("Order", "1")); r.GlobalPositions[0] != 1 {
		t.Errorf("then the position is %d", r.GlobalPositions[0])
	}
}

// For a role without SELECT on the events, the server omits the columns from the error's
// detail.
func TestErrorsWithoutDetail(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	first := newEvent("Order", "1")
	mustAppend(t, defaultStore, d.DB, store.NoStream(), first)
	d.Exec(t, `ALTER TABLE events ENABLE ROW LEVEL SECURITY`)
	d.Exec(t, `CREATE POLICY all_rows ON events USING (true)`)
	role := "appender_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	defer d.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role)
	d.Exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	d.Exec(t, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role)

	attempt := func(e store.Event) (err error) {
		tx, err := d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec(`SET LOCAL ROLE ` + role); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(`DELETE FROM aggregate_heads`); err != nil {
			t.Fatal(err)
		}
		_, err = defaultStore.Append(t.Context(), tx, store.NoStream(), []store.Event{e})
		return err
	}
	elsewhere := newEvent("Order", "2")
	elsewhere.EventID = first.EventID
	if err := attempt(elsewhere); !errors.Is(err, storepostgres.ErrDuplicateEventID) {
		t.Errorf("a duplicate EventID: %v", err)
	}
	if err := attempt(newEvent("Order", "1")); !errors.Is(err, store.ErrOptimisticConcurrency) {
		t.Errorf("a version that is taken: %v", err)
	}
}

// Append refuses wrong arguments before the database would abort the transaction.
func TestBadAppends(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	with := func(change func(e *store.Event)) []store.Event {
		events := newEvents(2, "Order", "1")
		change(&events[1])
		return events
	}
	twins := newEvents(2, "Order", "1")
	twins[1].EventID = twins[0].EventID
	inTx(t, d.DB, func(tx *sql.Tx) {
		for name, c := range map[string]struct {
			events []store.Event
			want   string
		}{
			"another type":     {with(func(e *store.Event) { e.AggregateType = "Cart" }), `aggregate Cart "1", the first one to Order "1"`},
			"another id":       {with(func(e *store.Event) { e.AggregateID = "2" }), `aggregate Order "2", the first one to Order "1"`},
			"no event id":      {with(func(e *store.Event) { e.EventID = uuid.Nil }), "uuid.New()"},
			"no event type":    {with(func(e *store.Event) { e.EventType = "" }), "EventType is empty"},
			"no type":          {newEvents(1, "", "1"), "AggregateType is empty"},
			"no id":            {newEvents(1, "Order", ""), "AggregateID is empty"},
			"version too low":  {with(func(e *store.Event) { e.EventVersion = -1 }), "EventVersion is -1"},
			"version too high": {with(func(e *store.Event) { e.EventVersion = 1 << 31 }), "EventVersion is 2147483648"},
			"year":             {with(func(e *store.Event) { e.CreatedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }), "year 10000"},
			"year in UTC":      {with(func(e *store.Event) { e.CreatedAt = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200)) }), "year 10000"},
			"NUL":              {with(func(e *store.Event) { e.EventType = "a\x00b" }), "EventType"},
			"NUL in an id":     {newEvents(1, "Order", "\x00"), "AggregateID"},
			"not UTF-8":        {with(func(e *store.Event) { e.TraceID = sql.NullString{String: "\xff", Valid: true} }), "TraceID"},
			"no JSON":          {with(func(e *store.Event) { e.Metadata = []byte("{") }), "Metadata is not JSON"},
			"JSON, not UTF-8":  {with(func(e *store.Event) { e.Metadata = []byte("\"\xff\"") }), "Metadata is not UTF-8"},
			"JSON with NUL":    {with(func(e *store.Event) { e.Metadata = []byte(`["\\u0000", "\u0000"]`) }), `\u0000`},
			"the same id":      {twins, "is that of event 1 too"},
		} {
			_, err := defaultStore.Append(t.Context(), tx, store.Any(), c.events)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q in it", name, err, c.want)
			}
		}
		if _, err := defaultStore.Append(t.Context(), tx, store.Any(), nil); !errors.Is(err, store.ErrNoEvents) {
			t.Errorf("no events: %v", err)
		}
		if _, err := defaultStore.Append(t.Context(), tx, store.Exact(-1), newEvents(1, "Order", "1")); err == nil || !strings.Contains(err.Error(), "-1") {
			t.Errorf("a negative version: %v", err)
		}
		if n := count(t, tx, `SELECT count(*) FROM events`); n != 0 {
			t.Errorf("%d events were appended", n)
		}
	})
	if _, err := defaultStore.Append(t.Context(), nil, store.Any(), newEvents(1, "Order", "1")); err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("a nil tx: %v", err)
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx, end := begin(t, db)
		defer end()
		err := in(tx, func(tx *sql.Tx) error {
			if _, err := defaultStore.Append(t.Context(), tx, store.NoStream(), newEvents(3, "Order", "1")); err != nil {
				return err
			}
			if n := count(t, tx, `SELECT count(*) FROM events`); n != 3 {
				t.Errorf("%d events inside the transaction, want 3", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if n := count(t, db, `SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM aggregate_heads)`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		result := mustAppend(t, defaultStore, db, store.NoStream(), newEvent("Order", "1"))
		if result.ToVersion() != 1 || !slices.Equal(result.GlobalPositions, []int64{4}) {
			t.Errorf("after the rollback: %+v", result)
		}
	})
}

func TestManyEventsAtOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		const n = 7000 // more than the protocol has parameters for
		events := newEvents(n, "Order", "1")
		for i := range events {
			events[i].Payload = make([]byte, i%7)
		}
		result := mustAppend(t, defaultStore, db, store.NoStream(), events...)
		stream, err := defaultStore.ReadAggregateStream(t.Context(), db, "Order", "1", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(stream.Events, result.Events) || stream.Version() != n || !slices.IsSorted(result.GlobalPositions) {
			t.Errorf("%d events were appended, %d read, or they differ", len(result.Events), stream.Len())
		}
	})
}

// Texts and NULLs are stored unchanged, also the text "NULL" under array_nulls = off.
func TestAppendUnderArrayNullsOff(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, db := range []*sql.DB{d.OpenSet(t, "array_nulls", "off"), d.OpenSet(t, "array_nulls", "on")} {
		s, stream := storepostgres.NewStore(nil), uuid.NewString()
		given := []store.Event{
			{AggregateType: "a", AggregateID: stream, EventType: "NULL", EventID: uuid.New()},
			{AggregateType: "a", AggregateID: stream, EventType: "e", EventID: uuid.New(), TraceID: sql.NullString{Valid: true}, CorrelationID: sql.NullString{String: "NULL", Valid: true},
				CausationID: sql.NullString{String: "=", Valid: true}, Metadata: []byte(`null`), CreatedAt: time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)},
		}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Append(t.Context(), tx, store.NoStream(), given)
		if err = errors.Join(err, tx.Commit()); err != nil {
			t.Fatal(err)
		}
		var got string
		err = db.QueryRow(`SELECT string_agg(concat_ws(' ', event_type, quote_nullable(trace_id), quote_nullable(correlation_id), quote_nullable(causation_id), quote_nullable(metadata::text), created_at > now() - interval '1 hour'), '; ' ORDER BY aggregate_version)
			FROM events WHERE aggregate_id = $1`, stream).Scan(&got)
		if want := `NULL NULL NULL NULL NULL t; e '' 'NULL' '=' 'null' f`; err != nil || got != want {
			t.Errorf("stored is %s, %v, want %s", got, err, want)
		}
	}
}
