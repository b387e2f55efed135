package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// totals is the projection "c" of a number and a text for each aggregate. add writes one event,
// forget deletes what was written.
type totals struct {
	add    func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	forget string
}

func (totals) Name() string { return "c" }

func (p totals) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return p.add(ctx, tx, e)
}

func (p totals) Forget(ctx context.Context, tx *sql.Tx, _, aggregateID string) error {
	_, err := tx.ExecContext(ctx, p.forget, aggregateID)
	return err
}

// bulkTotals is totals for batches.
type bulkTotals struct{ totals }

func (p bulkTotals) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	for _, e := range events {
		if err := p.Handle(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

type partedTotals struct{ totals }

func (partedTotals) Partitions() consumer.Partitions { return consumer.Partitions{Count: 4} }

const forgetTotals = `DELETE FROM totals WHERE id = $1`

// count adds the number n and a text to the aggregate's row.
func count(n int, text string) func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO totals AS t VALUES ($1, $2::int, $3) ON CONFLICT (id) DO UPDATE SET n = t.n + $2::int, log = t.log || $3`, e.AggregateID, n, text)
		return err
	}
}

// verifySite has a projection of some events of the aggregates a and b, and no worker.
func verifySite(t *testing.T, of consumer.Consumer) site {
	t.Helper()
	s := totalsSite(t)
	s.handle(t, of)
	return s
}

// totalsSite has the events and the table of totals.
func totalsSite(t *testing.T) site {
	t.Helper()
	s := newSite(t)
	s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
	s.append(t, "a", 3)
	s.append(t, "b", 2)
	s.append(t, "a", 1)
	return s
}

// handle runs a consumer until it has handled all events.
func (s site) handle(t *testing.T, of consumer.Consumer) {
	t.Helper()
	stop := s.work(t, of, worker.WithBatchSize(2))
	await(t, "all events to be handled", func() bool {
		return s.count(t, `SELECT coalesce(min(last_position), 0) FROM consumer_checkpoints WHERE split_at IS NULL AND split_part(consumer_name, '#', 1) = '`+of.Name()+`'`) == 6
	})
	stop()
}

func verification(of consumer.Forgetter) ops.Verification {
	return ops.Verification{Consumer: of, Log: newStore(), AggregateType: "Order", AggregateID: "a", Rows: `SELECT * FROM totals WHERE id = $1;`}
}

// Verify finds no difference if there is none, for every kind of consumer, and changes nothing.
func TestVerify(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	for name, of := range map[string]consumer.Forgetter{"event": right, "batch": bulkTotals{right}, "partitions": partedTotals{right}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := verifySite(t, of)
			before := s.state(t)
			for _, id := range []string{"a", "b", ""} {
				v := verification(of)
				v.AggregateID = id
				found, err := s.Verify(t.Context(), v)
				want := ops.Verified{AggregateType: "Order", AggregateID: found.AggregateID, Events: map[string]int{"a": 4, "b": 2}[found.AggregateID]}
				if err != nil || !reflect.DeepEqual(found, want) || id != "" && id != found.AggregateID {
					t.Errorf("%q: %+v, %v, want %+v", id, found, err, want)
				}
			}
			if after := s.state(t); after != before {
				t.Errorf("Verify changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// state returns all that Verify must not change.
func (s site) state(t *testing.T) (state string) {
	t.Helper()
	s.scan(t, `SELECT concat_ws(E'\n', (SELECT string_agg(x::text, ';' ORDER BY x) FROM totals AS x), (SELECT string_agg(x::text, ';' ORDER BY x::text) FROM consumer_checkpoints AS x),
		(SELECT count(*) FROM consumer_operations), (SELECT count(*) FROM consumer_dead_letters))`, &state)
	return state
}

// If ctx ends in a handler, Verify returns why, and which call it was.
func TestVerifyIsCutOff(t *testing.T) {
	t.Parallel()
	right := totals{counted, forgetTotals}
	s := verifySite(t, right)
	why := errors.New("the caller has left")
	for call, cutter := range map[string]func(end func()) consumer.Forgetter{
		"call Forget, which": func(end func()) consumer.Forgetter { return forgetting{right, end} },
		"call Handle at position 1, which": func(end func()) consumer.Forgetter {
			return totals{func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
				end()
				return ctx.Err()
			}, forgetTotals}
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := s.Verify(ctx, verification(cutter(func() { cancel(why) })))
		if !errors.Is(err, why) || !strings.Contains(err.Error(), call) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// forgetting is totals whose Forget is cut off.
type forgetting struct {
	totals
	end func()
}

func (f forgetting) Forget(ctx context.Context, _ *sql.Tx, _, _ string) error {
	f.end()
	return ctx.Err()
}

// Verify finds rows that others have changed.
func TestVerifyFindsChangedRows(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	for query, want := range map[string]ops.Verified{
		`UPDATE totals SET n = 5 WHERE id = 'a'`: {Missing: []string{`{"id":"a","n":4,"log":"xxxx"}`}, Unexpected: []string{`{"id":"a","n":5,"log":"xxxx"}`}},
		`DELETE FROM totals WHERE id = 'a'`:      {Missing: []string{`{"id":"a","n":4,"log":"xxxx"}`}},
	} {
		s.Exec(t, query)
		want.AggregateType, want.AggregateID, want.Events = "Order", "a", 4
		if found, err := s.Verify(t.Context(), verification(right)); err != nil || !reflect.DeepEqual(found, want) {
			t.Errorf("%s: %+v, %v, want %+v", query, found, err, want)
		}
		s.Exec(t, `INSERT INTO totals VALUES ('a', 4, 'xxxx') ON CONFLICT (id) DO UPDATE SET n = excluded.n, log = excluded.log`)
	}
}

// What the consumer has not handled is not recomputed: dead letters, skipped events, positions in doubt,
// events before its start and above its checkpoint.
func TestVerifyLeavesOutWhatWasNotHandled(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := newSite(t)
	s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
	s.append(t, "a", 9)
	s.place(t, 3)
	s.Exec(t, `INSERT INTO totals VALUES ('a', 6, 'xxxxxx')`)
	if err := s.SkipEvent(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	s.place(t, 8) // 1 to 8 without 4, and without
	s.open(t, 6, 6)
	if found, err := s.Verify(t.Context(), verification(right)); err != nil || found.Events != 6 || len(found.Missing)+len(found.Unexpected) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 3 FROM events WHERE global_position = 8`)
	late := struct {
		totals
		starts
	}{right, 2}
	if found, err := s.Verify(t.Context(), verification(late)); err != nil || found.Events != 3 {
		t.Errorf("%+v, %v", found, err)
	}
}

