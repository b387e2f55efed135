package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// partitioned is a ledger "c" in partitions.
type partitioned struct {
	ledger
	wish consumer.Partitions
}

func (p *partitioned) Partitions() consumer.Partitions { return p.wish }

func inPartitions(count int) *partitioned {
	return &partitioned{ledger{name: "c"}, consumer.Partitions{Count: count}}
}

// layout returns the units of consumer "c", in order.
func layout(t testing.TB, db *sql.DB) []string {
	t.Helper()
	return strings.Fields(one[string](t, db, `SELECT coalesce(string_agg(consumer_name, ' ' ORDER BY consumer_name COLLATE "C"), '') FROM consumer_checkpoints WHERE split_at IS NULL`))
}

// awaitLayout waits until consumer "c" has n partitions, each of them at work.
func awaitLayout(t testing.TB, db *sql.DB, n int) {
	t.Helper()
	var want []string
	for _, r := range partition.Cut(n) {
		want = append(want, partition.Name("c", r))
	}
	var got []string
	var owned, stale int
	if !pgtest.Poll(func() bool {
		got = layout(t, db)
		owned = one[int](t, db, `SELECT count(*) FROM consumer_assignments WHERE consumer_name IN (SELECT consumer_name FROM consumer_checkpoints WHERE split_at IS NULL)`)
		stale = one[int](t, db, `SELECT count(*) FROM consumer_assignments WHERE consumer_name NOT IN (SELECT consumer_name FROM consumer_checkpoints WHERE split_at IS NULL)`)
		return slices.Equal(got, want) && owned == n && stale == 0
	}) {
		t.Fatalf("the units are %q with %d owners and %d stale ones, want %q\nassigned: %s\nworkers: %s\ncheckpoints: %s", got, owned, stale, want,
			one[string](t, db, `SELECT coalesce(json_agg(a)::text, '') FROM consumer_assignments AS a`),
			one[string](t, db, `SELECT coalesce(json_agg(json_build_array(worker_id, partitions))::text, '') FROM worker_nodes`),
			one[string](t, db, `SELECT coalesce(json_agg(c)::text, '') FROM consumer_checkpoints AS c`))
	}
}

// awaitOnce waits until consumer "c" has handled all events, and demands that it
// did so once, and in order within each key.
func awaitOnce(t testing.TB, db *sql.DB, key string) {
	t.Helper()
	await(t, "every event to be handled", func() bool {
		return one[int](t, db, `SELECT count(*) FROM events WHERE global_position NOT IN (SELECT position FROM ledger WHERE consumer = 'c')`) == 0
	})
	if n := one[int](t, db, `SELECT count(*) - count(DISTINCT position) FROM ledger WHERE consumer = 'c'`); n > 0 {
		t.Errorf("%d events were handled twice", n)
	}
	if n := one[int](t, db, `
SELECT count(*) FROM (
	SELECT position < lag(position) OVER (PARTITION BY `+key+` ORDER BY id) AS back FROM ledger JOIN events ON global_position = position WHERE consumer = 'c'
) AS steps WHERE back`); n > 0 {
		t.Errorf("%d events were handled out of the order of their key", n)
	}
}

// load appends until it is told to stop: some transactions stay open for a while,
// and some roll back. It waits for a consumer that is 500 positions behind, or the work of a
// test would grow with the time that a slow machine takes.
func load(t testing.TB, db *sql.DB, aggregates int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if !pgtest.Poll(func() bool { return ctx.Err() != nil || behind(t, db) <= 500 }) {
					continue
				}
				tx, err := db.BeginTx(context.Background(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				id := fmt.Sprint("a", rand.IntN(aggregates))
				if _, err := newStore().Append(context.Background(), tx, store.Any(), []store.Event{event("Order", id), event("Order", id)}); err != nil {
					t.Error(err)
				}
				if rand.IntN(50) == 0 {
					time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
				}
				if rand.IntN(10) == 0 {
					err = tx.Rollback()
				} else {
					err = tx.Commit()
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) // leaves the server time for the workers
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// behind returns how many positions the last of the consumers is behind. The columns are those of
// any version.
func behind(t testing.TB, db *sql.DB) (positions int64) {
	const query = `SELECT coalesce((SELECT max(global_position) FROM events), 0)
		- coalesce((SELECT min(last_position) FROM consumer_checkpoints AS c WHERE to_jsonb(c)->>'split_at' IS NULL), 0)`
	if err := db.QueryRow(query).Scan(&positions); err != nil {
		t.Error(err)
	}
	return positions
}

// A consumer goes from any number of partitions to any other, and in the end its
// row is as it was before.
func TestAConsumerIsSplitAndMerged(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendSome := func(n int) {
		for i := range n {
			appendN(t, d.DB, "Order", fmt.Sprint("a", i%17), 2)
		}
	}
	appendSome(34)
	row := func() string {
		return one[string](t, d.DB, `SELECT string_agg((to_jsonb(c) - 'created_at' - 'updated_at' - 'revision' - 'last_position' - 'receipt')::text, '\n') FROM consumer_checkpoints AS c`)
	}
	var before string
	var mu sync.Mutex
	var told []observe.Rescaled
	hear := func(r observe.Rescaled) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, r)
	}
	for i, n := range []int{1, 4, 3, 2, 1} {
		told = nil
		w := start(t, d.DB, []consumer.Consumer{inPartitions(n)}, worker.WithObserver(observe.On(hear)))
		awaitLayout(t, d.DB, n)
		appendSome(17)
		awaitOnce(t, d.DB, "aggregate_id")
		w.Stop()
		if err := w.result(t); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = row()
		}
		if (len(told) == 0) != (i == 0) {
			t.Errorf("on the way to %d the observer was told %v", n, told)
		}
	}
	if after := row(); after != before {
		t.Errorf("the row was\n%s\nand is\n%s", before, after)
	}
	if last := told[len(told)-1]; last.Consumer != "c" || !slices.Equal(last.From, []string{"c#000-7ff", "c#800-fff"}) || !slices.Equal(last.To, []string{"c"}) || last.Position == 0 {
		t.Errorf("the observer was told %+v", last)
	}
}

