package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// aggregateIn returns the n-th aggregate whose slot is in a range.
func aggregateIn(r partition.Range, n int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("a", i); r.Has(partition.Slot(id)) {
			if n--; n < 0 {
				return id
			}
		}
	}
}

var lower, upper = partition.Cut(2)[0], partition.Cut(2)[1]

// Dead letters go with their key, hold up those of their aggregate wherever they
// are, and are tried again there.
func TestDeadLettersFollowTheirKey(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]consumer.Key{"aggregate": {}, "own": consumer.ByKey("suffix", func(e store.PersistedEvent) string { return e.AggregateID[1:] })} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			var mended atomic.Bool
			bad := []string{aggregateIn(lower, 0), aggregateIn(upper, 0)}
			wish := func(n int) consumer.Consumer {
				c := &partitioned{ledger{name: "c"}, consumer.Partitions{Count: n, Key: key}}
				c.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
					if (e.AggregateID == bad[0] || e.AggregateID == bad[1]) && !mended.Load() {
						return errRefused
					}
					return nil
				}
				return c
			}
			o, err := ops.New(d.DB)
			if err != nil {
				t.Fatal(err)
			}
			run := func(n int) {
				t.Helper()
				w := start(t, d.DB, []consumer.Consumer{wish(n)}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
				awaitLayout(t, d.DB, n)
				for _, id := range append(bad, "other") {
					appendN(t, d.DB, "Order", id, 1)
				}
				last := one[int64](t, d.DB, `SELECT max(global_position) FROM events`)
				await(t, "the units to be through", func() bool {
					return one[int64](t, d.DB, `SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) >= last
				})
				want := one[int](t, d.DB, `SELECT count(*) FROM events WHERE aggregate_id <> 'other' AND global_position NOT IN (SELECT position FROM ledger)`)
				if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_dead_letters WHERE consumer_name IN (SELECT consumer_name FROM consumer_checkpoints WHERE split_at IS NULL)`); n != want {
					t.Errorf("%d dead letters, want %d", n, want)
				}
				w.Stop()
				if err := w.result(t); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range []int{1, 2, 5, 2} {
				run(n)
			}
			mended.Store(true)
			run(2) // its new ones join those that wait
			for _, position := range positionsBy(t, d.DB, `SELECT min(global_position) FROM consumer_dead_letters GROUP BY aggregate_id`) {
				if err := o.RetryDeadLetters(t.Context(), "c", position, ops.By{Operator: "ann", Reason: "mended"}); err != nil {
					t.Fatal(err)
				}
			}
			start(t, d.DB, []consumer.Consumer{wish(3)}, worker.WithFailurePolicy(worker.FailDeadLetter))
			awaitLayout(t, d.DB, 3)
			awaitOnce(t, d.DB, "aggregate_id")
		})
	}
}

