package ops_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
)

// A shadow begins at the first event. Consumers tells that it is one, and so it stays.
func TestShadow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	if err := s.Shadow(t.Context(), "d", by); err != nil {
		t.Fatal(err)
	}
	if c := s.consumer(t, "d"); !c.Shadow || c.Position != 0 {
		t.Errorf("the shadow is %+v", c)
	}
	if c := s.consumer(t, "c"); c.Shadow {
		t.Errorf("the consumer is %+v", c)
	}
	if got, want := s.kinds(t, "d"), "shadow d"; got != want {
		t.Errorf("operations: %s, want %s", got, want)
	}
	for _, name := range []string{"c", "d"} {
		if err := s.Shadow(t.Context(), name, by); !errors.Is(err, ops.ErrExists) {
			t.Errorf("%s again: %v", name, err)
		}
	}
	if err := s.Shadow(t.Context(), "d#000-7ff", by); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("a unit: %v", err)
	}
	s.settle(t, 3)
	if err := errors.Join(s.Reset(t.Context(), "d", 2, by), s.Reset(t.Context(), "d", 1, by)); err != nil {
		t.Fatal(err)
	}
	if c := s.consumer(t, "d"); !c.Shadow || c.Position != 1 {
		t.Errorf("after a reset the shadow is %+v", c)
	}
}

// effects returns the borders of the units of a consumer, in order of name.
func (s site) effects(t *testing.T, name string) (all string) {
	t.Helper()
	s.scan(t, `SELECT coalesce(string_agg(effects::text, ' ' ORDER BY consumer_name COLLATE "C"), '') FROM consumer_checkpoints
		WHERE split_part(consumer_name, '#', 1) = '`+name+`' AND split_at IS NULL`, &all)
	return all
}

const (
	shadowEffects = `[{"last": 4095, "after": 9223372036854775807, "first": 0, "other": 9223372036854775807}]`
	liveEffects   = `[{"last": 4095, "after": 5, "first": 0, "other": 5, "except": [{"last": 3, "first": 3}]}]`
)

// Switch exchanges the effects of two consumers, in one transaction with a function of the caller.
// Both units of a split consumer change their revision, so that no batch is under way.
func TestSwitch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 5)
	s.open(t, 3, 3)
	if err := s.Shadow(t.Context(), "d", by); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `CREATE VIEW totals AS SELECT 1 AS version`)
	view := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE OR REPLACE VIEW totals AS SELECT 2 AS version`)
		return err
	}
	would, err := s.Preview(func(o *ops.Operator) error { return o.Switch(t.Context(), "c", "d", by, view) })
	if err != nil || len(would) != 2 || s.count(t, `SELECT version FROM totals`) != 1 {
		t.Fatalf("previewed %v, %v", would, err)
	}
	failure := errors.New("no view")
	if err := s.Switch(t.Context(), "c", "d", by, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(view(ctx, tx), failure)
	}); !errors.Is(err, failure) || s.count(t, `SELECT version FROM totals`) != 1 || s.effects(t, "d") != shadowEffects {
		t.Fatalf("a failure of the function: %v", err)
	}
	revision := s.consumer(t, "d").Revision
	if err := s.IfRevision(revision).Switch(t.Context(), "c", "d", by, view); err != nil {
		t.Fatal(err)
	}
	if s.effects(t, "c") != shadowEffects || s.effects(t, "d") != liveEffects || s.count(t, `SELECT version FROM totals`) != 2 {
		t.Errorf("the effects are %s and %s", s.effects(t, "c"), s.effects(t, "d"))
	}
	if c, d := s.consumer(t, "c"), s.consumer(t, "d"); c.Revision == 0 || d.Revision == revision || !c.Shadow || d.Shadow {
		t.Errorf("%+v, %+v", c, d)
	}
	var detail struct{ From, To string }
	if op := s.last(t, &detail); op.Kind != ops.KindSwitch || detail.From != "c" || detail.To != "d" {
		t.Errorf("recorded %+v", op)
	}
	if err := s.Switch(t.Context(), "c", "d", by, nil); !errors.Is(err, ops.ErrUnchanged) {
		t.Errorf("again: %v", err)
	}
}

// A switch changes all units of a split consumer. Borders that disagree need the shadow's key.
func TestSwitchOfUnits(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "customer") // at 3 and 5
	s.Exec(t, `DELETE FROM consumer_dead_letters`)
	if err := s.Shadow(t.Context(), "d", by); err != nil {
		t.Fatal(err)
	}
	refusal{says: "call Partition of"}.expectSoon(t, func(ctx context.Context) error { return s.Switch(ctx, "c", "d", by, nil) })
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 5, revision = 7 WHERE consumer_name LIKE 'c#%'`)
	if err := s.Switch(t.Context(), "c", "d", by, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := s.effects(t, "c"), shadowEffects+" "+shadowEffects; got != want {
		t.Errorf("the units have %s, want %s", got, want)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name LIKE 'c#%' AND revision = 8`); n != 2 {
		t.Errorf("%d units changed their revision", n)
	}
	if got, want := s.kinds(t, "d"), "switch d, shadow d"; got != want {
		t.Errorf("operations: %s, want %s", got, want)
	}
	if c := s.consumer(t, "c"); !c.Shadow || s.consumer(t, "d").Shadow {
		t.Errorf("after the switch: %+v", c)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 5 WHERE consumer_name = 'd'`)
	if err := s.Switch(t.Context(), "d", "c", by, nil); err != nil || s.consumer(t, "c").Shadow || !s.consumer(t, "d").Shadow {
		t.Errorf("back: %v", err)
	}
}

