package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

const stale = 50 * time.Millisecond

// plainLog is a store that can do nothing but what every store must.
type plainLog struct{ s *storepostgres.Store }

func (l plainLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	return l.s.ReadEvents(ctx, q, after, limit)
}

func (l plainLog) GetLatestGlobalPosition(ctx context.Context, q store.Querier) (int64, error) {
	return l.s.GetLatestGlobalPosition(ctx, q)
}

// An event that commits long after others have gone past it is delivered
// late, once, to those who want it, and marked as late; a stale transaction
// that rolls back leaves void positions. The audit tells the story.
func TestLateEventsAreDelivered(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]store.Log{"store/postgres": newStore(), "a plain store": plainLog{newStore()}} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			if name == "a plain store" {
				d = withLedger(t, pgtest.Alone(t)) // its frontier waits for every transaction of the server
			}
			var mu sync.Mutex
			late := map[int64]bool{}
			all := &ledger{name: "all", before: func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
				info, _ := consumer.Info(ctx)
				mu.Lock()
				defer mu.Unlock()
				late[e.GlobalPosition] = info.Late
				return nil
			}}
			orders := &scopedLedger{ledger{name: "orders", types: []string{"Order"}}}
			appendN(t, d.DB, "Order", "1", 1)                   // 1
			commits := beginAppend(t, d.DB, "Invoice", "1", 2)  // 2, 3
			appendN(t, d.DB, "Order", "1", 1)                   // 4
			rollsBack := beginAppend(t, d.DB, "Order", "3", 1)  // 5
			commitsToo := beginAppend(t, d.DB, "Order", "4", 2) // 6, 7
			appendN(t, d.DB, "Order", "1", 1)                   // 8
			seen := map[observe.SkipState]int64{}
			blocked := 0
			opts := []worker.Option{worker.WithStaleGapThreshold(stale), worker.WithMaxConsecutiveFailures(1), worker.WithObserver(observe.On(func(observe.FrontierBlocked) { mu.Lock(); defer mu.Unlock(); blocked++ }),
				observe.On(func(s observe.Skipped) {
					mu.Lock()
					defer mu.Unlock()
					if s.Consumer == "all" {
						seen[s.State] += s.Missing
					}
				}))}
			w := worker.New(d.DB, log, []consumer.Consumer{all, orders}, append(quick(), opts...)...)
			r := runWorker(t, w)
			awaitHandled(t, d.DB, "all", 1, 4, 8)
			awaitHandled(t, d.DB, "orders", 1, 4, 8)
			// In a plain store every transaction counts, also one that a busy machine keeps.
			_, plain := log.(plainLog)
			if open := w.Status().Blocked; len(open) < 3 || len(open) > 3 && !plain {
				t.Errorf("Status shows %d transactions that stay open, want 3: %+v", len(open), open)
			}
			if err := commitsToo.Commit(); err != nil {
				t.Fatal(err)
			}
			awaitHandled(t, d.DB, "all", 1, 4, 8, 6, 7)
			awaitHandled(t, d.DB, "orders", 1, 4, 8, 6, 7)
			if err := rollsBack.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := commits.Commit(); err != nil {
				t.Fatal(err)
			}
			appendN(t, d.DB, "Order", "1", 1) // 9
			await(t, "nothing to be in doubt any more", func() bool { return len(audit(t, d.DB, "open")) == 0 && checkpoint(t, d.DB, "orders") == 9 })
			// 9 may come before or after the late ones; each comes once.
			await(t, "all events to be handled", func() bool { return len(handled(t, d.DB, "all")) == 8 && len(handled(t, d.DB, "orders")) == 6 })
			w.Stop() // and wait, so that the observer has been told everything
			if err := r.result(t); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if blocked < 3 || blocked > 3 && !plain {
				t.Errorf("the observer was told of %d transactions that stay open, want 3", blocked)
			}
			if seen[observe.SkipLate] != 4 || seen[observe.SkipVoid] != 1 || seen[observe.SkipOpen] < 5 {
				t.Errorf("the observer was told of %v skipped positions, want 4 late, 1 void, and all 5 open before", seen)
			}
			for p, want := range map[int64]bool{1: false, 2: true, 3: true, 4: false, 6: true, 7: true, 8: false, 9: false} {
				if late[p] != want {
					t.Errorf("position %d: late is %v, want %v", p, late[p], want)
				}
			}
			for _, consumer := range []string{"all", "orders"} {
				if got := audit(t, d.DB, "late")[consumer]; got != 4 {
					t.Errorf("%s: %d positions are audited as late, want 4", consumer, got)
				}
				if got := audit(t, d.DB, "void")[consumer]; got != 1 {
					t.Errorf("%s: %d positions are audited as void, want 1", consumer, got)
				}
			}
		})
	}
}

// audit sums up the audited positions of a state for each consumer.
func audit(t testing.TB, db *sql.DB, state string) map[string]int64 {
	t.Helper()
	rows, err := db.Query(`SELECT consumer_name, sum(missing)::bigint FROM consumer_gap_skips WHERE state = $1 GROUP BY 1`, state)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	sums := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		sums[name] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return sums
}

