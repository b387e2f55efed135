package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// scale notes what is read.
type scale struct {
	most   atomic.Int64 // bytes of the heaviest read
	events atomic.Int64 // of all reads
}

// weighed is a store that notes what is read.
type weighed struct {
	*storepostgres.Store
	*scale
}

type weighedBound struct {
	store.BoundLog
	*scale
}

func (w weighed) Bind(ctx context.Context, q store.Querier, incarnation string) (store.BoundLog, error) {
	bound, err := w.Store.Bind(ctx, q, incarnation)
	return weighedBound{bound, w.scale}, err
}

func (w weighed) Binds(log store.Log) bool { return log == store.Log(w) }

func (w weighedBound) PositionColumn() (table, column string) {
	return w.BoundLog.(store.SequenceNamer).PositionColumn()
}

func (w weighedBound) At(incarnation string) store.Log {
	return weighed{w.BoundLog.At(incarnation).(*storepostgres.Store), w.scale}
}

func (s *scale) note(events []store.PersistedEvent) {
	s.events.Add(int64(len(events)))
	n := int64(0)
	for i := range events {
		n += int64(len(events[i].Payload) + len(events[i].Metadata))
	}
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
}

func (w weighed) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	events, err := w.Store.ReadEvents(ctx, q, after, limit)
	w.note(events)
	return events, err
}

func (w weighed) ReadSized(ctx context.Context, q store.Querier, after int64, limit, maxBytes int) ([]store.PersistedEvent, bool, error) {
	events, more, err := w.Store.ReadSized(ctx, q, after, limit, maxBytes)
	w.note(events)
	return events, more, err
}

func (w weighed) ReadScoped(ctx context.Context, q store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	page, err := w.Store.ReadScoped(ctx, q, r)
	w.note(page.Events)
	return page, err
}

// appendHeavy commits n events of so many bytes, all at once.
func appendHeavy(t testing.TB, d *pgtest.Database, n, size int) {
	t.Helper()
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT 'Order', 'heavy', i, gen_random_uuid(), 'Happened', convert_to(repeat('x', $2::int), 'UTF8')
		FROM generate_series(1, $1::int) AS i`, n, size)
}

// Large events behind small ones: no read brings more than it may, whether the
// consumers are at the end of the log or far behind, and whatever the batches.
func TestReadsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	const small, large, size = 5, 3 * bounded.MaxBytes >> 20, 1 << 20
	for _, behind := range []bool{false, true} {
		for _, batchSize := range []int{1, 1000} {
			t.Run(fmt.Sprintf("behind=%v batch=%d", behind, batchSize), func(t *testing.T) {
				t.Parallel()
				d := newLog(t)
				var read scale
				begin := func() {
					runWorker(t, worker.New(d.DB, weighed{newStore(), &read}, []consumer.Consumer{
						&ledger{name: "all"}, &scopedLedger{ledger{name: "some", types: []string{"Order"}}},
					}, append(quick(), worker.WithBatchSize(batchSize))...))
				}
				if !behind {
					begin()
				}
				for i := range small {
					appendN(t, d.DB, "Order", "light", 1)
					if !behind {
						awaitHandled(t, d.DB, "all", upTo(int64(i+1))...)
					}
				}
				appendHeavy(t, d, large, size)
				if behind {
					begin()
				}
				awaitHandled(t, d.DB, "all", upTo(small+large)...)
				awaitHandled(t, d.DB, "some", upTo(small+large)...)
				if most := read.most.Load(); most < size || most > bounded.MaxBytes+size {
					t.Errorf("one read brought %d bytes, at most %d and an event are allowed", most, bounded.MaxBytes)
				}
			})
		}
	}
}