func TestSwitchIsRefused(t *testing.T) {
	t.Parallel()
	const shadow = `UPDATE consumer_checkpoints SET effects = '[{"first": 0, "last": 4095, "after": 9223372036854775807}]' WHERE consumer_name = `
	commit := func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }
	for name, c := range map[string]struct {
		fault, from, to string
		within          func(ctx context.Context, tx *sql.Tx) error
		says            string
		err             error
	}{
		"both names alike":  {from: "d", to: "d", says: `both consumers are "d"`, err: ops.ErrInvalid},
		"no other consumer": {from: "e", to: "d", says: `the other consumer "e": `, err: ops.ErrNotFound},
		"no consumer":       {from: "c", to: "e", err: ops.ErrNotFound},
		"a unit":            {from: "c", to: "d#000-7ff", err: ops.ErrInvalid},
		"no shadow":         {fault: `UPDATE consumer_checkpoints SET effects = '[]'`, from: "c", to: "d", says: "it is no shadow", err: ops.ErrUnchanged},
		"two shadows":       {fault: shadow + `'c'`, from: "c", to: "d", says: `"c" is a shadow, too`, err: ops.ErrInvalid},
		"a dead letter":     {fault: `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 2, 'Order', 'a', gen_random_uuid(), 'x', 1)`, from: "c", to: "d", says: `dead letter at position 2`, err: ops.ErrInvalid},
		"a retry":           {fault: `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at) VALUES ('c', 2, 'Order', 'a', gen_random_uuid(), 'x', 1, now())`, from: "c", to: "d", says: `passed position 2`},
		"a replay":          {fault: `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, replay) VALUES ('c', 2, 'Order', 'a', gen_random_uuid(), 'x', 1, true)`, from: "c", to: "d", says: `passed position 2`},
		"another key":       {fault: `UPDATE consumer_checkpoints SET effects = '[{"first": 0, "last": 2047, "after": 5}, {"first": 2048, "last": 4095, "after": 7}]' WHERE consumer_name = 'c'; INSERT INTO worker_nodes (worker_id, partitions) VALUES (gen_random_uuid(), '{"d": {"key": "customer"}}')`, from: "c", to: "d", says: "another key"},
		"a swallowed error": {from: "c", to: "d", within: func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, `SELECT FROM nowhere`)
			return nil
		}, says: "return that error"},
		"ahead":                {fault: `UPDATE consumer_checkpoints SET last_position = 9 WHERE consumer_name = 'd'`, from: "c", to: "d", says: `passed position 6`},
		"in doubt":             {fault: `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('c', gen_random_uuid(), 2, 3, 2, 'open', 5, 5)`, from: "c", to: "d", says: `passed position 2`},
		"an event in an audit": {fault: `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('c', gen_random_uuid(), 2, 2, 1, 'open', 5, 5), ('d', gen_random_uuid(), 1, 4, 3, 'void', 5, 5)`, from: "c", to: "d", says: `passed position 2`},
		"a commit":             {from: "c", to: "d", within: commit, says: "ended the transaction"},
		"a commit in SQL": {from: "c", to: "d", within: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		}, says: "the consumers were not switched"},
		"the savepoint of Switch": {from: "c", to: "d", within: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT held`)
			return err
		}, says: "held"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.append(t, "a", 3)
			s.place(t, 5)
			if err := s.Shadow(t.Context(), "d", by); err != nil {
				t.Fatal(err)
			}
			s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 4 WHERE consumer_name = 'd'`)
			if c.fault != "" {
				s.Exec(t, c.fault)
			}
			before := s.effects(t, "c") + s.effects(t, "d")
			want := refusal{c.says, c.err}
			if c.within == nil {
				want.expectSoon(t, func(ctx context.Context) error { return s.Switch(ctx, c.from, c.to, by, nil) })
			} else { // once: a second try would find what within has committed
				want.expect(t, s.Switch(inTime(t), c.from, c.to, by, c.within))
			}
			if after := s.effects(t, "c") + s.effects(t, "d"); after != before {
				t.Errorf("the effects became %s", after)
			}
		})
	}
}

