package jobs_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
)

func statements(all ...string) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range all {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
}

// breach is a way in which a handler breaks the rules of its transaction.
type breach struct {
	do      func(ctx context.Context, tx *sql.Tx) error
	commits bool // the writes of the handler before the breach
}

var breaches = map[string]breach{
	"tx.Commit":   {do: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, commits: true},
	"tx.Rollback": {do: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }},
	"COMMIT":      {do: statements(`COMMIT`), commits: true},
	"ROLLBACK":    {do: statements(`ROLLBACK`)},
	"PREPARE TRANSACTION": {do: func(ctx context.Context, tx *sql.Tx) error {
		return statements(`PREPARE TRANSACTION '`+rand.Text()+`'`)(ctx, tx)
	}},
	"COMMIT AND CHAIN":   {do: statements(`COMMIT AND CHAIN`), commits: true},
	"ROLLBACK AND CHAIN": {do: statements(`ROLLBACK AND CHAIN`)},
	"COMMIT, BEGIN":      {do: statements(`COMMIT`, `BEGIN`), commits: true},
}

var sequels = map[string]func() error{
	"returns nil":      func() error { return nil },
	"returns an error": func() error { return errRefused },
	"panics":           func() error { panic(errRefused) },
}

// newEffects returns a stage with a table for the writes of handlers.
func newEffects(t *testing.T) *stage {
	t.Helper()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	return s
}

func (s *stage) effects(t *testing.T) (n int) {
	t.Helper()
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM effects`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// effectsOf counts the effects with a number.
func (s *stage) effectsOf(n int) (count int) {
	s.t.Helper()
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM effects WHERE n = $1`, n).Scan(&count); err != nil {
		s.t.Fatal(err)
	}
	return count
}

// A handler that ends its transaction is not called again, since its writes may be committed. The
// error says so. Jobs of other calls are unharmed.
func TestHandlerThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	type ending struct{ how, then string }
	var all []ending
	for how := range breaches {
		for then := range sequels {
			all = append(all, ending{how, then})
		}
	}
	for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			s := newEffects(t)
			jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
				s.note("ran %d", j.Args.N)
				if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N); err != nil {
					return err
				}
				if err := breaches[all[j.Args.N].how].do(ctx, tx); err != nil {
					return err
				}
				return sequels[all[j.Args.N].then]()
			}, jobs.MaxAttempts(3), jobs.Retry(jobs.Fixed(0)))
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[other]) error { return nil })
			var ids, others []int64
			for n := range all {
				ids, others = append(ids, s.add(task{n})), append(others, s.add(other{}))
			}
			_, stop := s.runOn(open(t, s.d), jobs.WithQueue("default", 1))
			for n, e := range all {
				t.Run(e.how+", "+e.then, func(t *testing.T) {
					on := s.with(t)
					i, ran, effects := on.ended(ids[n]), s.noted("ran %d", n), on.effectsOf(n)
					switch {
					case e.how == "PREPARE TRANSACTION" && strings.Contains(i.Error, "max_prepared_transactions"):
						if i.State != jobs.StateFailed || effects != 0 {
							t.Errorf("the job is %s with %d effects", i.State, effects)
						}
					default:
						if i.State != jobs.StateFailed || i.Code != jobs.CodeTxEnded || ran != 1 || !strings.Contains(i.Error, "ended its transaction") {
							t.Errorf("the job is %s, %s after %d runs: %s", i.State, i.Code, ran, i.Error)
						}
						if want := map[bool]int{true: 1}[breaches[e.how].commits]; effects != want {
							t.Errorf("%d effects", effects)
						}
					}
					if i := on.ended(others[n]); i.State != jobs.StateCompleted || i.Failures+i.Resets > 0 {
						t.Errorf("another job is %s after %d failures: %s", i.State, i.Failures, i.Error)
					}
				})
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A batch whose handler has ended its transaction is not split.
func TestBatchThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	var all []string // the queues
	for how := range breaches {
		if how != "PREPARE TRANSACTION" {
			all = append(all, how)
		}
	}
	const size = 8
	for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			s := newEffects(t)
			jobs.RegisterBatchTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, batch []*jobs.Job[task]) error {
				q := batch[0].Args.N / size
				s.note("ran %d", q)
				for _, j := range batch {
					if j.Args.N%size == 3 {
						j.Settle(jobs.Discard(errRefused))
						continue
					}
					if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N/size); err != nil {
						return err
					}
				}
				return breaches[all[q]].do(ctx, tx)
			}, jobs.Retry(jobs.Fixed(0)))
			var ids []int64
			var queues []jobs.Option
			for q := range all {
				name := fmt.Sprint("q", q)
				queues = append(queues, jobs.WithQueue(name, 2*size))
				for n := range size {
					ids = append(ids, s.add(task{q*size + n}, jobs.Queue(name)))
				}
			}
			s.runOn(open(t, s.d), queues...)
			for q, how := range all {
				t.Run(how, func(t *testing.T) {
					on := s.with(t)
					for n, id := range ids[q*size : (q+1)*size] {
						i, want := on.ended(id), "failed TX_ENDED"
						if n == 3 {
							want = "cancelled "
						}
						if got := fmt.Sprint(i.State, " ", i.Code); got != want || i.Attempt != 1 {
							t.Errorf("job %d is %s after %d attempts: %s", n, got, i.Attempt, i.Error)
						}
					}
					if n, calls := on.effectsOf(q), s.noted("ran %d", q); calls != 1 || n != (size-1)*map[bool]int{true: 1}[breaches[how].commits] {
						t.Errorf("after %d calls there are %d effects", calls, n)
					}
				})
			}
		})
	}
}