// Two workers share the partitions, under load, with other numbers of them again
// and again, and transactions that are passed in doubt.
func TestRescalingUnderLoad(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	stop := load(t, d.DB, 50)
	opts := []worker.Option{worker.WithStaleGapThreshold(30 * time.Millisecond), worker.WithBatchSize(20)}
	var before []*running
	for _, n := range []int{1, 4, 8, 3, 2} {
		var now []*running
		for range 2 {
			now = append(now, start(t, d.DB, []consumer.Consumer{inPartitions(n)}, opts...))
		}
		for _, w := range before { // a rolling deployment
			w.Stop()
			if err := w.result(t); err != nil {
				t.Fatal(err)
			}
		}
		before = now
		awaitLayout(t, d.DB, n)
		at := one[int64](t, d.DB, `SELECT coalesce(max(global_position), 0) FROM events`)
		await(t, "the partitions to go on", func() bool {
			return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position <= $1`, at) == 0
		})
	}
	stop()
	awaitOnce(t, d.DB, "aggregate_id")
	await(t, "no open ranges", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM consumer_gap_skips WHERE state = 'open'`) == 0
	})
	if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_operations WHERE operation IN ('split', 'merge')`); n < 4 {
		t.Errorf("%d splits and merges are recorded", n)
	}
}

// Two events of one append, of two keys, are in two goroutines' hands at the same time,
// and in two transactions.
func TestPartsHandleAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	met := make(chan struct{})
	meet := sync.OnceFunc(func() { close(met) }) // a batch may be repeated
	var inside atomic.Int32
	c := inPartitions(2)
	c.before = func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		defer inside.Add(-1)
		if inside.Add(1) == 2 {
			meet()
		}
		select {
		case <-met:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	start(t, d.DB, []consumer.Consumer{c})
	awaitLayout(t, d.DB, 2)
	d.Exec(t, `ALTER TABLE ledger ADD COLUMN transaction TEXT DEFAULT pg_current_xact_id()::text`)
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []partition.Range{lower, upper} {
		if _, err := newStore().Append(t.Context(), tx, store.Any(), []store.Event{event("Order", aggregateIn(r, 0))}); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, tx)
	awaitOnce(t, d.DB, "aggregate_id")
	if n := one[int](t, d.DB, `SELECT count(DISTINCT transaction) FROM ledger`); n != 2 {
		t.Errorf("two keys were handled in %d transactions", n)
	}
}

// A worker of another library says nothing of its consumers. While it lives, there are no parts.
func TestNoPartsBesideAnotherLibrary(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	start(t, d.DB, []consumer.Consumer{inPartitions(2)})
	awaitLayout(t, d.DB, 2)
	d.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_timeout) VALUES (gen_random_uuid(), '1 day')`)
	awaitLayout(t, d.DB, 1)
	d.Exec(t, `DELETE FROM worker_nodes WHERE consumers IS NULL`)
	awaitLayout(t, d.DB, 2)
}

// An event of a consumer in partitions is handled when its part has handled it,
// wherever that runs.
func TestWaitForParts(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var workers []*running
	for range 2 {
		workers = append(workers, start(t, d.DB, []consumer.Consumer{inPartitions(4)}, worker.WithDispatcherInterval(100*time.Millisecond)))
	}
	awaitLayout(t, d.DB, 4)
	for i := range 30 {
		appendN(t, d.DB, "Order", fmt.Sprint("a", i), 1)
		at := one[int64](t, d.DB, `SELECT max(global_position) FROM events`)
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
		if err := workers[i%2].WaitFor(ctx, "c", at); err != nil {
			t.Fatal(err)
		}
		cancel()
		if n := one[int](t, d.DB, `SELECT count(*) FROM ledger WHERE position = $1`, at); n != 1 {
			t.Fatalf("the event at %d was handled %d times", at, n)
		}
	}
}