// Where a key of the consumer's own keeps the order, dead letters hold up their key,
// over all of its aggregates, and nothing else. They are tried again in order, also
// after a split.
func TestDeadLettersHoldUpTheirKey(t *testing.T) {
	t.Parallel()
	for name, customer := range map[string]string{"short": "ann", "not text": "\xff\x00", "long": strings.Repeat("é", 5_000)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			var mended atomic.Bool
			wish := func(n int) consumer.Consumer {
				c := &partitioned{ledger{name: "c"}, consumer.Partitions{Count: n, Key: consumer.ByKey("customer", func(e store.PersistedEvent) string {
					if e.AggregateID == "other" {
						return "bob"
					}
					return customer
				})}}
				c.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
					if e.AggregateID == "bad" && !mended.Load() {
						return errRefused
					}
					return nil
				}
				return c
			}
			for _, id := range []string{"good", "bad", "other", "good", "bad", "also good"} {
				appendN(t, d.DB, "Order", id, 1)
			}
			opts := []worker.Option{worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1), worker.WithBatchSize(2)}
			for _, n := range []int{1, 2} {
				w := start(t, d.DB, []consumer.Consumer{wish(n)}, opts...)
				awaitLayout(t, d.DB, n)
				await(t, "the units to be through", func() bool {
					return one[int64](t, d.DB, `SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) >= 6
				})
				awaitHandled(t, d.DB, "c", 1, 3)
				w.Stop()
				if err := w.result(t); err != nil {
					t.Fatal(err)
				}
			}
			if waiting := positionsBy(t, d.DB, `SELECT global_position FROM consumer_dead_letters WHERE order_key IS NOT NULL AND (error IS NULL) = (global_position <> 2) ORDER BY 1`); !slices.Equal(waiting, []int64{2, 4, 5, 6}) {
				t.Errorf("the dead letters are %v", waiting)
			}
			o, err := ops.New(d.DB)
			if err != nil {
				t.Fatal(err)
			}
			if err := o.RetryDeadLetters(t.Context(), "c", 5, ops.By{Operator: "ann", Reason: "mended"}); err != nil {
				t.Fatal(err)
			}
			mended.Store(true)
			start(t, d.DB, []consumer.Consumer{wish(2)}, opts...)
			awaitHandled(t, d.DB, "c", 1, 3, 2, 4, 5, 6)
		})
	}
}

// A split that takes longer than other statements may gets more time from try to try:
// there are many dead letters whose keys are to be found, or a key takes long.
func TestASplitThatTakesLong(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var slow atomic.Bool
	wish := func(n int) consumer.Consumer {
		c := &partitioned{ledger{name: "c"}, consumer.Partitions{Count: n, Key: consumer.ByKey("customer", func(e store.PersistedEvent) string {
			if slow.Load() {
				time.Sleep(600 * time.Millisecond)
			}
			return e.AggregateID
		})}}
		c.before = func(context.Context, *sql.Tx, store.PersistedEvent) error { return errRefused }
		return c
	}
	appendN(t, d.DB, "Order", "bad", 1)
	opts := []worker.Option{worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1)}
	w := start(t, d.DB, []consumer.Consumer{wish(1)}, opts...)
	await(t, "a dead letter", func() bool { return one[int](t, d.DB, `SELECT count(*) FROM consumer_dead_letters`) == 1 })
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	second := worker.New(d.DB, newStore(), []consumer.Consumer{wish(2)}, append(quick(), opts...)...)
	setQuick(second, 500*time.Millisecond) // less than the key takes
	runWorker(t, second)
	awaitLayout(t, d.DB, 2)
}

// A pause is inherited by the units of a split. Units are merged when all run.
func TestPausesAndRescaling(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	by := ops.By{Operator: "ann", Reason: "a test"}
	w := start(t, d.DB, []consumer.Consumer{inPartitions(1)})
	awaitLayout(t, d.DB, 1)
	if err := errors.Join(o.Pause(t.Context(), "c", by), o.Partition(t.Context(), "c", 2, by)); err != nil {
		t.Fatal(err)
	}
	awaitLayout(t, d.DB, 2)
	for i := range 20 {
		appendN(t, d.DB, "Order", fmt.Sprint("a", i), 1)
	}
	if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE paused_by = 'ann'`); n != 2 {
		t.Errorf("%d units are paused", n)
	}
	if err := errors.Join(o.Resume(t.Context(), "c#000-7ff", by), o.Partition(t.Context(), "c", 1, by)); err != nil {
		t.Fatal(err)
	}
	last := one[int64](t, d.DB, `SELECT max(global_position) FROM events`)
	await(t, "one unit to be through", func() bool {
		return one[int64](t, d.DB, `SELECT max(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) >= last
	})
	if n := one[int](t, d.DB, `SELECT count(*) FROM ledger JOIN events ON position = global_position WHERE left(encode(sha256(convert_to(aggregate_id, 'UTF8')), 'hex'), 3) >= '800'`); n > 0 {
		t.Errorf("the paused unit has handled %d events", n)
	}
	await(t, "the consumer to be seen with a paused unit", func() bool {
		s := w.Status().Consumers
		return len(s) == 2 && s[0].Paused == nil && s[1].Paused != nil && s[1].Name == "c#800-fff" && s[1].Consumer == "c" && s[1].Partition == "800-fff"
	})
	if got := layout(t, d.DB); len(got) != 2 {
		t.Errorf("a paused unit was merged: %q", got)
	}
	if err := o.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	awaitLayout(t, d.DB, 1)
	awaitOnce(t, d.DB, "aggregate_id")
	await(t, "the consumer to be seen as a whole", func() bool {
		s := w.Status().Consumers
		return len(s) == 1 && s[0].Name == "c" && s[0].Assigned
	})
}

// A part that does not get on is late, whatever the others do.
func TestAPartThatIsLate(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	c := inPartitions(2)
	c.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if upper.Has(partition.Slot(e.AggregateID)) {
			return errRefused
		}
		return nil
	}
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxPollInterval(50*time.Millisecond), worker.WithMaxConsecutiveFailures(1_000_000))
	awaitLayout(t, d.DB, 2)
	appendN(t, d.DB, "Order", aggregateIn(upper, 0), 1)
	appendN(t, d.DB, "Order", aggregateIn(lower, 0), 1)
	await(t, "the status to say how long it has been late", func() bool {
		s := w.Status().Consumers
		return len(s) == 2 && s[1].Name == "c#800-fff" && s[1].OldestAge != nil && *s[1].OldestAge > 0 && s[1].Still > 0
	})
	await(t, "the worker to say that it is not ready", func() bool {
		all := w.Ready(t.Context(), 50*time.Millisecond)
		return len(all) == 1 && strings.Contains(all[0].Error(), `"c#800-fff"`)
	})
}

// What is in doubt at a split is watched by all units, and delivered by one.
func TestDoubtsAtASplit(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	opts := []worker.Option{worker.WithStaleGapThreshold(10 * time.Millisecond)}
	open := func(unit string, n int) {
		t.Helper()
		await(t, fmt.Sprintf("%d open ranges of %s", n, unit), func() bool {
			return one[int](t, d.DB, `SELECT count(*) FROM consumer_gap_skips WHERE state = 'open' AND consumer_name = $1`, unit) == n
		})
	}
	early, late, never := beginAppend(t, d.DB, "Order", aggregateIn(lower, 0), 1), beginAppend(t, d.DB, "Order", aggregateIn(upper, 0), 1), beginAppend(t, d.DB, "Order", "x", 1)
	appendN(t, d.DB, "Order", "y", 1)
	w := start(t, d.DB, []consumer.Consumer{inPartitions(1)}, opts...)
	open("c", 1)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	w = start(t, d.DB, []consumer.Consumer{inPartitions(2)}, opts...)
	awaitLayout(t, d.DB, 2)
	commit(t, early)
	open("c#000-7ff", 1) // the rest
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	start(t, d.DB, []consumer.Consumer{inPartitions(1)}, opts...)
	awaitLayout(t, d.DB, 1)
	commit(t, late)
	if err := never.Rollback(); err != nil {
		t.Fatal(err)
	}
	awaitOnce(t, d.DB, "aggregate_id")
	open("c", 0)
}

// Delivery has the consumer's name and the part.
func TestDeliveryOfAPart(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	c := inPartitions(2)
	c.before = func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		info, _ := consumer.Info(ctx)
		_, slots, _ := partition.Parse(partition.Name("c", lower))
		if upper.Has(partition.Slot(e.AggregateID)) {
			slots = upper
		}
		mu.Lock()
		defer mu.Unlock()
		seen[info.Partition] = true
		if info.Consumer != "c" || info.Partition != "" && info.Partition != slots.String() {
			return fmt.Errorf("%+v for slot %03x", info, partition.Slot(e.AggregateID))
		}
		return nil
	}
	start(t, d.DB, []consumer.Consumer{c})
	awaitLayout(t, d.DB, 2)
	for i := range 20 {
		appendN(t, d.DB, "Order", fmt.Sprint("a", i), 1)
	}
	awaitOnce(t, d.DB, "aggregate_id")
	mu.Lock()
	defer mu.Unlock()
	if !seen["000-7ff"] || !seen["800-fff"] {
		t.Errorf("%v", seen)
	}
}

// A key that panics holds up its consumer, and says so: for as long as it does, as the
// database is well. Nothing is handled that nobody knows the order of.
func TestAKeyThatPanics(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var mended atomic.Bool
	c := &partitioned{ledger{name: "c"}, consumer.Partitions{Count: 2, Key: consumer.ByKey("customer", func(e store.PersistedEvent) string {
		if e.AggregateID == "bad" && !mended.Load() {
			panic("no customer")
		}
		return e.AggregateID
	})}}
	var first atomic.Int64
	var late, over atomic.Bool
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithRetryLimit(retryLimit), worker.WithObserver(observe.On(func(r observe.Retrying) {
		if r.Condition != observe.ConditionKey {
			return
		}
		if first.CompareAndSwap(0, time.Now().UnixNano()); time.Since(time.Unix(0, first.Load())) > retryLimit {
			late.Store(true)
		}
	}),
		observe.On(func(r observe.Recovered) {
			if r.Condition == observe.ConditionKey {
				over.Store(true)
			}
		})))
	awaitLayout(t, d.DB, 2)
	appendN(t, d.DB, "Order", "good", 1)
	awaitOnce(t, d.DB, "aggregate_id")
	appendN(t, d.DB, "Order", "bad", 1)
	appendN(t, d.DB, "Order", "good", 1)
	await(t, "the panic to be shown by both", func() bool {
		n := 0
		for _, s := range w.Status().Consumers {
			if s.LastError != nil && strings.Contains(s.LastError.Error(), "no customer") && strings.Contains(s.LastError.Error(), "position 2") {
				n++
			}
		}
		return n == 2
	})
	if n := len(handled(t, d.DB, "c")); n != 1 {
		t.Errorf("%d events were handled", n)
	}
	await(t, "it to be tried for longer than a database may be away", late.Load)
	mended.Store(true)
	awaitOnce(t, d.DB, "aggregate_id")
	await(t, "its end to be told", over.Load)
}

// A consumer that does not say that its events may be handled at the same time
// runs the parts that others have made of it in turns.
func TestPartsInTurn(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{inPartitions(4)})
	awaitLayout(t, d.DB, 4)
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Partition(t.Context(), "c", 4, ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		appendN(t, d.DB, "Order", fmt.Sprint("a", i), 1)
	}
	var inside, together atomic.Int64
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		if inside.Add(1) > 1 {
			together.Add(1)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		return nil
	}}}, worker.WithBatchSize(5))
	awaitOnce(t, d.DB, "aggregate_id")
	if got := layout(t, d.DB); len(got) != 4 {
		t.Errorf("%q, though 4 partitions are fixed", got)
	}
	if n := together.Load(); n > 0 {
		t.Errorf("%d events were handled beside another", n)
	}
}

// rescaleCutter cuts connections before and after statements that have some text in
// them, at random: as a process that is killed there would.
type rescaleCutter struct {
	texts []string
	cuts  atomic.Int64
	every int // on average
	off   atomic.Bool
	last  sync.Map // by connection: it has sent the record of a split or a merge
}

const rescaleRecord = "reason)\nVALUES"

func (c *rescaleCutter) hit(conn *pgx.Conn, sql string) bool {
	if _, recorded := c.last.Load(conn); sql == "commit" && !recorded {
		return false // of a batch
	}
	c.last.Delete(conn)
	if strings.Contains(sql, rescaleRecord) || strings.Contains(sql, "SET count") {
		c.last.Store(conn, true)
	}
	for _, text := range c.texts {
		if !c.off.Load() && strings.Contains(sql, text) && rand.IntN(c.every) == 0 {
			c.cuts.Add(1)
			return true
		}
	}
	return false
}

func (c *rescaleCutter) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if c.hit(conn, q.SQL) {
		if rand.IntN(2) == 0 {
			_ = conn.PgConn().Conn().Close() // the statement never arrives
		} else {
			return context.WithValue(ctx, c, true)
		}
	}
	return ctx
}

func (c *rescaleCutter) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(c) != nil {
		_ = conn.PgConn().Conn().Close() // it did, and nothing after it
	}
}

// Splits and merges that are cut off before and after each of their statements,
// also around the COMMIT, lose and double nothing, and are done in the end.
func TestRescalingIsCutOffAnywhere(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	stop := load(t, d.DB, 30)
	cut := &rescaleCutter{every: 12, texts: []string{
		"true) FROM \"public\".\"consumer_checkpoints\" WHERE consumer_name = $1::text FOR UPDATE", // lock the layout
		"AND partitions = $3::int",                  // lock the unit, or the parts
		"SELECT global_position, aggregate_id FROM", // its dead letters
		"WITH child AS", "split_at = clock_timestamp()", "DELETE FROM \"public\".\"consumer_checkpoints\"",
		"gap_end, (extract(epoch FROM",  // the open ranges
		"jsonb_to_recordset($6::jsonb)", // the merge
		rescaleRecord,
		"ON CONFLICT (\"only\") DO UPDATE SET count",
		"commit",
	}}
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Tracer = cut
	const enough = 20
	layouts := []int{4, 1, 3, 8, 2}
	for i, n := range slices.Repeat(layouts, 4) {
		if i >= len(layouts) && cut.cuts.Load() >= enough {
			break
		}
		cut.off.Store(true) // a start would wait
		var workers []*running
		for range 2 {
			db := stdlib.OpenDB(*config) // of its own: others' may have dead connections in it
			db.SetMaxIdleConns(20)
			t.Cleanup(func() { _ = db.Close() })
			workers = append(workers, start(t, db, []consumer.Consumer{inPartitions(n)}, worker.WithStaleGapThreshold(30*time.Millisecond), worker.WithBatchSize(20)))
		}
		for _, w := range workers {
			await(t, "the worker to run", func() bool { return w.Status().State == observe.StateRunning })
		}
		cut.off.Store(false)
		awaitLayout(t, d.DB, n)
		for _, w := range workers {
			w.Stop()
			if err := w.result(t); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if n := cut.cuts.Load(); n < enough {
		t.Errorf("%d connections were cut", n)
	}
	start(t, d.DB, []consumer.Consumer{inPartitions(2)})
	awaitOnce(t, d.DB, "aggregate_id")
}

// A consumer that pauses at an event stands just before it, whosever the events before are:
// SkipEvent takes it then, and no event of another part.
func TestPauseBehindEventsOfOthers(t *testing.T) {
	t.Parallel()
	bad := aggregateIn(upper, 0)
	var tried atomic.Int32
	refuses := func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == bad {
			tried.Add(1)
			return errRefused
		}
		return nil
	}
	parts := inPartitions(2)
	parts.before = refuses
	for name, c := range map[string]consumer.Consumer{
		"a part":     parts,
		"some types": &scopedLedger{ledger{name: "c", types: []string{"Bill"}, before: refuses}},
	} {
		t.Run(name, func(t *testing.T) {
			tried.Store(0)
			d := newLog(t)
			start(t, d.DB, []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(1), worker.WithStaleGapThreshold(10*time.Millisecond))
			await(t, "the consumer to be there", func() bool {
				return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL`) == map[string]int{"a part": 2, "some types": 1}[name]
			})
			late := beginAppend(t, d.DB, "Other", aggregateIn(lower, 0), 1) // position 1 is in doubt
			defer func() { _ = late.Rollback() }()
			tx, err := d.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				e := event("Order", aggregateIn(lower, i))
				if _, err := newStore().Append(t.Context(), tx, store.Any(), []store.Event{e}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := newStore().Append(t.Context(), tx, store.Any(), []store.Event{event("Bill", bad)}); err != nil {
				t.Fatal(err)
			}
			commit(t, tx)
			await(t, "a unit to be paused", func() bool {
				return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND paused_at IS NOT NULL`) == 1
			})
			if at := one[int64](t, d.DB, `SELECT last_position FROM consumer_checkpoints WHERE split_at IS NULL AND paused_at IS NOT NULL`); at != 4 {
				t.Errorf("it is paused at position %d, want 4", at)
			}
			if n := tried.Load(); n != 1 {
				t.Errorf("the event was tried %d times, want once", n)
			}
			o := operator(t, d)
			for _, do := range []error{o.SkipEvent(t.Context(), "c", 5, by), o.Resume(t.Context(), "c", by)} {
				if do != nil {
					t.Fatal(do)
				}
			}
			await(t, "the unit to go on", func() bool {
				return one[int64](t, d.DB, `SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) == 5
			})
			if n := one[int](t, d.DB, `SELECT count(*) FROM ledger`); n != map[string]int{"a part": 3, "some types": 0}[name] {
				t.Errorf("%d events were handled", n)
			}
		})
	}
}