// A handler that ignores an error of PostgreSQL gets a failure: nothing can be committed.
func TestHandlerThatIgnoresAnError(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		t.Run(driver, func(t *testing.T) {
			s := newEffects(t)
			jobs.RegisterBatchTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[task]) error {
				if err := statements(`INSERT INTO effects VALUES (1)`)(ctx, tx); err != nil {
					return err
				}
				if slices.ContainsFunc(all, func(j *jobs.Job[task]) bool { return j.Args.N == 2 }) {
					_ = statements(`SELECT 1/0`)(ctx, tx)
				}
				return nil
			}, jobs.MaxAttempts(1))
			var ids []int64
			for n := range 5 {
				ids = append(ids, s.add(task{n}))
			}
			s.runOn(open(t, s.d))
			for n, id := range ids {
				i := s.ended(id)
				if n == 2 && (i.State != jobs.StateFailed || !strings.Contains(i.Error, "return the error of that statement")) || n != 2 && i.State != jobs.StateCompleted {
					t.Errorf("job %d is %s: %s", n, i.State, i.Error)
				}
			}
		})
	}
}

// Settings that a handler leaves in its session do not stop the worker. The session leaves the pool
// when a statement of the worker fails in it.
func TestSpoiledSessions(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"role": `SET ROLE pg_monitor`, "search path": `SET search_path = pg_temp`, "reset": `RESET ALL`, "read only": `SET default_transaction_read_only = on`,
		"time-out": `SET statement_timeout = 1`, "idle time-out": `SET idle_in_transaction_session_timeout = 1`, "lock": `SELECT pg_try_advisory_lock(1)`,
		"temporary table": `CREATE TEMP TABLE jobs (n int)`, "prepared": `PREPARE nothing AS SELECT 1`, "dates": `SET DateStyle = 'German'`,
		"isolation": `SET default_transaction_isolation = 'serializable'`, "discard": `DEALLOCATE ALL`, "listen": `LISTEN nothing`, "off": `SET standard_conforming_strings = off`,
	} {
		for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
			t.Run(name+" "+driver, func(t *testing.T) {
				if driver == "lib/pq" && name != "role" && name != "reset" {
					tier.Long(t, "TestSpoiledSessions, which sets a role and resets all over lib/pq")
				}
				t.Parallel()
				s := newEffects(t)
				jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
					if j.Args.N < 3 {
						return statements(`INSERT INTO public.effects VALUES (1)`, spoil)(ctx, tx)
					}
					return statements(`INSERT INTO public.effects VALUES (1)`)(ctx, tx)
				}, jobs.Retry(jobs.Fixed(0)))
				db := open(t, s.d)
				db.SetMaxIdleConns(3)
				_, stop := s.runOn(db, jobs.WithPrefetch(2))
				for n := range 6 {
					if i := s.ended(s.add(task{n})); i.State != jobs.StateCompleted && (n >= 3 || name == "reset") {
						t.Errorf("job %d is %s: %s", n, i.State, i.Error)
					}
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A handler that kills its own session, or hangs in a statement, harms no other job.
func TestHandlerThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		for then, sequel := range sequels {
			t.Run(driver+" "+then, func(t *testing.T) {
				t.Parallel()
				s := newEffects(t)
				jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
					if err := statements(`INSERT INTO effects VALUES (1)`)(ctx, tx); err != nil {
						return err
					}
					if j.Args.N > 0 {
						return nil
					}
					_ = statements(`SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx)
					return sequel()
				})
				killer := s.add(task{0}, jobs.MaxResets(1))
				s.runOn(open(t, s.d))
				for n := range 3 {
					if i := s.ended(s.add(task{1 + n})); i.State != jobs.StateCompleted {
						t.Errorf("another job is %s: %s", i.State, i.Error)
					}
				}
				if i := s.ended(killer); i.State != jobs.StateFailed || i.Failures+i.Resets == 0 {
					t.Errorf("the job is %s, %s, %d resets: %s", i.State, i.Code, i.Resets, i.Error)
				}
				if n := s.effects(t); n != 3 {
					t.Errorf("%d effects", n)
				}
			})
		}
	}
}

// A handler that hangs in a statement loses its job, whether it passes the context or not. It
// commits nothing when it returns.
func TestHandlerThatHangsInAStatement(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]pgtest.Opener{"pgx": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		for how, obeys := range map[string]bool{"heeds": true, "ignores": false} {
			t.Run(driver+" "+how, func(t *testing.T) {
				t.Parallel()
				s := newEffects(t)
				jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
					defer s.note("returned")
					if j.Attempt > 1 {
						return statements(`INSERT INTO effects VALUES (2)`)(ctx, tx)
					}
					if !obeys {
						ctx = context.Background()
					}
					return statements(`INSERT INTO effects VALUES (1)`, `SELECT pg_advisory_xact_lock(7)`)(ctx, tx)
				}, jobs.Timeout(2*time.Second), jobs.Retry(jobs.Fixed(0)))
				holder, err := s.d.DB.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer holder.Close()
				if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_lock(7)`); err != nil {
					t.Fatal(err)
				}
				id := s.add(task{})
				w := jobs.NewWorker(open(t, s.d), s.Handlers, quick()...)
				jobs.SetGrace(w, 200*time.Millisecond)
				result := make(chan error, 1)
				go func() { result <- w.Start(t.Context()) }()
				i := s.ended(id)
				if i.State != jobs.StateCompleted || i.Failures < 1 || slices.ContainsFunc(i.Attempts, func(a jobs.Attempt) bool { return a.Code != jobs.CodeTimeout }) { // a slow machine may need a third attempt
					t.Errorf("the job is %s, %d failures, %+v: %s", i.State, i.Failures, i.Attempts, i.Error)
				}
				if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_unlock(7)`); err != nil {
					t.Fatal(err)
				}
				s.until("all handlers to return", func() bool { return len(s.notes()) == i.Failures+1 })
				w.Stop()
				if err := <-result; err != nil && !errors.Is(err, jobs.ErrHandlerOverdue) {
					t.Error(err)
				}
				var effects string
				if err := s.d.DB.QueryRow(`SELECT string_agg(n::text, ' ') FROM effects`).Scan(&effects); err != nil || effects != "2" {
					t.Errorf("the effects are %q, %v", effects, err)
				}
			})
		}
	}
}