// What has changed the rows counts, whatever effects the consumer has had: of four events, handled are in the
// rows.
func TestVerifyAfterOperations(t *testing.T) {
	t.Parallel()
	do := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		start   int64 // of the code
		history func(t *testing.T, s site)
		handled int    // 0: Verify refuses
		says    string // in the refusal
	}{
		"begun at a position": {0, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"begun, whatever the code says": {3, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"a shadow without a dead letter that was discarded": {0, func(t *testing.T, s site) {
			do(t, s.Shadow(t.Context(), "c", by))
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
		}, 3, ""},
		"many discarded": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			s.deadLetter(t, 3, "a", 0)
			_, err := s.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{}, 10, by)
			do(t, err)
		}, 2, ""},
		"took over from one that has discarded an event": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
			s.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = 'old'`)
			s.Exec(t, `UPDATE consumer_operations SET consumer_name = 'old'`)
			do(t, s.Shadow(t.Context(), "c", by))
			s.place(t, 4)
			do(t, s.Switch(t.Context(), "old", "c", by, nil))
		}, 4, ""},
		"in a replay": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position < 3`) // these are done
		}, 0, "is handling events"},
		"discarded in a replay": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
			s.Exec(t, `DELETE FROM consumer_dead_letters`)
		}, 0, "it is not known"},
		"all are dead letters": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			s.deadLetter(t, 1, "a", 1)
		}, 0, "it has handled no event"},
		"skipped, and then replayed": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			do(t, s.SkipEvent(t.Context(), "c", 2, by))
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			s.Exec(t, `DELETE FROM consumer_dead_letters`)
		}, 4, ""},
		"a rebuild is not at its end": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 0, by))
			s.place(t, 3)
		}, 0, "is handling events"},
		"an event failed in a rebuild": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 0, by))
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
		}, 3, ""},
		"set back below its start": {3, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"crossed by a Reset": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			do(t, s.Reset(t.Context(), "c", 3, by))
			s.place(t, 4)
		}, 2, ""},
		"not selected, in a range of the audit": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["Order", "Other"]}', scope_since = 0`)
			s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
				VALUES ('c', 'scope', '{"from": {"types": ["Other"]}, "position": 2, "open": []}', 'w', 'r')`)
			s.open(t, 1, 3)
			s.Exec(t, `UPDATE consumer_gap_skips SET state = 'void', closed_at = now()`)
		}, 2, ""},
		"a dead letter of another consumer": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'other'`)
		}, 4, ""},
		"set back by a worker": {0, func(t *testing.T, s site) {
			s.place(t, 3)
			s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', 'repair', '{"from": 4, "to": 1}', 'w', 'r')`)
		}, 0, "is handling events"},
		"begun by a former consumer of the name": {0, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			do(t, s.Retire(t.Context(), "c", by))
			s.place(t, 4)
		}, 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
			s.append(t, "a", 4)
			s.settle(t, 4)
			c.history(t, s)
			s.Exec(t, `INSERT INTO totals VALUES ('a', $1::int, repeat('x', $1::int))`, c.handled)
			found, err := s.Verify(t.Context(), verification(struct {
				totals
				starts
			}{totals{count(1, "x"), forgetTotals}, starts(c.start)}))
			if c.handled == 0 {
				if !errors.Is(err, ops.ErrNotFound) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%+v, %v", found, err)
				}
			} else if err != nil || len(found.Missing)+len(found.Unexpected) > 0 || found.Events != c.handled {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}

