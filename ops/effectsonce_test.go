package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// mailer is the consumer "c". It may be split, forgets aggregates, and fails at bad ones.
type mailer struct {
	ledger
	bad *sync.Map
}

func newMailer() *mailer {
	m := &mailer{bad: &sync.Map{}}
	m.before = func(e store.PersistedEvent) error { return m.check(e.AggregateID) }
	return m
}

func (m *mailer) check(aggregate string) error {
	if _, bad := m.bad.Load(aggregate); bad {
		return errors.New("no such customer")
	}
	return nil
}

func (*mailer) Partitions() consumer.Partitions { return consumer.Partitions{Count: 1} }

func (m *mailer) Forget(_ context.Context, _ *sql.Tx, _, aggregate string) error {
	return m.check(aggregate)
}

// effectsPlay is a log with writers, workers and operators of the consumer "c".
type effectsPlay struct {
	site
	t      *testing.T
	mailer *mailer
	mu     sync.Mutex
	held   []*sql.Tx
}

const aggregates = 5

func aggregate(n int) string { return fmt.Sprint("a", n%aggregates) }

// steps are the steps of histories. An operation that comes too late is refused.
var steps = []struct {
	name string
	do   func(p *effectsPlay, a, b int) error
}{
	{"append", func(p *effectsPlay, a, b int) error { p.append(p.t, aggregate(a), 1+b%4); return nil }},
	{"append to all", func(p *effectsPlay, _, _ int) error {
		for n := range aggregates {
			p.append(p.t, aggregate(n), 1)
		}
		return nil
	}},
	{"roll back", func(p *effectsPlay, a, _ int) error { p.burn(p.t, 1+a%3); return nil }},
	{"hold", func(p *effectsPlay, a, b int) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.held) < 3 {
			p.held = append(p.held, p.begin(p.t, "held "+uuid.NewString(), 1+b%2)) // no step waits for its end
		}
		p.append(p.t, aggregate(a), 1)
		return nil
	}},
	{"end held", func(p *effectsPlay, a, _ int) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.held) == 0 {
			return nil
		}
		tx := p.held[0]
		p.held = p.held[1:]
		if a%3 == 0 {
			return tx.Rollback()
		}
		return tx.Commit()
	}},
	{"bad", func(p *effectsPlay, a, _ int) error { p.mailer.bad.Store(aggregate(a), true); return nil }},
	{"good", func(p *effectsPlay, a, _ int) error { p.mailer.bad.Delete(aggregate(a)); return nil }},
	{"crash", func(p *effectsPlay, _, _ int) error {
		_, err := p.DB.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%INTO ledger%' AND query NOT LIKE '%terminate%'`)
		return err
	}},
	{"back", func(p *effectsPlay, a, b int) error {
		return p.Reset(p.t.Context(), p.unit(b), p.upTo(`SELECT coalesce(max(last_position), 0) FROM consumer_checkpoints`, a), by)
	}},
	{"forward", (*effectsPlay).forward},
	{"skip", func(p *effectsPlay, _, b int) error {
		next, err := p.Next(p.t.Context(), p.unit(b))
		if err != nil {
			return err
		}
		n := next[b%len(next)]
		err = p.SkipEvent(p.t.Context(), n.Consumer, n.Position, by)
		var goodEvent *ops.NotStuckError
		if !errors.As(err, &goodEvent) {
			return err
		}
		if err := p.Pause(p.t.Context(), n.Consumer, by); err != nil {
			return err
		}
		err = p.SkipEvent(p.t.Context(), n.Consumer, n.Position, by)
		if resumed := p.Resume(p.t.Context(), n.Consumer, by); err == nil {
			err = resumed
		}
		return err
	}},
	{"pause", func(p *effectsPlay, _, b int) error { return p.Pause(p.t.Context(), p.unit(b), by) }},
	{"resume", func(p *effectsPlay, _, _ int) error { return p.Resume(p.t.Context(), "c", by) }},
	{"retry", func(p *effectsPlay, a, _ int) error {
		return p.some(a, func(l ops.DeadLetter) error { return p.RetryDeadLetters(p.t.Context(), "c", l.Position, by) })
	}},
	{"discard", func(p *effectsPlay, a, _ int) error {
		return p.some(a, func(l ops.DeadLetter) error { return p.DiscardDeadLetter(p.t.Context(), "c", l.Position, by) })
	}},
	{"retry all", func(p *effectsPlay, a, b int) error {
		_, err := p.RetryDeadLettersWhere(p.t.Context(), p.unit(b), ops.DeadLetterFilter{}, 1+a%5, by)
		return err
	}},
	{"discard all", func(p *effectsPlay, a, b int) error {
		_, err := p.DiscardDeadLettersWhere(p.t.Context(), p.unit(b), ops.DeadLetterFilter{}, 1+a%5, by)
		return err
	}},
	{"replay", (*effectsPlay).replay},
	{"partition", func(p *effectsPlay, a, _ int) error { return p.Partition(p.t.Context(), "c", 1+a%4, by) }},
	{"let it work", (*effectsPlay).letWork},
	{"let it work", (*effectsPlay).letWork},
}