// When ctx ends in a later try, the error says what was waited for. A success and an unknown outcome
// stay what they are.
func TestUntilReady(t *testing.T) {
	t.Parallel()
	waits, unknown := ops.NotYet(errors.New("it waits")), &ops.UnknownOutcomeError{}
	for _, c := range []struct{ later, want error }{{context.Canceled, waits}, {sql.ErrTxDone, waits}, {fmt.Errorf("hold: %w", driver.ErrBadConn), waits}, {&pgconn.PgError{Code: "57014"}, waits}, {waits, waits}, {nil, nil}, {unknown, unknown}, {ops.ErrNotFound, ops.ErrNotFound}} {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		err := ops.UntilReady(ctx, func() error {
			if tries++; tries == 1 {
				return waits
			}
			cancel()
			return c.later
		})
		if err != c.want || tries != 2 {
			t.Errorf("after %v in try %d: %v, want %v", c.later, tries, err, c.want)
		}
		cancel()
	}
}

// A hold of the shadow is longer than the one before, and the other consumer is locked ever more
// rarely within it. Otherwise a switch under overload never ends.
func TestHoldsGrow(t *testing.T) {
	for before, want := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second, 12 * time.Second, 99: 12 * time.Second} {
		if want == 0 {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			began, waits, tries := time.Now(), ops.NotYet(errors.New("it waits")), []time.Duration(nil)
			err := ops.Hold(t.Context(), before, func() error {
				tries = append(tries, time.Since(began))
				return waits
			})
			n := len(tries)
			if took := time.Since(began); err != waits || took < want || took > want*3/2 {
				t.Errorf("hold %d took %v, %v; want %v", before, took, err, want)
			}
			if first, last := tries[1]-tries[0], tries[n-1]-tries[n-2]; first > 100*time.Millisecond || last < want/10 {
				t.Errorf("hold %d: tries at %v", before, tries)
			}
		})
	}
}

// Positions that the shadow has proven to be void are no effects, though the other consumer is in
// doubt of them still. A lock that within waits for is waited for.
func TestSwitchWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 1)
	s.place(t, 5)
	s.open(t, 3, 3)
	if err := s.Shadow(t.Context(), "d", by); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 5 WHERE consumer_name = 'd'`)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('d', gen_random_uuid(), 2, 4, 3, 'void', 5, 5)`)
	s.Exec(t, `CREATE VIEW totals AS SELECT 1 AS version`)
	reader, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback() }()
	if _, err := reader.ExecContext(t.Context(), `SELECT * FROM totals`); err != nil {
		t.Fatal(err)
	}
	tries := 0
	if err := s.Switch(t.Context(), "c", "d", by, func(ctx context.Context, tx *sql.Tx) error {
		if tries++; tries == 2 {
			_ = reader.Rollback()
		}
		_, err := tx.ExecContext(ctx, `DROP VIEW totals`)
		return err
	}); err != nil || tries != 2 {
		t.Errorf("in %d tries: %v", tries, err)
	}
	if got := s.effects(t, "d"); got != liveEffects {
		t.Errorf("the effects are %s", got)
	}
}

