package postgres_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
)

func TestReadRangesMatchesReference(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	rapid.Check(t, func(t *rapid.T) {
		if _, err := db.Exec(`DELETE FROM events`); err != nil {
			t.Fatal(err)
		}
		present := map[int64]string{}
		for _, p := range rapid.SliceOfNDistinct(rapid.Int64Range(1, 60), 0, 30, rapid.ID).Draw(t, "present") {
			present[p] = "A"
		}
		insertAt(t, db, present)
		for range tier.Amount(10, 30) { // ranges are cheaper than tables
			var ranges []store.Range
			for after := int64(0); after < 60 && len(ranges) < 8; {
				first := after + rapid.Int64Range(1, 12).Draw(t, "distance")
				last := first + rapid.Int64Range(0, 8).Draw(t, "length")
				ranges, after = append(ranges, store.Range{First: first, Last: last}), last
			}
			ranges = ranges[:rapid.IntRange(0, len(ranges)).Draw(t, "ranges")]
			limit := rapid.IntRange(1, 12).Draw(t, "limit")
			var want []int64
			for _, r := range ranges {
				for p := r.First; p <= r.Last && len(want) < limit; p++ {
					if present[p] != "" {
						want = append(want, p)
					}
				}
			}
			events, err := defaultStore.ReadRanges(context.Background(), db, ranges, limit)
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, e := range events {
				got = append(got, e.GlobalPosition)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v of %v, at most %d: got %v, want %v", ranges, present, limit, got, want)
			}
		}
	})
}

func TestReadRangesWithEachDriver(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		want := mustAppend(t, defaultStore, db, store.NoStream(), newEvents(6, "A", "1")...).Events
		got, err := defaultStore.ReadRanges(t.Context(), db, []store.Range{{First: 2, Last: 3}, {First: 5, Last: 5}, {First: 7, Last: 5_000_000_000}}, 10)
		if err != nil || len(got) != 3 {
			t.Fatalf("%d events, %v", len(got), err)
		}
		for i, at := range []int{1, 2, 4} {
			if got[i].EventID != want[at].EventID || string(got[i].Payload) != string(want[at].Payload) {
				t.Errorf("event %d is %+v, want %+v", i, got[i], want[at])
			}
		}
		if _, err := defaultStore.ReadRanges(t.Context(), db, nil, 0); err == nil || !strings.Contains(err.Error(), "limit is 0") {
			t.Errorf("a limit of 0: %v", err)
		}
	})
}