type atHead struct{}

func (atHead) StartAt() consumer.Start { return consumer.AtHead() }

// A consumer that began at the head has handled no event before.
func TestVerifyOfOneThatBeganAtHead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
	s.append(t, "a", 4)
	s.place(t, 4)
	s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{}', scope_since = 2`)
	s.Exec(t, `INSERT INTO totals VALUES ('a', 2, 'xx')`)
	v := verification(struct {
		totals
		atHead
	}{totals{count(1, "x"), forgetTotals}, atHead{}})
	if found, err := s.Verify(t.Context(), v); err != nil || found.Events != 2 || len(found.Missing)+len(found.Unexpected) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// Of equal rows, each counts.
func TestVerifyCountsEqualRows(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	v := verification(right)
	v.Rows = `SELECT 1 AS one FROM totals, generate_series(1, n) WHERE id = $1`
	for n, want := range map[int]ops.Verified{3: {Missing: []string{`{"one":1}`}}, 5: {Unexpected: []string{`{"one":1}`}}} {
		s.Exec(t, `UPDATE totals SET n = $1 WHERE id = 'a'`, n)
		want.AggregateType, want.AggregateID, want.Events = "Order", "a", 4
		if found, err := s.Verify(t.Context(), v); err != nil || !reflect.DeepEqual(found, want) {
			t.Errorf("%d rows: %+v, %v, want %+v", n, found, err, want)
		}
	}
}

