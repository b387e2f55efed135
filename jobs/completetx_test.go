package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// CompleteTx ties the job to a transaction of the handler's own. If the transaction commits, the
// job does not run again. If it does not commit, the run has failed.
func TestCompleteTx(t *testing.T) {
	t.Parallel()
	elsewhere := newStage(t)
	complete := func(end func(tx *sql.Tx) error, then error) func(*stage, *jobs.Job[task]) error {
		return func(s *stage, j *jobs.Job[task]) error {
			tx, err := s.d.DB.Begin()
			if err != nil {
				return err
			}
			if _, err := tx.Exec(`INSERT INTO effects VALUES (1)`); err != nil {
				return err
			}
			err = j.CompleteTx(context.Background(), tx)
			return errors.Join(err, end(tx), then)
		}
	}
	for name, test := range map[string]struct {
		handle  func(*stage, *jobs.Job[task]) error
		want    jobs.State
		says    string
		effects int
	}{
		"commit":               {complete((*sql.Tx).Commit, nil), jobs.StateCompleted, "", 1},
		"commit and an error":  {complete((*sql.Tx).Commit, errRefused), jobs.StateCompleted, "", 1},
		"rollback":             {complete((*sql.Tx).Rollback, nil), jobs.StateFailed, "has not committed", 0},
		"rollback, an error":   {complete((*sql.Tx).Rollback, errRefused), jobs.StateFailed, "refused", 0},
		"commit and a panic":   {complete(func(tx *sql.Tx) error { _ = tx.Commit(); panic("boom") }, nil), jobs.StateCompleted, "", 1},
		"rollback and a panic": {complete(func(tx *sql.Tx) error { _ = tx.Rollback(); panic("boom") }, nil), jobs.StateFailed, "boom", 0},
		"committed a moment later": {complete(func(tx *sql.Tx) error {
			time.AfterFunc(500*time.Millisecond, func() { _ = tx.Commit() })
			return nil
		}, nil), jobs.StateCompleted, "", 1},
		"left open for a while": {complete(func(tx *sql.Tx) error {
			t.Cleanup(func() { _ = tx.Rollback() })
			return nil
		}, nil), jobs.StateRunning, "", 0},
		"twice": {func(s *stage, j *jobs.Job[task]) error {
			tx, err := s.d.DB.Begin()
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return errors.Join(j.CompleteTx(context.Background(), tx), j.CompleteTx(context.Background(), tx))
		}, jobs.StateFailed, "lost", 0},
		"nil": {func(_ *stage, j *jobs.Job[task]) error { return j.CompleteTx(context.Background(), nil) }, jobs.StateFailed, "tx is nil", 0},
		"another database's": {func(_ *stage, j *jobs.Job[task]) error {
			tx, err := elsewhere.d.DB.Begin()
			if err != nil {
				return err
			}
			err = j.CompleteTx(context.Background(), tx)
			return errors.Join(err, tx.Commit())
		}, jobs.StateFailed, "lost", 0},
		"another database's, ignored": {func(_ *stage, j *jobs.Job[task]) error {
			tx, err := elsewhere.d.DB.Begin()
			if err != nil {
				return err
			}
			_ = j.CompleteTx(context.Background(), tx)
			return tx.Commit()
		}, jobs.StateFailed, "has not committed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.d.Exec(t, `CREATE TABLE effects (n int)`)
			done := make(chan observe.JobDone, 10)
			jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
				defer s.note("ran")
				return test.handle(s, j)
			}, jobs.MaxAttempts(1))
			id := s.add(task{})
			_, stop := s.runOn(s.d.DB, jobs.WithObserver(observe.On(func(d observe.JobDone) { done <- d })))
			if test.want == jobs.StateRunning {
				s.until("the job to have run", func() bool { return len(s.notes()) == 1 })
				other := s.add(task{})
				s.until("another one to have run", func() bool { return len(s.notes()) == 2 })
				for _, id := range []int64{id, other} {
					if i, err := s.Get(t.Context(), id); err != nil || i.State != jobs.StateRunning {
						t.Errorf("the job is %s: %s, %v", i.State, i.Error, err)
					}
				}
				s.d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()`)
				if i := s.ended(id); i.State != jobs.StateFailed {
					t.Errorf("the job is %s: %s", i.State, i.Error)
				}
				s.ended(other)
				return
			}
			i := s.ended(id)
			s.until("the handler to have returned", func() bool { return len(s.notes()) > 0 })
			if i.State != test.want || !strings.Contains(i.Error, test.says) || len(s.notes()) != 1 {
				t.Errorf("the job is %s after %d runs: %s", i.State, len(s.notes()), i.Error)
			}
			if d := <-done; d.State != string(test.want) || (d.Err == nil) != (test.want == jobs.StateCompleted) || d.Failed == (d.Err == nil) {
				t.Errorf("the outcome is %s, failed %t, %v", d.State, d.Failed, d.Err)
			}
			var effects int
			if err := s.d.DB.QueryRow(`SELECT count(*) FROM effects`).Scan(&effects); err != nil || effects != test.effects {
				t.Errorf("%d effects, %v", effects, err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// CompleteTx returns an error in a handler of RegisterTx.
func TestCompleteTxInATransactionOfTheWorker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error { return j.CompleteTx(ctx, tx) }, jobs.MaxAttempts(1))
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[other]) error {
		_ = j.CompleteTx(ctx, tx)
		return nil
	})
	reported, ignored := s.add(task{}), s.add(other{})
	s.run()
	if i := s.ended(reported); i.State != jobs.StateFailed || !strings.Contains(i.Error, "return nil") {
		t.Errorf("the job is %s: %s", i.State, i.Error)
	}
	if i := s.ended(ignored); i.State != jobs.StateCompleted {
		t.Errorf("the job is %s: %s", i.State, i.Error)
	}
}

// A handler may set a role that may not write the tables of jobs.
func TestRegisterTxAsAnotherRole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	role := "tenant_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	s.d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { s.d.Exec(t, `DROP OWNED BY `+role+` CASCADE`); s.d.Exec(t, `DROP ROLE `+role) })
	s.d.Exec(t, `CREATE TABLE kept (who text)`)
	s.d.Exec(t, `GRANT INSERT ON kept TO `+role)
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
		if _, err := tx.ExecContext(ctx, `SET LOCAL ROLE `+role); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO kept VALUES (current_user)`)
		return err
	}, jobs.MaxAttempts(1))
	for _, db := range []*sql.DB{s.d.DB, s.d.OpenPQ(t)} {
		id := s.add(task{1})
		_, stop := s.runOn(db)
		if i := s.ended(id); i.State != jobs.StateCompleted {
			t.Errorf("the job is %s: %s", i.State, i.Error)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	var n int
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM kept WHERE who = $1`, role).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows of the role, %v", n, err)
	}
}