// Open positions outlive the worker that passed them.
func TestOpenPositionsSurviveAChangeOfOwner(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	appendN(t, d.DB, "Order", "2", 1)                // 2
	consumers := []consumer.Consumer{&ledger{name: "all"}}
	first := start(t, d.DB, consumers, worker.WithStaleGapThreshold(stale))
	awaitHandled(t, d.DB, "all", 2)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	var between time.Time
	if err := d.DB.QueryRow(`SELECT clock_timestamp()`).Scan(&between); err != nil {
		t.Fatal(err)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	start(t, d.DB, consumers, worker.WithStaleGapThreshold(stale))
	awaitHandled(t, d.DB, "all", 2, 1)
	var passed, closed time.Time
	if err := d.DB.QueryRow(`SELECT first_seen_at, closed_at FROM consumer_gap_skips WHERE state = 'late'`).Scan(&passed, &closed); err != nil {
		t.Fatal(err)
	}
	if !passed.Before(between) || !closed.After(between) {
		t.Errorf("the audit says passed at %v and delivered at %v, want before and after %v", passed, closed, between)
	}
}

// While a late commit and the next version's append race, the aggregate's
// order is kept.
func TestOrderWithinAnAggregateSurvivesALateCommit(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(10*time.Millisecond), worker.WithDispatcherInterval(time.Millisecond))
	const rounds = 30
	for i := range rounds {
		id := fmt.Sprint("aggregate ", i)
		late := beginAppend(t, d.DB, "Order", id, 1)
		appendN(t, d.DB, "Order", "other", 1)
		await(t, "the consumer to go past the open transaction", func() bool { return audit(t, d.DB, "open")["all"] > 0 })
		next := make(chan error, 1)
		go func() { // waits for the lock on the aggregate's head, then races with the late event
			tx, err := d.DB.BeginTx(context.Background(), nil)
			if err == nil {
				_, err = newStore().Append(context.Background(), tx, store.Any(), []store.Event{event("Order", id)})
			}
			if err == nil {
				err = tx.Commit()
			}
			next <- err
		}()
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
		await(t, "the open position to end", func() bool { return audit(t, d.DB, "open")["all"] == 0 })
	}
	await(t, "everything to be handled", func() bool { return len(handled(t, d.DB, "all")) == 3*rounds })
	var disorder int
	if err := d.DB.QueryRow(`SELECT count(*) FROM (
		SELECT aggregate_version, lag(aggregate_version, 1, 0::bigint) OVER (PARTITION BY aggregate_id ORDER BY l.id) AS previous
		FROM ledger l JOIN events e ON e.global_position = l.position) AS v
		WHERE aggregate_version <> previous + 1`).Scan(&disorder); err != nil || disorder > 0 {
		t.Fatalf("%d events out of order, %v", disorder, err)
	}
}

func TestMaxOpenRangesMakesTheConsumerWait(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var open []*sql.Tx
	for i := range 4 {
		open = append(open, beginAppend(t, d.DB, "Order", fmt.Sprint("open ", i), 1)) // 1, 3, 5, 7
		appendN(t, d.DB, "Order", "other", 1)                                         // 2, 4, 6, 8
	}
	var log lines
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(stale), worker.WithMaxOpenRanges(2), worker.WithLogger(&log))
	awaitHandled(t, d.DB, "all", 2, 4)
	await(t, "Status to say why the consumer waits", func() bool { return w.Status().Consumers[0].LastError != nil })
	await(t, "the log to say so", func() bool { return len(log.with("WithMaxOpenRanges")) > 0 })
	if got := handled(t, d.DB, "all"); len(got) != 2 || audit(t, d.DB, "open")["all"] != 2 {
		t.Fatalf("went on to %v with %d open positions", got, audit(t, d.DB, "open")["all"])
	}
	for _, tx := range open {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "everything to be handled", func() bool { return len(handled(t, d.DB, "all")) == 8 })
	if said := log.with("consumer waiting"); len(said) != 1 {
		t.Errorf("the log says so %d times: %q", len(said), said)
	}
	await(t, "the log to say that it is over", func() bool { return len(log.with("recovered condition doubts")) == 1 })
}

// Under GapWait nothing is late.
func TestGapWaitKeepsGlobalOrder(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	appendN(t, d.DB, "Order", "2", 1)                // 2
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "all"}}, worker.WithStaleGapThreshold(10*time.Millisecond), worker.WithGapPolicy(worker.GapWait))
	await(t, "the holder to be shown as stale", func() bool {
		b := w.Status().Blocked
		return len(b) == 1 && b[0].Stale
	})
	if got := handled(t, d.DB, "all"); len(got) > 0 {
		t.Fatalf("handled %v", got)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "all", 1, 2)
}

func TestRetentionDeletesClosedAuditRowsOnly(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	old := `clock_timestamp() - interval '1 day'`
	for _, row := range []string{
		`('old void', 'void', ` + old + `)`, `('old late', 'late', ` + old + `)`, `('old open', 'open', NULL::timestamptz)`,
		`('new void', 'void', clock_timestamp() + interval '1 hour')`, `('of an older version', 'void', NULL::timestamptz)`,
	} {
		d.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, state, closed_at, worker_id, gap_position, gap_end, missing, skip_to_position, highest_visible_position, first_seen_at)
			SELECT v.*, gen_random_uuid(), 1, 1, 1, 1, 1, clock_timestamp() FROM (VALUES `+row+`) AS v (consumer_name, state, closed_at)`)
	}
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithGapSkipRetention(time.Second))
	left := func() (names string) {
		if err := d.DB.QueryRow(`SELECT string_agg(consumer_name, ', ' ORDER BY id) FROM consumer_gap_skips`).Scan(&names); err != nil {
			t.Fatal(err)
		}
		return names
	}
	await(t, "the old closed rows to be deleted", func() bool { return left() == "old open, new void, of an older version" })
}
