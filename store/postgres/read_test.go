package postgres_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
)

func TestReadEvents(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		latest := func() int64 {
			t.Helper()
			position, err := defaultStore.GetLatestGlobalPosition(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			return position
		}
		if got, err := defaultStore.ReadEvents(t.Context(), db, 0, 10); err != nil || len(got) != 0 || latest() != 0 {
			t.Fatalf("an empty log: %d events, %v, latest position %d", len(got), err, latest())
		}
		all := mustAppend(t, defaultStore, db, store.NoStream(), newEvents(50, "Order", "1")...).Events
		for _, c := range []struct {
			after       int64
			limit       int
			first, last int
		}{{0, 50, 0, 50}, {0, 1, 0, 1}, {-5, 3, 0, 3}, {10, 25, 10, 35}, {40, math.MaxInt, 40, 50}, {50, 10, 50, 50}, {math.MaxInt64, 10, 50, 50}} {
			got, err := defaultStore.ReadEvents(t.Context(), db, c.after, c.limit)
			if err != nil || !slices.EqualFunc(got, all[c.first:c.last], equal) {
				t.Errorf("after %d, limit %d: %d events, %v", c.after, c.limit, len(got), err)
			}
		}
		if got := latest(); got != 50 {
			t.Errorf("the latest position is %d, want 50", got)
		}
		for _, limit := range []int{0, -1} {
			if _, err := defaultStore.ReadEvents(t.Context(), db, 0, limit); err == nil || !strings.Contains(err.Error(), fmt.Sprint(limit)) {
				t.Errorf("limit %d: %v", limit, err)
			}
		}
		// A transaction and a connection are queriers too.
		inTx(t, db, func(tx *sql.Tx) {
			if got, err := defaultStore.ReadEvents(t.Context(), tx, 49, 10); err != nil || len(got) != 1 {
				t.Errorf("in a transaction: %d events, %v", len(got), err)
			}
		})
	})
}

func equal(a, b store.PersistedEvent) bool { return reflect.DeepEqual(a, b) }

func TestReadAggregateStream(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		mustAppend(t, defaultStore, db, store.NoStream(), newEvents(3, "Order", "2")...)
		all := mustAppend(t, defaultStore, db, store.NoStream(), newEvents(5, "Order", "1")...).Events
		mustAppend(t, defaultStore, db, store.NoStream(), newEvents(3, "Cart", "1")...)
		v := func(n int64) *int64 { return &n }
		for _, c := range []struct {
			from, to    *int64
			first, last int
		}{{nil, nil, 0, 5}, {v(1), v(5), 0, 5}, {v(2), nil, 1, 5}, {nil, v(2), 0, 2}, {v(3), v(3), 2, 3}, {v(6), v(9), 0, 0}, {v(0), v(0), 0, 0}, {v(4), v(99), 3, 5}} {
			got, err := defaultStore.ReadAggregateStream(t.Context(), db, "Order", "1", c.from, c.to)
			if err != nil || got.AggregateType != "Order" || got.AggregateID != "1" || !slices.EqualFunc(got.Events, all[c.first:c.last], equal) {
				t.Errorf("versions %d to %d: %+v, %v", c.first+1, c.last, got, err)
			}
		}
		if got, err := defaultStore.ReadAggregateStream(t.Context(), db, "Order", "3", nil, nil); err != nil || !got.IsEmpty() {
			t.Errorf("no such aggregate: %+v, %v", got, err)
		}
		for want, read := range map[string]func() (store.Stream, error){
			"fromVersion 3 is above toVersion 2": func() (store.Stream, error) {
				return defaultStore.ReadAggregateStream(t.Context(), db, "Order", "1", v(3), v(2))
			},
			"AggregateType is empty": func() (store.Stream, error) {
				return defaultStore.ReadAggregateStream(t.Context(), db, "", "1", nil, nil)
			},
			"AggregateID": func() (store.Stream, error) {
				return defaultStore.ReadAggregateStream(t.Context(), db, "Order", "\xff", nil, nil)
			},
		} {
			if _, err := read(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	})
}

