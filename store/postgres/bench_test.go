package postgres_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// BenchmarkAppend measures one append inside an open transaction, without COMMIT.
func BenchmarkAppend(b *testing.B) {
	for _, channel := range []string{"", "worker_events"} {
		s := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel(channel)))
		for _, n := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("channel=%q/events=%d", channel, n), func(b *testing.B) {
				db := pgtest.New(b).DB
				inTx(b, db, func(tx *sql.Tx) {
					b.ReportAllocs()
					for b.Loop() {
						if _, err := s.Append(b.Context(), tx, store.Any(), newEvents(n, "Order", "1")); err != nil {
							b.Fatal(err)
						}
					}
				})
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

const benchmarkRows = 100_000

// fillForBenchmark appends events of 200 bytes: every 100th of type "rare",
// every other "hot".
func fillForBenchmark(b *testing.B) *sql.DB {
	d := pgtest.New(b)
	d.Exec(b, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, metadata)
		SELECT CASE WHEN i % 100 = 7 THEN 'rare' WHEN i % 2 = 0 THEN 'hot' ELSE 'other' END,
		       'aggregate-' || i / 10, i % 10 + 1, gen_random_uuid(), 'SomethingHappened', convert_to(repeat('x', 200), 'UTF8'), '{"user": "u-1"}'
		  FROM generate_series(1, $1::bigint) AS i`, benchmarkRows)
	d.Exec(b, `VACUUM (ANALYZE) events`)
	return d.DB
}

func BenchmarkReadEvents(b *testing.B) {
	db := fillForBenchmark(b)
	for _, window := range []int{1, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			b.ReportAllocs()
			read, after := 0, int64(0)
			for b.Loop() {
				events, err := defaultStore.ReadEvents(b.Context(), db, after, window)
				if err != nil || len(events) != window {
					b.Fatal(len(events), err)
				}
				read += window
				if after += int64(window); after+int64(window) > benchmarkRows {
					after = 0
				}
			}
			b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkReadScoped(b *testing.B) {
	db := fillForBenchmark(b)
	for _, types := range [][]string{{"hot"}, {"rare"}, {"hot", "rare", "other"}, {"none"}} {
		for _, window := range []int{100, 1000} {
			b.Run(fmt.Sprintf("types=%v/window=%d", types, window), func(b *testing.B) {
				b.ReportAllocs()
				read, after := 0, int64(0)
				for b.Loop() {
					page, err := defaultStore.ReadScoped(b.Context(), db, store.ScopedRange{After: after, UpTo: benchmarkRows, Types: types, Limit: window})
					if err != nil {
						b.Fatal(err)
					}
					read += len(page.Events)
					if after = page.Through; after == benchmarkRows {
						after = 0
					}
				}
				b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
	b.Run("missing", func(b *testing.B) {
		const stretch = 10_000
		for after := int64(0); b.Loop(); after = (after + stretch) % benchmarkRows {
			if missing, err := defaultStore.CountMissing(b.Context(), db, after, after+stretch); err != nil || missing.Count != 0 {
				b.Fatal(missing, err)
			}
		}
		b.ReportMetric(float64(b.N)*stretch/b.Elapsed().Seconds(), "positions/s")
	})
	b.Run("at the head", func(b *testing.B) {
		for b.Loop() {
			_, err := defaultStore.ReadScoped(b.Context(), db, store.ScopedRange{After: benchmarkRows - 1, UpTo: benchmarkRows, Types: []string{"hot"}, Limit: 100})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// The log has events of many types: all types in turn, rare types only, or mostly the first
// type.
func BenchmarkReadScopedManyTypes(b *testing.B) {
	for log, name := range map[string]string{
		"common": `(i % 1000)::text`,
		"rare":   `CASE WHEN i % 100 = 7 THEN (i / 100 % 1000)::text ELSE 'other' END`,
		"uneven": `CASE WHEN i % 100 = 7 THEN (i / 100 % 1000)::text ELSE '0' END`,
	} {
		d := pgtest.New(b)
		d.Exec(b, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, metadata)
			SELECT `+name+`, 'aggregate-' || i, 1, gen_random_uuid(), 'SomethingHappened', convert_to(repeat('x', 200), 'UTF8'), '{"user": "u-1"}'
			  FROM generate_series(1, $1::bigint) AS i`, benchmarkRows)
		d.Exec(b, `VACUUM (ANALYZE) events`)
		d.DB.SetMaxOpenConns(1)
		for _, n := range []int{2, 4, 8, 10, 100, 1000} {
			var types []string
			for i := range n {
				types = append(types, fmt.Sprint(i))
			}
			read := func(b *testing.B, first int64, window int) {
				found, after := 0, first
				for b.Loop() {
					page, err := defaultStore.ReadScoped(b.Context(), d.DB, store.ScopedRange{After: after, UpTo: benchmarkRows, Types: types, Limit: window})
					if err != nil {
						b.Fatal(err)
					}
					found += len(page.Events)
					if after = page.Through; after == benchmarkRows {
						after = first
					}
				}
				b.ReportMetric(float64(found)/b.Elapsed().Seconds(), "events/s")
			}
			for _, window := range []int{100, 1000} {
				b.Run(fmt.Sprintf("log=%s/types=%d/window=%d", log, n, window), func(b *testing.B) { read(b, 0, window) })
			}
			b.Run(fmt.Sprintf("log=%s/types=%d/at the head", log, n), func(b *testing.B) { read(b, benchmarkRows-1, 100) })
		}
	}
}
