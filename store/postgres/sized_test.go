package postgres_test

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
)

// Pages that are bounded by bytes make up the whole log. Each page begins after the previous
// page, and ends with the event that reaches the bound.
func TestReadsBoundedByBytes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	sizes := []int{0, 10, 200, 3_000, 100_000, tier.Amount(300_000, 3_000_000)}
	rapid.Check(t, func(t *rapid.T) {
		if _, err := d.DB.Exec(`TRUNCATE events`); err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 12).Draw(t, "events")
		heaviest := rapid.IntRange(1, len(sizes)).Draw(t, "heaviest")
		for p := 1; p <= n; p++ {
			size := rapid.SampledFrom(sizes[:heaviest]).Draw(t, "size")
			if _, err := d.DB.Exec(`INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, metadata)
				VALUES ($1::bigint, CASE WHEN $3::bool THEN 'A' ELSE 'B' END, 'x', $1::bigint, gen_random_uuid(), 'E', convert_to(repeat('x', $2::int), 'UTF8'), CASE WHEN $3::bool THEN '{"a": 1}'::jsonb END)`,
				p, size, rapid.Bool().Draw(t, "of A")); err != nil {
				t.Fatal(err)
			}
		}
		limit := rapid.IntRange(1, 14).Draw(t, "limit")
		maxBytes := rapid.SampledFrom([]int{1, 500, 10_000, 250_000}).Draw(t, "bytes")
		types := rapid.SampledFrom([][]string{nil, {"A"}, {"A", "B"}}).Draw(t, "types")
		want, err := defaultStore.ReadEvents(t.Context(), d.DB, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []store.PersistedEvent
		for after, more := int64(0), true; more; {
			var page []store.PersistedEvent
			through := int64(0)
			if types == nil {
				page, more, err = defaultStore.ReadSized(t.Context(), d.DB, after, limit, maxBytes)
				if more && err == nil {
					through = page[len(page)-1].GlobalPosition
				}
			} else {
				var s store.ScopedPage
				s, err = defaultStore.ReadScoped(t.Context(), d.DB, store.ScopedRange{After: after, UpTo: int64(n), Types: types, Limit: limit, MaxBytes: maxBytes})
				page, through, more = s.Events, s.Through, s.Through < int64(n)
			}
			if err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for i := range page {
				if bytes >= maxBytes {
					t.Errorf("after %d: %d bytes come before event %d of the page, at most %d are allowed", after, bytes, i, maxBytes)
				}
				bytes += len(page[i].Payload)
			}
			if len(page) > limit {
				t.Errorf("%d events, at most %d are allowed", len(page), limit)
			}
			got, after = append(got, page...), through
		}
		if len(types) == 1 {
			all := want
			want = nil
			for _, e := range all {
				if e.AggregateType == "A" {
					want = append(want, e)
				}
			}
		}
		if !slices.EqualFunc(got, want, func(a, b store.PersistedEvent) bool { return reflect.DeepEqual(a, b) }) {
			t.Errorf("%d events in pages, %d in all", len(got), len(want))
		}
	})
}
