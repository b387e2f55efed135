package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// counter counts the statements that mention a table.
type counter struct {
	table string
	n     atomic.Int64
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, c.table) {
		c.n.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// open opens a pool whose statements are counted.
func (c *counter) open(t testing.TB, d *pgtest.Database) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Tracer = c
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// buryAll makes dead letters of the first n events of a log.
func buryAll(t testing.TB, d *pgtest.Database, consumer string, n int) {
	t.Helper()
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ($1::text, $2::bigint)`, consumer, n)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT $1::text, global_position, aggregate_type, aggregate_id, event_id, event_type, 1 FROM events WHERE global_position <= $2::bigint`, consumer, n)
}

// While thousands of dead letters are tried again, what is new waits for one
// or two of them, and each costs a few statements.
func TestDeadLettersAndNewEventsTakeTurns(t *testing.T) {
	t.Parallel()
	const letters, newsAfter, news = 2000, 50, 5
	d := newLog(t)
	appendN(t, d.DB, "Order", "many", letters)
	buryAll(t, d, "c", letters)
	if err := operator(t, d).RetryDeadLetters(t.Context(), "c", 1, by); err != nil {
		t.Fatal(err)
	}
	var order []int64 // of handling; only the consumer touches it until the worker has stopped
	paused, goOn := make(chan struct{}), make(chan struct{})
	c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition <= letters && e.GlobalPosition%newsAfter == 0 {
			select {
			case paused <- struct{}{}:
				<-goOn
			case <-ctx.Done():
			}
		}
		order = append(order, e.GlobalPosition)
		return nil
	}}
	statements := &counter{table: "consumer_dead_letters"}
	w := start(t, statements.open(t, d), []consumer.Consumer{c})
	for i := range news {
		<-paused
		appendN(t, d.DB, "Account", "other", 1)
		await(t, "the new event to be safe", func() bool { return w.Status().Safe > letters+int64(i) })
		goOn <- struct{}{}
	}
	<-paused
	n := statements.n.Load()
	w.Stop()
	goOn <- struct{}{}
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	for i := range news {
		at, after := slices.Index(order, letters+1+int64(i)), slices.Index(order, newsAfter*(1+int64(i)))
		if at < 0 || at > after+2 {
			t.Errorf("new event %d was handled as number %d; it was safe before number %d had ended", i+1, at, after)
		}
	}
	if most := int64(len(order) + 2*len(order)/30 + 2*news + 10); n > most {
		t.Errorf("%d statements about dead letters for %d events, want at most %d", n, len(order), most)
	}
	t.Logf("%d statements about dead letters for %d events", n, len(order))
}

// An event that joins the dead letters of its aggregate while these are tried
// again needs no request of its own.
func TestDeadLetterThatJoinsARetry(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	buryAll(t, d, "c", 3)
	if err := operator(t, d).RetryDeadLetters(t.Context(), "c", 1, by); err != nil {
		t.Fatal(err)
	}
	joined := make(chan struct{})
	c := &ledger{name: "c", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 1 {
			<-joined
		}
		return nil
	}}
	w := start(t, d.DB, []consumer.Consumer{c})
	appendN(t, d.DB, "Order", "1", 1)
	await(t, "the next event to be safe", func() bool { return w.Status().Safe == 4 })
	close(joined)
	awaitHandled(t, d.DB, "c", upTo(4)...)
}

// However events fail, are tried again or discarded, and whatever comes
// meanwhile: each that was not discarded is handled once, in order within its
// aggregate. A longer search:
//
//	go test -run TestOrderOverDeadLetters ./internal/e2e -rapid.checks=1000
func TestOrderOverDeadLetters(t *testing.T) {
	tier.Checks(t, 2, 150)
	var seen sync.Map
	t.Run("each move", func(t *testing.T) { // a search may miss one
		playLetters(t, []lettersMove{{do: "refuse"}, {do: "append", amount: 5}, {do: "wait"}, {do: "discard", where: 20}, {do: "retry"}, {do: "relent"}, {do: "retry"}}, 3, &seen)
	})
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) lettersMove {
			return lettersMove{
				do:        rapid.SampledFrom([]string{"append", "append", "append", "refuse", "refuse", "relent", "retry", "retry", "discard", "wait"}).Draw(t, "do"),
				aggregate: rapid.IntRange(0, 2).Draw(t, "aggregate"),
				amount:    rapid.IntRange(1, 40).Draw(t, "amount"),
				where:     rapid.IntRange(0, 99).Draw(t, "where"),
			}
		}), 10, 40).Draw(rt, "script")
		batchSize := rapid.SampledFrom([]int{1, 3, 100}).Draw(rt, "batch size")
		if !t.Run("script", func(t *testing.T) { playLetters(t, script, batchSize, &seen) }) {
			rt.FailNow()
		}
	})
	for _, what := range []string{"retry", "discard"} {
		if _, ok := seen.Load(what); !ok {
			t.Errorf("it never came to a %s", what)
		}
	}
}