// replay replays the aggregate of an event that was handled, if there is one.
func (p *effectsPlay) replay(a, _ int) error {
	id := aggregate(a)
	if n := p.count(p.t, `SELECT count(*) FROM ledger`); n > 0 {
		p.scan(p.t, fmt.Sprintf(`SELECT aggregate_id FROM ledger JOIN events ON global_position = position ORDER BY id OFFSET %d LIMIT 1`, n*int64(a)/1001), &id)
	}
	return p.Replay(p.t.Context(), "c", "Order", id, by)
}

// letWork gives the consumer 300 ms to handle its events.
func (p *effectsPlay) letWork(_, _ int) error {
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if p.count(p.t, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position < (SELECT max(global_position) FROM events)`) == 0 {
			break
		}
	}
	return nil
}

// forward sets the consumer back, and then forward over some settled positions.
func (p *effectsPlay) forward(a, b int) error {
	ctx := p.t.Context()
	to := p.upTo(`SELECT coalesce(max(settled), 0) FROM consumer_checkpoints_settled`, 700+a%301)
	if err := p.Pause(ctx, "c", by); err != nil {
		return err
	}
	if err := p.Reset(ctx, "c", to*int64(b)/1001, by); err != nil && !isRefusal(err) {
		return err // the unit is at a lower position
	}
	err := p.Reset(ctx, "c", to, by)
	if resumed := p.Resume(ctx, "c", by); resumed != nil && !isRefusal(resumed) {
		return resumed
	}
	return err
}

// upTo returns a share, in thousandths, of the position that query returns.
func (p *effectsPlay) upTo(query string, share int) int64 {
	return p.count(p.t, query) * int64(share) / 1000
}

// unit returns the name of the consumer, or of one of its units.
func (p *effectsPlay) unit(n int) string {
	all, err := p.Consumers(p.t.Context())
	if err != nil || len(all) == 0 || n%3 > 0 || len(all[0].Units) == 0 {
		return "c"
	}
	return all[0].Units[n%len(all[0].Units)].Name
}

// some calls do for one of the dead letters.
func (p *effectsPlay) some(n int, do func(ops.DeadLetter) error) error {
	all, err := p.DeadLetters(p.t.Context(), "c")
	if err != nil || len(all) == 0 {
		return err
	}
	return do(all[n%len(all)])
}

// isRefusal reports whether an operation came too late.
func isRefusal(err error) bool {
	for _, refusal := range []error{ops.ErrAtPosition, ops.ErrPaused, ops.ErrNotPaused, ops.ErrNoDeadLetter, ops.ErrNoEvents, ops.ErrNoCheckpoint, ops.ErrInvalid} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	var notNext *ops.NotNextError
	var beyond *ops.NotSettledError
	var notStuck *ops.NotStuckError // another operation has resumed it
	return errors.As(err, &notNext) || errors.As(err, &notStuck) || errors.As(err, &beyond)
}

// A consumer has the effect of each event exactly once, at the first delivery. This holds for
// all writers, interrupted batches and operations, also while the consumer is split and merged.
// A longer search:
//
//	go test -run EachEffectOnce ./ops -rapid.checks=300
func TestEachEffectOnce(t *testing.T) {
	t.Parallel()
	type step struct{ what, a, b int }
	draw := rapid.Custom(func(rt *rapid.T) step {
		return step{evenly(rt, len(steps), "what"), evenly(rt, 1001, "a"), evenly(rt, 1001, "b")}
	})
	var mu sync.Mutex
	seen, histories := map[string]int{}, 0
	rapid.Check(t, func(rt *rapid.T) {
		history := rapid.SliceOfN(draw, 10, 60).Draw(rt, "history")
		batch := rapid.SampledFrom([]int{1, 3, 100}).Draw(rt, "batch size")
		histories++
		if !t.Run("history", func(t *testing.T) {
			p := &effectsPlay{site: newSite(t), t: t, mailer: newMailer()}
			options := append(policy(worker.FailDeadLetter), worker.WithBatchSize(batch), worker.WithMaxConsecutiveFailures(1))
			workers := site{&pgtest.Database{URL: p.URL, DB: p.OpenMode(t, pgx.QueryExecModeCacheStatement)}, p.Operator} // a crash hits only their connections
			for range 2 {
				workers.work(t, p.mailer, options...)
			}
			await(t, "the consumer to have a checkpoint", func() bool { return p.count(t, `SELECT count(*) FROM consumer_checkpoints`) > 0 })
			for i, n := 0, 1; i < len(history); i, n = i+n, 3-n { // one step, then two at a time
				var all sync.WaitGroup
				for _, s := range history[i:min(i+n, len(history))] {
					all.Go(func() {
						err := steps[s.what].do(p, s.a, s.b)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							seen[steps[s.what].name]++
						case isRefusal(err):
							seen["refused"]++
						default:
							t.Errorf("step %d, %s: %v", i, steps[s.what].name, err)
						}
					})
				}
				all.Wait()
			}
			p.finish(seen)
			p.judge(seen)
		}) {
			rt.FailNow()
		}
	})
	t.Logf("in %d histories: %v", histories, seen)
	for _, what := range []string{"back", "forward", "skip", "discard", "replay", "partition", "crash", "end held", "replayed twice"} {
		if histories >= 20 && seen[what] == 0 {
			t.Errorf("in %d histories it never came to %q", histories, what)
		}
	}
}

// finish sets the consumer back to the beginning and lets it handle all events. Before that it
// sets the consumer forward once. In a history, this is often refused, as little is settled.
func (p *effectsPlay) finish(seen map[string]int) {
	t := p.t
	p.mailer.bad.Clear()
	for _, tx := range p.held {
		_ = tx.Commit()
	}
	if err := p.Resume(t.Context(), "c", by); err != nil && !isRefusal(err) {
		t.Fatal(err)
	}
	p.append(t, "last", 1)
	head := p.count(t, `SELECT max(global_position) FROM events`)
	// Every unit has handled all events, and no late event is awaited.
	done := func() bool {
		if _, err := p.RetryDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{}, 10_000, by); err != nil && !isRefusal(err) {
			t.Error(err)
		}
		return p.count(t, fmt.Sprintf(`SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position < %d`, head)) == 0 &&
			p.count(t, `SELECT count(*) FROM consumer_gap_skips WHERE state = 'open'`)+p.count(t, `SELECT count(*) FROM consumer_dead_letters`) == 0
	}
	for begin := time.Now(); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("the consumer does not come to the end: %s", p.stood())
		}
	}
	p.awaitSettled(t, head)
	if err := p.forward(300, 500); err != nil {
		t.Fatal(err)
	}
	seen["forward"]++
	await(t, "the end of the log", done)
	if err := p.Reset(t.Context(), "c", 0, by); err != nil {
		t.Fatal(err)
	}
	await(t, "all again", done)
}

func (p *effectsPlay) stood() (all string) {
	p.scan(p.t, `SELECT string_agg(c::text, E'\n') FROM consumer_checkpoints AS c`, &all)
	return all
}

// judge checks that each event was first delivered as new, and then as replayed.
func (p *effectsPlay) judge(seen map[string]int) {
	t := p.t
	rows, err := p.DB.Query(`
SELECT e.global_position, e.aggregate_id, coalesce(string_agg(CASE WHEN l.replay THEN 'r' ELSE 'n' END, '' ORDER BY l.id), '')
FROM events AS e LEFT JOIN ledger AS l ON l.position = e.global_position GROUP BY 1, 2 ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var position int64
		var aggregate, was string
		if err := rows.Scan(&position, &aggregate, &was); err != nil {
			t.Fatal(err)
		}
		for i, kind := range was {
			if (kind == 'n') != (i == 0) {
				t.Errorf("event %d of %s was delivered as %s", position, aggregate, was)
				break
			}
		}
		if was == "" {
			t.Errorf("event %d of %s was never delivered", position, aggregate)
		}
		if len(was) > 2 {
			seen["replayed twice"]++
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		var all string
		p.scan(t, `SELECT coalesce(string_agg(id || ' ' || consumer_name || ' ' || operation || ' ' || detail, E'\n' ORDER BY id), '') FROM consumer_operations`, &all)
		t.Logf("the operations were\n%s\nand it stands so:\n%s", all, p.stood())
	}
}