// insertAt puts events at given positions, each with one of types.
func insertAt(t fataler, q store.Querier, types map[int64]string) {
	t.Helper()
	var values []string
	for position, name := range types {
		values = append(values, fmt.Sprintf("(%d, '%s')", position, name))
	}
	if len(values) == 0 {
		return
	}
	_, err := q.ExecContext(context.Background(), `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT position, name, position::text, 1, gen_random_uuid(), 'Happened', convert_to(position::text, 'UTF8')
		  FROM (VALUES `+strings.Join(values, ",")+`) AS v (position, name)`)
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// reference computes ReadScoped and CountMissing over a map, position by position. It is fast
// enough for small ranges only.
func reference(types map[int64]string, r store.ScopedRange) (positions []int64, through int64, missing store.Missing) {
	for p := r.After + 1; p <= r.UpTo && len(positions) < r.Limit; p++ {
		if name, ok := types[p]; ok && slices.Contains(r.Types, name) {
			positions = append(positions, p)
		}
	}
	through = r.UpTo
	if len(positions) == r.Limit {
		through = positions[r.Limit-1]
	}
	for p := r.After + 1; p <= through; p++ {
		if _, ok := types[p]; !ok {
			missing.First = cmp.Or(missing.First, p)
			missing.Last = p
			missing.Count++
		}
	}
	return positions, through, missing
}

func TestReadScopedMatchesReference(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	names := []string{"A", "B", "it's \"C\"\\", ""}
	rapid.Check(t, func(t *rapid.T) {
		if _, err := db.Exec(`DELETE FROM events`); err != nil {
			t.Fatal(err)
		}
		size := rapid.Int64Range(1, 40).Draw(t, "size")
		share := rapid.IntRange(0, 10).Draw(t, "share present, in tenths")
		types, apart := map[int64]string{}, rapid.SampledFrom([]int64{1, 20}).Draw(t, "apart")
		for p := apart; p <= size*apart; p += apart {
			if rapid.IntRange(1, 10).Draw(t, "draw") <= share {
				types[p] = rapid.SampledFrom(names).Draw(t, "type")
			}
		}
		quoted := map[int64]string{}
		for p, name := range types {
			quoted[p] = strings.ReplaceAll(name, "'", "''")
		}
		insertAt(t, db, quoted)
		for range tier.Amount(15, 50) { // ranges are cheaper than tables
			after := rapid.Int64Range(0, size+2).Draw(t, "after") * apart
			r := store.ScopedRange{
				After: after,
				UpTo:  rapid.Int64Range(after, (size+4)*apart).Draw(t, "up to"),
				Types: append(rapid.SliceOfN(rapid.SampledFrom(append(names, "none")), 1, 4).Draw(t, "types"), rapid.SampledFrom([][]string{nil, strings.Split("1234567", "")}).Draw(t, "more")...),
				Limit: rapid.IntRange(1, 12).Draw(t, "limit"),
			}
			got, err := defaultStore.ReadScoped(context.Background(), db, r)
			if err != nil {
				t.Fatal(err)
			}
			missing, err := defaultStore.CountMissing(context.Background(), db, r.After, got.Through)
			if err != nil {
				t.Fatal(err)
			}
			positions, through, wantMissing := reference(types, r)
			for i, e := range got.Events {
				if i >= len(positions) || e.GlobalPosition != positions[i] || string(e.Payload) != fmt.Sprint(positions[i]) || e.AggregateType != types[e.GlobalPosition] {
					t.Fatalf("%+v: event %d is %+v, want positions %v", r, i, e, positions)
				}
			}
			if len(got.Events) != len(positions) || got.Through != through || missing != wantMissing {
				t.Fatalf("%+v of %v:\ngot %d events, through %d, missing %+v\nwant %d, %d, %+v", r, types,
					len(got.Events), got.Through, missing, len(positions), through, wantMissing)
			}
		}
	})
}

func TestReadScopedWithEachDriver(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		mustAppend(t, defaultStore, db, store.NoStream(), newEvents(3, `it's "A"\`, "1")...)
		events := mustAppend(t, defaultStore, db, store.NoStream(), newEvents(2, "B", "1")...).Events
		const far = int64(5_000_000_000)
		insertAt(t, db, map[int64]string{far: "B"})
		last, err := defaultStore.ReadEvents(t.Context(), db, 5, 1)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			r       store.ScopedRange
			want    store.ScopedPage
			missing store.Missing
		}{
			"both events": {store.ScopedRange{UpTo: 5, Types: []string{"B", "B"}, Limit: 9},
				store.ScopedPage{Events: events, Through: 5}, store.Missing{}},
			"a full page": {store.ScopedRange{After: 3, UpTo: far, Types: []string{"B"}, Limit: 1},
				store.ScopedPage{Events: events[:1], Through: 4}, store.Missing{}},
			"over a huge hole": {store.ScopedRange{After: 4, UpTo: far, Types: []string{"B", `it's "A"\`}, Limit: 9},
				store.ScopedPage{Events: slices.Concat(events[1:], last), Through: far}, store.Missing{Range: store.Range{First: 6, Last: far - 1}, Count: far - 6}},
			"nothing, nothing missing": {store.ScopedRange{After: 1, UpTo: 5, Types: []string{"none"}, Limit: 9},
				store.ScopedPage{Through: 5}, store.Missing{}},
			"nothing but holes": {store.ScopedRange{After: 6, UpTo: 8, Types: []string{"B"}, Limit: 9},
				store.ScopedPage{Through: 8}, store.Missing{Range: store.Range{First: 7, Last: 8}, Count: 2}},
			"an empty range": {store.ScopedRange{After: 5, UpTo: 5, Types: []string{"B"}, Limit: 9},
				store.ScopedPage{Through: 5}, store.Missing{}},
		} {
			got, err := defaultStore.ReadScoped(t.Context(), db, c.r)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, c.want)
			}
			missing, err := defaultStore.CountMissing(t.Context(), db, c.r.After, got.Through)
			if err != nil || missing != c.missing {
				t.Errorf("%s: missing %+v, %v; want %+v", name, missing, err, c.missing)
			}
		}
	})
}

func TestBadScopedRanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	for want, r := range map[string]store.ScopedRange{
		"Limit is 0":              {UpTo: 1, Types: []string{"A"}},
		"After is -1":             {After: -1, UpTo: 1, Types: []string{"A"}, Limit: 1},
		"UpTo 4 is below After 5": {After: 5, UpTo: 4, Types: []string{"A"}, Limit: 1},
		"Types is empty":          {UpTo: 1, Limit: 1},
		"NUL":                     {UpTo: 1, Types: []string{"A\x00"}, Limit: 1},
		"UTF-8":                   {UpTo: 1, Types: []string{"\xff"}, Limit: 1},
	} {
		if _, err := defaultStore.ReadScoped(t.Context(), db, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q in it", r, err, want)
		}
	}
	for _, r := range []store.Range{{First: -1, Last: 5}, {First: 5, Last: 4}} {
		if _, err := defaultStore.CountMissing(t.Context(), db, r.First, r.Last); err == nil || !strings.Contains(err.Error(), "no range") {
			t.Errorf("CountMissing of %+v: got %v", r, err)
		}
	}
}

// An event whose time is outside of store.EarliestTime and store.LatestTime is read with the
// bound as its time.
func TestReadsOfEventsWithFarTimes(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		mustAppend(t, defaultStore, db, store.NoStream(), newEvents(6, "Order", "1")...)
		if _, err := db.ExecContext(t.Context(), `UPDATE events SET created_at = (ARRAY['-infinity', '4000-01-01 BC', '2024-01-02 03:04:05Z', '20000-01-01', '294276-12-31', 'infinity'])[global_position]::timestamptz`); err != nil {
			t.Fatal(err)
		}
		want := []time.Time{store.EarliestTime, store.EarliestTime, time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC), store.LatestTime, store.LatestTime, store.LatestTime}
		scoped := func(types []string, maxBytes int) ([]store.PersistedEvent, error) {
			page, err := defaultStore.ReadScoped(t.Context(), db, store.ScopedRange{UpTo: 6, Types: types, Limit: 10, MaxBytes: maxBytes})
			return page.Events, err
		}
		const large, small = 1 << 20, 1_000 // with the small one, the bytes are added up
		for name, read := range map[string]func() ([]store.PersistedEvent, error){
			"ReadEvents": func() ([]store.PersistedEvent, error) { return defaultStore.ReadEvents(t.Context(), db, 0, 10) },
			"ReadSized": func() (e []store.PersistedEvent, err error) {
				e, _, err = defaultStore.ReadSized(t.Context(), db, 0, 10, large)
				return e, err
			},
			"ReadSized, exact": func() (e []store.PersistedEvent, err error) {
				e, _, err = defaultStore.ReadSized(t.Context(), db, 0, 1_000, small)
				return e, err
			},
			"ReadScoped, one type":       func() ([]store.PersistedEvent, error) { return scoped([]string{"Order"}, 0) },
			"ReadScoped, types":          func() ([]store.PersistedEvent, error) { return scoped([]string{"Order", "Cart"}, 0) },
			"ReadScoped, types, by size": func() ([]store.PersistedEvent, error) { return scoped([]string{"Order", "Cart"}, large) },
			"ReadAggregateStream": func() ([]store.PersistedEvent, error) {
				s, err := defaultStore.ReadAggregateStream(t.Context(), db, "Order", "1", nil, nil)
				return s.Events, err
			},
		} {
			events, err := read()
			if err != nil || len(events) != len(want) {
				t.Errorf("%s: %d events, %v", name, len(events), err)
				continue
			}
			for i, e := range events {
				if !e.CreatedAt.Equal(want[i]) || e.GlobalPosition != int64(i+1) || e.EventID == uuid.Nil {
					t.Errorf("%s: event %d is %+v, want the time %v", name, i+1, e, want[i])
				}
			}
		}
	})
}

// The error of a row that cannot be read names the row's position.
func TestUnreadableEventIsNamed(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		mustAppend(t, defaultStore, db, store.NoStream(), newEvents(3, "Order", "1")...)
		for _, change := range []string{`ALTER TABLE events ALTER event_version DROP NOT NULL`, `UPDATE events SET event_version = NULL WHERE global_position = 2`} {
			if _, err := db.ExecContext(t.Context(), change); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := defaultStore.ReadEvents(t.Context(), db, 0, 10); err == nil || !strings.Contains(err.Error(), "the event at position 2: ") {
			t.Errorf("got %v", err)
		}
	})
}