// lettersMove is a step of a script: events come, an aggregate's events begin
// or cease to fail, or an operator does something about a dead letter.
type lettersMove struct {
	do        string
	aggregate int
	amount    int // of events
	where     int // which dead letter, in percent
}

func playLetters(t *testing.T, script []lettersMove, batchSize int, seen *sync.Map) {
	d := newLog(t)
	var refuses [3]atomic.Bool
	c := &ledger{name: "c", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if refuses[e.AggregateID[0]-'0'].Load() {
			return errRefused
		}
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{c}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1), worker.WithBatchSize(batchSize))
	o := operator(t, d)
	letters := func() []ops.DeadLetter {
		t.Helper()
		all, err := o.DeadLetters(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	head, discarded := int64(0), map[int64]bool{}
	for _, m := range script {
		all := letters()
		switch m.do {
		case "append":
			appendN(t, d.DB, "Order", fmt.Sprint(m.aggregate), m.amount)
			head += int64(m.amount)
		case "refuse", "relent":
			refuses[m.aggregate].Store(m.do == "refuse")
		case "wait":
			await(t, "the checkpoint to reach the head", func() bool { return head == 0 || checkpoint(t, d.DB, "c") == head })
		}
		if len(all) == 0 {
			continue
		}
		// What is asked of a dead letter that has just been handled is refused.
		position := all[m.where*len(all)/100].Position
		switch m.do {
		case "retry":
			_ = o.RetryDeadLetters(t.Context(), "c", position, by)
			seen.Store("retry", true)
		case "discard":
			if o.DiscardDeadLetter(t.Context(), "c", position, by) == nil {
				discarded[position] = true
				seen.Store("discard", true)
			}
		}
	}
	for i := range refuses {
		refuses[i].Store(false)
	}
	await(t, "everything to be handled", func() bool {
		all := letters()
		for _, l := range all {
			if l.RetryAt == nil {
				_ = o.RetryDeadLetters(t.Context(), "c", l.Position, by)
			}
		}
		return len(all) == 0 && (head == 0 || checkpoint(t, d.DB, "c") == head)
	})

	for _, p := range positionsBy(t, d.DB, `
SELECT position FROM (
	SELECT position, max(position) OVER (PARTITION BY aggregate_id ORDER BY id) AS latest FROM ledger JOIN events ON global_position = position WHERE consumer = 'c'
) AS steps WHERE position < latest`) {
		t.Errorf("position %d was handled after a later one of the same aggregate", p)
	}
	got := handled(t, d.DB, "c")
	slices.Sort(got)
	if want := slices.DeleteFunc(upTo(head), func(p int64) bool { return discarded[p] }); !slices.Equal(got, want) {
		t.Errorf("handled %v, want %v", got, want)
	}
}

// A dead letter that PostgreSQL sacrifices at every try is given up after a few,
// though all that is new goes well meanwhile. The log says so, and the dead letter
// has the reason.
func TestDeadLetterThatAlwaysConflicts(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)
	buryAll(t, d, "c", 2)
	if err := operator(t, d).RetryDeadLetters(t.Context(), "c", 1, by); err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int32
	c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition != 1 {
			return nil
		}
		tries.Add(1)
		appendN(t, d.DB, "Order", "other", 1) // comes before the next try
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE serialization_failure; END $$`)
		return err
	}}
	told := make(chan observe.Retrying, 100)
	var log lines
	start(t, d.DB, []consumer.Consumer{c}, worker.WithLogger(&log), worker.WithObserver(observe.On(func(r observe.Retrying) { told <- r })))
	await(t, "the letter to be given up", func() bool {
		all, err := operator(t, d).DeadLetters(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 2 && all[0].RetryAt == nil && all[0].Attempts == 2 && strings.Contains(all[0].Error, "serialization_failure")
	})
	const most = 6
	if n := tries.Load(); n != most {
		t.Errorf("it was tried %d times, want %d", n, most)
	}
	await(t, "what is new", func() bool { return len(handled(t, d.DB, "c")) == most })
	for n := 1; n < most; n++ {
		if r := <-told; r.InARow != n || r.ByHandler {
			t.Errorf("told as number %d: %+v", n, r)
		}
	}
	if len(told) > 0 || len(log.with("dead letter failed again")) != 1 {
		t.Errorf("the hook was called %d times more, the log says %q", len(told), log.with("dead letter failed again"))
	}
}