// scopedParts is a ledger "c" in partitions, of one type.
type scopedParts struct{ partitioned }

func (*scopedParts) AggregateTypes() []string { return []string{"Order"} }

// ignoring is a consumer "c" in partitions that does nothing with an event.
type ignoring struct{ partitioned }

func (*ignoring) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

// ignoringSome is one of some types.
type ignoringSome struct{ ignoring }

func (*ignoringSome) AggregateTypes() []string { return []string{"Order"} }

// The parts of a consumer share what the worker reads, also where the log filters it by type.
func TestPartsShareOneRead(t *testing.T) {
	t.Parallel()
	const parts, events = 8, 20_000
	for name, c := range map[string]consumer.Consumer{
		"all types":  &ignoring{*inPartitions(parts)},
		"some types": &ignoringSome{ignoring{*inPartitions(parts)}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			first := start(t, d.DB, []consumer.Consumer{c})
			awaitLayout(t, d.DB, parts)
			first.Stop()
			if err := first.result(t); err != nil {
				t.Fatal(err)
			}
			d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
				SELECT 'Order', 'a' || i, 1, gen_random_uuid(), 'Happened', '' FROM generate_series(1, $1::int) AS i`, events)
			var read scale
			runWorker(t, worker.New(d.DB, weighed{newStore(), &read}, []consumer.Consumer{c}, quick()...))
			await(t, "all parts to be at the head", func() bool {
				return one[int64](t, d.DB, `SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) == events
			})
			if n := read.events.Load(); n > parts/2*events {
				t.Errorf("%d events were read for %d parts of %d", n, parts, events)
			}
		})
	}
}

// The parts of a consumer of some types, whose events the log filters, go over an
// old log with gaps and over what comes, each event once.
func TestPartsOfSomeTypes(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	fill := func(rounds int) {
		for i := range rounds {
			appendN(t, d.DB, "Order", fmt.Sprint("a", i%37), 20)
			appendN(t, d.DB, "Invoice", fmt.Sprint("i", i%7), 5)
			if err := beginAppend(t, d.DB, "Order", "never", 3).Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := &scopedParts{*inPartitions(4)}
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchSize(20))
	awaitLayout(t, d.DB, 4)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	fill(50)
	start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchSize(20))
	fill(20)
	d.Exec(t, `CREATE TABLE invoices AS SELECT global_position FROM events WHERE aggregate_type = 'Invoice'`)
	await(t, "all orders to be handled", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM ledger`) >= 70*20
	})
	await(t, "all parts to have passed the last invoices", func() bool { // which are void once they are deleted
		return one[bool](t, d.DB, `SELECT min(last_position) >= (SELECT max(global_position) FROM events) FROM consumer_checkpoints WHERE split_at IS NULL`)
	})
	if n := one[int](t, d.DB, `SELECT count(*) FROM ledger JOIN invoices ON position = global_position`); n > 0 {
		t.Errorf("%d invoices were handled", n)
	}
	d.Exec(t, `DELETE FROM events WHERE aggregate_type = 'Invoice'`)
	awaitOnce(t, d.DB, "aggregate_id")
	for _, unit := range layout(t, d.DB) {
		await(t, unit+" to have all gaps in the audit", func() bool {
			missing := one[int64](t, d.DB, `SELECT last_position - (SELECT count(*) FROM events WHERE global_position <= last_position) - (SELECT count(*) FROM invoices WHERE global_position <= last_position)
				FROM consumer_checkpoints WHERE consumer_name = $1`, unit)
			return one[int64](t, d.DB, `SELECT coalesce(sum(missing), 0) FROM consumer_gap_skips WHERE consumer_name = $1`, unit) == missing
		})
	}
}

// A part that is given nothing does not commit for each event of the others, the less often the
// more parts there are, and is at the head soon after the last.
func TestAPartDefersTheCommitOfPassedEvents(t *testing.T) {
	t.Parallel()
	const parts, limit = 8, 200 * time.Millisecond
	d := newLog(t)
	var mu sync.Mutex
	empty, began := map[string]int{}, time.Now()
	done := func(b observe.BatchDone) {
		mu.Lock()
		defer mu.Unlock()
		if b.Err == nil && b.Events == 0 {
			empty[b.Consumer]++
		}
	}
	start(t, d.DB, []consumer.Consumer{inPartitions(parts)}, worker.WithObserver(observe.On(done)), worker.WithDispatcherInterval(time.Millisecond))
	awaitLayout(t, d.DB, parts)
	only := aggregateIn(partition.Cut(parts)[2], 0)
	for range 300 {
		appendN(t, d.DB, "Order", only, 1)
	}
	awaitOnce(t, d.DB, "aggregate_id")
	await(t, "all parts to be at the head", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position < (SELECT max(global_position) FROM events)`) == 0
	})
	mu.Lock()
	defer mu.Unlock()
	most := int(time.Since(began)/limit) + 2
	for unit, n := range empty {
		if n > most {
			t.Errorf("%s has made %d batches without an event, %d are enough", unit, n, most)
		}
	}
}
