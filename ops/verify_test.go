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
				want := ops.Verified{AggregateType: "Order", AggregateID: found.AggregateID, Events: 4, First: 1, Last: 6}
				if found.AggregateID == "b" {
					want.Events, want.First, want.Last = 2, 4, 5
				}
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
		want.AggregateType, want.AggregateID, want.Events, want.First, want.Last = "Order", "a", 4, 1, 6
		if found, err := s.Verify(t.Context(), verification(right)); err != nil || !reflect.DeepEqual(found, want) {
			t.Errorf("%s: %+v, %v, want %+v", query, found, err, want)
		}
		s.Exec(t, `INSERT INTO totals VALUES ('a', 4, 'xxxx') ON CONFLICT (id) DO UPDATE SET n = excluded.n, log = excluded.log`)
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
		want.AggregateType, want.AggregateID, want.Events, want.First, want.Last = "Order", "a", 4, 1, 6
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

// The code of a new build tells what would change and what would fail.
func TestVerifyRehearses(t *testing.T) {
	t.Parallel()
	s := verifySite(t, totals{count(1, "x"), forgetTotals})
	found, err := s.Verify(t.Context(), verification(totals{count(10, "y"), forgetTotals}))
	want := ops.Verified{AggregateType: "Order", AggregateID: "a", Events: 4, First: 1, Last: 6, Missing: []string{`{"id":"a","n":40,"log":"yyyy"}`}, Unexpected: []string{`{"id":"a","n":4,"log":"xxxx"}`}}
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
