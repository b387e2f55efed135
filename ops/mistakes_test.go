package ops_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type handle = func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error

// mistake is a handler with a mistake.
type mistake struct {
	each   handle
	batch  func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error // in place of each
	forget string                                                                     // empty: forgetTotals
	right  handle                                                                     // without the mistake; nil: counted
}

func (m mistake) consumer() consumer.Forgetter {
	p := totals{m.each, cmp.Or(m.forget, forgetTotals)}
	if m.batch != nil {
		return bulk{p, m.batch}
	}
	return p
}

// bulk is totals that handles the events of a batch together.
type bulk struct {
	totals
	batch func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
}

func (p bulk) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	return p.batch(ctx, tx, events)
}

// next is totals by another name, and without a mistake.
type next struct{ totals }

func (next) Name() string { return "d" }

// counted counts the events.
func counted(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return count(1, "x")(ctx, tx, e)
}

// first reports whether an event is handled for the first time.
func first(ctx context.Context) bool {
	of, _ := consumer.Info(ctx)
	return !of.Replay
}

// mistakes returns handlers for the site of a pool, and only for that: they have a memory.
func mistakes(db *sql.DB) map[string]mistake {
	failed, memory := false, 0
	return map[string]mistake{
		"lost update": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if e.GlobalPosition == 2 && first(ctx) {
				return nil
			}
			return counted(ctx, tx, e)
		}},
		"double insert": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if e.GlobalPosition == 3 && first(ctx) {
				return count(2, "xx")(ctx, tx, e)
			}
			return counted(ctx, tx, e)
		}},
		"pool": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if err := besides(ctx, db, e); err != nil {
				return err
			}
			if e.GlobalPosition == 3 && !failed {
				failed = true
				return errors.New("the rest of the handler fails")
			}
			return nil
		}},
		"memory": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			memory++
			return count(memory, "x")(ctx, tx, e)
		}},
		"time": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			return count(1, fmt.Sprint(time.Now().UnixNano()))(ctx, tx, e)
		}},
		"randomness": {each: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			return count(rand.IntN(1<<30), "x")(ctx, tx, e)
		}},
		"wrong order":     {batch: lastFirst, right: positions},
		"float":           {batch: float, right: amounts},
		"order of a map":  {each: ofMap},
		"missing delete":  {each: keeping, forget: `SELECT $1::text`, right: deleting},
		"swallowed error": {each: swallowing},
	}
}

// besides counts an event in a transaction of its own.
func besides(ctx context.Context, db *sql.DB, e store.PersistedEvent) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = '1s'`); err != nil {
		return err
	}
	if err := counted(ctx, tx, e); err != nil {
		return err
	}
	return tx.Commit()
}

func positions(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return count(1, fmt.Sprint(e.GlobalPosition))(ctx, tx, e)
}

func lastFirst(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	for _, e := range slices.Backward(events) {
		if err := positions(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// amount is 1, or a number that float32 does not have.
func amount(e store.PersistedEvent) int {
	if e.GlobalPosition == 1 {
		return 1<<24 + 1
	}
	return 1
}

func amounts(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return count(amount(e), "")(ctx, tx, e)
}

// float adds up the amounts of a batch before it writes them.
func float(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	sums := map[string]float32{}
	for _, e := range events {
		sums[e.AggregateID] += float32(amount(e))
	}
	for id, sum := range sums {
		if err := count(int(sum), "")(ctx, tx, store.PersistedEvent{AggregateID: id}); err != nil {
			return err
		}
	}
	return nil
}

func ofMap(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	all, text := map[int]bool{}, ""
	for i := range 1000 {
		all[i] = true
	}
	for i := range all {
		text += fmt.Sprint(i)
	}
	return count(1, text)(ctx, tx, e)
}

// keeping leaves the row that the last event deletes.
func keeping(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if e.GlobalPosition == 6 {
		return nil
	}
	return counted(ctx, tx, e)
}

func deleting(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if e.GlobalPosition == 6 {
		_, err := tx.ExecContext(ctx, forgetTotals, e.AggregateID)
		return err
	}
	return counted(ctx, tx, e)
}

// swallowing goes on after an error: of its own statement, or of a replay.
func swallowing(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if first(ctx) && e.GlobalPosition != 3 {
		return counted(ctx, tx, e)
	}
	if first(ctx) {
		_, _ = tx.ExecContext(ctx, `SAVEPOINT mine`)
		defer func() { _, _ = tx.ExecContext(ctx, `ROLLBACK TO mine`) }()
	}
	_, _ = tx.ExecContext(ctx, `SELECT 1/0`)
	return nil
}

// Verify finds mistakes of a handler in what it has written.
func TestVerifyFindsMistakes(t *testing.T) {
	t.Parallel()
	for name := range mistakes(nil) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := totalsSite(t)
			wrong := mistakes(s.DB)[name].consumer()
			s.handle(t, wrong)
			found, err := s.Verify(inTime(t), verification(wrong))
			if name == "pool" && err != nil && strings.Contains(err.Error(), "call Handle at position 1, which waits for Verify if it writes through the pool") {
				return
			}
			if err != nil || len(found.Missing)+len(found.Unexpected) == 0 && found.Err == nil {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}

// Compare finds mistakes of a handler once there is one without them, and nothing between two of
// those.
func TestCompareFindsMistakes(t *testing.T) {
	t.Parallel()
	all := mistakes(nil)
	all["none"] = mistake{each: counted}
	for name := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := totalsSite(t)
			m, is := mistakes(s.DB)[name]
			if !is {
				m = all[name]
			}
			s.handle(t, m.consumer())
			s.Exec(t, `ALTER TABLE totals RENAME TO old; CREATE TABLE totals (LIKE old INCLUDING ALL)`)
			right := m.right
			if right == nil {
				right = counted
			}
			s.handle(t, next{totals{right, forgetTotals}})
			found, err := s.Compare(inTime(t), ops.Comparison{Old: "c", New: "d", OldRows: `SELECT * FROM old`, NewRows: `SELECT * FROM totals`})
			if err != nil || len(found.OnlyOld)+len(found.OnlyNew) > 0 != is {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}
