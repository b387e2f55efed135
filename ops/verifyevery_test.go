package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// alarm runs VerifyEvery until the test ends or end is called, which returns its error.
type alarm struct {
	mu   sync.Mutex
	told []observe.Event
	end  func() error
}

func (s site) alarm(t *testing.T, o *ops.Operator, of consumer.Forgetter) *alarm {
	t.Helper()
	a := &alarm{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- o.VerifyEvery(ctx, drawn(of), time.Second, func(e observe.Event) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.told = append(a.told, e)
		})
	}()
	a.end = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = a.end() })
	return a
}

// await waits for an event that is.
func (a *alarm) await(t *testing.T, what string, is func(e observe.Event) bool) {
	t.Helper()
	await(t, what, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, e := range a.told {
			if is(e) {
				return true
			}
		}
		return false
	})
}

// VerifyEvery notifies of rows that were changed, and of no others. It names the aggregate, and not its rows.
func TestVerifyEvery(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "secret"), forgetTotals}
	s := verifySite(t, right)
	a := s.alarm(t, s.Operator, right)
	a.await(t, "a right aggregate", func(e observe.Event) bool {
		v, ok := e.(observe.Verified)
		return ok && observe.Level(e) == slog.LevelDebug && v.Consumer == "c" && v.AggregateType == "Order" && v.Events > 0
	})
	a.mu.Lock()
	for _, e := range a.told {
		if observe.Level(e) > slog.LevelDebug {
			t.Errorf("notified of %+v", e)
		}
	}
	a.mu.Unlock()
	s.Exec(t, `UPDATE totals SET n = -1`)
	a.await(t, "an aggregate that differs", func(e observe.Event) bool {
		v, ok := e.(observe.Verified)
		return ok && observe.Level(e) == slog.LevelWarn && v.Missing == 1 && v.Unexpected == 1 && (v.AggregateID == "a" || v.AggregateID == "b")
	})
	if err := a.end(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if text := fmt.Sprintf("%+v", a.told); strings.Contains(text, "secret") {
		t.Errorf("the events have rows: %s", text)
	}
}

// VerifyEvery goes on after an outage of the database, and after a handler's failure.
func TestVerifyEveryGoesOn(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	db, back := s.OpenAway(t)
	failed := false
	a := s.alarm(t, operator(t, db), totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if !failed {
			failed = true
			panic("refused")
		}
		if ends, ok := ctx.Deadline(); !ok || ends.After(time.Now().Add(time.Minute)) {
			return errors.New("the consumer may wait for longer than a minute")
		}
		return right.add(ctx, tx, e)
	}, forgetTotals})
	a.await(t, "an outage", func(e observe.Event) bool {
		f, ok := e.(observe.TaskFailed)
		return ok && f.Consumer == "c" && f.Kind == observe.KindVerify && f.Err != nil
	})
	back()
	a.await(t, "the end of the outage", func(e observe.Event) bool {
		r, ok := e.(observe.Recovered)
		return ok && r.Consumer == "c" && r.Condition == observe.ConditionDatabase
	})
	a.await(t, "the failure of the handler", func(e observe.Event) bool {
		v, ok := e.(observe.Verified)
		return ok && v.Err != nil && v.Position > 0 && observe.Level(e) == slog.LevelWarn
	})
	a.await(t, "a right aggregate", func(e observe.Event) bool {
		v, ok := e.(observe.Verified)
		return ok && v.Err == nil && v.Events > 0
	})
}

// VerifyEvery ends if to go on would do harm, or is in vain.
func TestVerifyEveryEnds(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	for says, of := range map[string]ops.Verification{"leave it empty": verification(right), "1s or more": drawn(right)} {
		every := time.Second
		if of.AggregateID == "" {
			every--
		}
		if err := s.VerifyEvery(t.Context(), of, every); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	commits := totals{func(_ context.Context, tx *sql.Tx, _ store.PersistedEvent) error { return tx.Commit() }, `SELECT $1::text`}
	if err := s.VerifyEvery(t.Context(), drawn(commits), time.Second); err == nil || !strings.Contains(err.Error(), "Commit") {
		t.Errorf("a handler that commits: %v", err)
	}
	wrong := drawn(right)
	wrong.Rows = `SELECT FROM nowhere WHERE id = $1`
	if err := s.VerifyEvery(t.Context(), wrong, time.Second); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("a query without its table: %v", err)
	}
	db := s.OpenSet(t, "application_name", "closed")
	end(t, db.Close)
	if err := operator(t, db).VerifyEvery(t.Context(), drawn(right), time.Second); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a closed pool: %v", err)
	}
}