// A deadlock is the database's, and no mistake of the handler.
func TestVerifyAmongConflicts(t *testing.T) {
	t.Parallel()
	s := verifySite(t, totals{count(1, "x"), forgetTotals})
	found, err := s.Verify(t.Context(), verification(totals{func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE deadlock_detected; END $$`)
		return err
	}, forgetTotals}))
	if err == nil || found.Err != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

type starts int64

func (s starts) StartAt() consumer.Start { return consumer.After(int64(s)) }

// The code of a new build tells what would change and what would fail.
func TestVerifyRehearses(t *testing.T) {
	t.Parallel()
	s := verifySite(t, totals{count(1, "x"), forgetTotals})
	found, err := s.Verify(t.Context(), verification(totals{count(10, "y"), forgetTotals}))
	want := ops.Verified{AggregateType: "Order", AggregateID: "a", Events: 4, Missing: []string{`{"id":"a","n":40,"log":"yyyy"}`}, Unexpected: []string{`{"id":"a","n":4,"log":"xxxx"}`}}
	if err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v, %v, want %+v", found, err, want)
	}
	refused := errors.New("refused")
	for name, fails := range map[string]func() error{"an error": func() error { return refused }, "a panic": func() error { panic(refused) }} {
		found, err = s.Verify(t.Context(), verification(totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if e.GlobalPosition == 3 {
				return fails()
			}
			return nil
		}, forgetTotals}))
		if err != nil || found.Position != 3 || found.Events != 2 || found.Err == nil || !strings.Contains(found.Err.Error(), "refused") {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	decodes := verification(totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		return count(1, string(e.Payload))(ctx, tx, e)
	}, forgetTotals})
	decodes.Decoder = func(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
		e.Payload = []byte("x")
		return e, nil
	}
	if found, err := s.Verify(t.Context(), decodes); err != nil || len(found.Missing)+len(found.Unexpected) > 0 {
		t.Errorf("decoded: %+v, %v", found, err)
	}
}

// What cannot be verified is refused, with the remedy.
// A shadow began at the first event, whatever its code says. A consumer that has become one by a
// Switch began where its code says.
func TestVerifyOfShadows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		operations []string
		handled    int
	}{"began as a shadow": {[]string{"shadow"}, 4}, "was switched": {[]string{"switch"}, 1}, "was a shadow before": {[]string{"shadow", "retire"}, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
			s.append(t, "a", 4)
			s.place(t, 4)
			s.Exec(t, `UPDATE consumer_checkpoints SET effects = '`+shadowEffects+`'`)
			for _, operation := range c.operations {
				s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', $1, '{}', 'ann', 'a test')`, operation)
			}
			s.Exec(t, `INSERT INTO totals VALUES ('a', $1::int, repeat('x', $1::int))`, c.handled)
			v := verification(struct {
				totals
				starts
			}{totals{count(1, "x"), forgetTotals}, 3})
			if found, err := s.Verify(t.Context(), v); err != nil || len(found.Missing)+len(found.Unexpected) > 0 || found.Events != c.handled {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	s.Operator = operator(t, s.OpenSet(t, "lock_timeout", "7s"))
	ends := totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error { return tx.Commit() }, `SELECT $1::text`}
	for name, c := range map[string]struct {
		change func(v *ops.Verification)
		is     error
		says   string
	}{
		"no code":   {func(v *ops.Verification) { v.Consumer = nil }, ops.ErrInvalid, "Consumer"},
		"no log":    {func(v *ops.Verification) { v.Log = nil }, ops.ErrInvalid, "Log"},
		"no rows":   {func(v *ops.Verification) { v.Rows = " " }, ops.ErrInvalid, "Rows"},
		"no type":   {func(v *ops.Verification) { v.AggregateType = "" }, ops.ErrInvalid, "AggregateType"},
		"no Forget": {func(v *ops.Verification) { v.Consumer = pgxtx.Consumer(onPgx{}).(consumer.Forgetter) }, ops.ErrInvalid, "no Forget"},
		"a lock": {func(v *ops.Verification) {
			v.Consumer = totals{func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				_, err := tx.ExecContext(ctx, `DO $$ BEGIN IF current_setting('lock_timeout') <> '7s' THEN RAISE 'it is %', current_setting('lock_timeout'); END IF; RAISE lock_not_available; END $$`)
				return err
			}, forgetTotals}
		}, nil, "lock_not_available"},
		"no such query":   {func(v *ops.Verification) { v.Rows = `SELECT FROM nowhere WHERE id = $1` }, ops.ErrInvalid, "nowhere"},
		"no aggregate":    {func(v *ops.Verification) { v.AggregateID = "nobody" }, ops.ErrNotFound, "no event"},
		"no drawn one":    {func(v *ops.Verification) { v.AggregateType, v.AggregateID = "Nothing", "" }, ops.ErrNotFound, "no event"},
		"ends it":         {func(v *ops.Verification) { v.Consumer = ends }, nil, "Commit"},
		"no such events":  {func(v *ops.Verification) { v.Log = emptyLog{newStore()} }, nil, ""},
		"another context": {func(v *ops.Verification) {}, context.Canceled, ""},
	} {
		v := verification(right)
		c.change(&v)
		ctx, cancel := context.WithCancel(t.Context())
		if c.is == context.Canceled {
			cancel()
		}
		found, err := s.Verify(ctx, v)
		cancel()
		if name == "no such events" {
			if err != nil || found.Err == nil || !strings.Contains(found.Err.Error(), "the log of the workers") {
				t.Errorf("%s: %+v, %v", name, found, err)
			}
			continue
		}
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type onPgx struct{}

func (onPgx) Name() string { return "c" }

func (onPgx) Handle(context.Context, pgx.Tx, store.PersistedEvent) error { return nil }

type emptyLog struct{ store.Log }

func (emptyLog) ReadEvents(context.Context, store.Querier, int64, int) ([]store.PersistedEvent, error) {
	return nil, nil
}