// What both consumers are in doubt of, the new one handles when it appears. What an operator has
// discarded has no effect, also where the new consumer is still below.
func TestSwitchOfWhatIsPending(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 5)
	s.place(t, 5)
	s.open(t, 3, 3)
	s.deadLetter(t, 5, "a", 1)
	if err := errors.Join(s.DiscardDeadLetter(t.Context(), "c", 5, by), s.Shadow(t.Context(), "d", by)); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 4 WHERE consumer_name = 'd'`)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('d', gen_random_uuid(), 3, 3, 1, 'open', 4, 4)`)
	if err := s.Switch(inTime(t), "c", "d", by, nil); err != nil {
		t.Fatal(err)
	}
	if got := s.effects(t, "d"); got != liveEffects {
		t.Errorf("the effects are %s, want %s", got, liveEffects)
	}
}

// A consumer that an operator lets begin at a position begins there, whatever its code says.
func TestBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	open := s.begin(t, "b", 1)
	defer func() { _ = open.Rollback() }()
	s.append(t, "a", 1)
	s.settle(t, 3)
	for after, want := range map[int64]error{-1: ops.ErrInvalid, 4: &ops.NotSettledError{To: 4, Settled: 3}, 5: &ops.NotSettledError{To: 5, Settled: 3}} {
		err := s.Begin(t.Context(), "c", after, by)
		var settled *ops.NotSettledError
		if !errors.Is(err, want) && !(errors.As(err, &settled) && settled.To == after && settled.Settled == 3) {
			t.Errorf("after %d: %v, want %v", after, err, want)
		}
	}
	if err := s.Begin(t.Context(), "c", 2, by); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(t.Context(), "c", 1, by); !errors.Is(err, ops.ErrExists) {
		t.Errorf("again: %v", err)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.kinds(t, "c"), "begin c"; got != want {
		t.Errorf("operations: %s, want %s", got, want)
	}
	s.work(t, &ledger{})
	s.awaitHandled(t, "3 4 5")
	if found, err := s.Prove(t.Context(), "c", nil); err != nil || !found.Holds() || found.Events != 3 {
		t.Errorf("the proof is %+v, %v", found, err)
	}
}

// A begin waits for a transaction that inserts the same name, whatever lock_timeout the role has.
func TestBeginWaitsBeyondLockTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := s.begin(t, "held", 1) // any transaction
	if _, err := other.ExecContext(t.Context(), `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c')`); err != nil {
		t.Fatal(err)
	}
	begun := make(chan error, 1)
	go func() { begun <- operator(t, s.OpenSet(t, "lock_timeout", "100")).Shadow(t.Context(), "c", by) }()
	pgtest.AwaitBlockedFor(t, s.DB, 300*time.Millisecond)
	end(t, other.Rollback)
	if err := <-begun; err != nil {
		t.Error(err)
	}
}

// The limit of a lock in within does not limit the record of the switch.
func TestSwitchRecordsBeyondLockTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	if err := s.Shadow(t.Context(), "d", by); err != nil {
		t.Fatal(err)
	}
	other := s.begin(t, "held", 1) // any transaction
	if _, err := other.ExecContext(t.Context(), `LOCK TABLE consumer_operations`); err != nil {
		t.Fatal(err)
	}
	switched, tries := make(chan error, 1), 0
	go func() {
		switched <- s.Switch(t.Context(), "c", "d", by, func(context.Context, *sql.Tx) error { tries++; return nil })
	}()
	pgtest.AwaitBlockedFor(t, s.DB, 1200*time.Millisecond)
	end(t, other.Rollback)
	if err := <-switched; err != nil || tries != 1 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
