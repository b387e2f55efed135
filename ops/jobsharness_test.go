package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// jobsSite is a database with the tables of jobs, and a Jobs.
type jobsSite struct {
	*pgtest.Database
	*ops.Jobs
}

func newJobsSite(t testing.TB) jobsSite {
	t.Helper()
	d := pgtest.Jobs(t)
	return jobsSite{d, jobsOperator(t, d.DB)}
}

func jobsOperator(t testing.TB, db *sql.DB) *ops.Jobs {
	t.Helper()
	o, err := ops.NewJobs(db)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// value returns the value of a query.
func value[T any](t testing.TB, s jobsSite, query string, args ...any) (v T) {
	t.Helper()
	if err := s.DB.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return v
}

// add inserts a job with every column set, in a state, and returns its ID.
func (s jobsSite) add(t testing.TB, state jobs.State) int64 {
	t.Helper()
	id := value[int64](t, s, `INSERT INTO jobs (kind, queue, priority, run_at, good_until, args, meta, attempt, failures, resets, max_attempts, max_resets, unique_key)
		VALUES ('mail', 'slow', 3, clock_timestamp() - interval '1 minute', clock_timestamp() + interval '1 day', '{"to": 7}', '{"by": "me"}', 4, 2, 1, 6, 3, gen_random_uuid()::text)
		RETURNING id`)
	s.put(t, id, state)
	return id
}

// put changes the state of a job, as workers do.
func (s jobsSite) put(t testing.TB, id int64, state jobs.State) {
	t.Helper()
	switch state {
	case jobs.StateAvailable:
	case jobs.StateRunning:
		s.Exec(t, `UPDATE jobs SET state = 'running', claim = 7, claimed_by = '12345678-0000-0000-0000-000000000000', claimed_at = clock_timestamp(), started_at = clock_timestamp() WHERE id = $1`, id)
	default:
		s.Exec(t, `WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING *)
			INSERT INTO jobs_history (id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, state, claim, claimed_by, started_at, code, error, result)
			SELECT id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, $2, 7, '12345678-0000-0000-0000-000000000000', run_at, 'E7', 'boom', '{"n": 1}' FROM gone`, id, string(state))
	}
}

// later makes a job due in an hour.
func (s jobsSite) later(t testing.TB, id int64) {
	t.Helper()
	s.Exec(t, `UPDATE jobs SET run_at = clock_timestamp() + interval '1 hour' WHERE id = $1`, id)
}

// is returns the state of a job, empty if there is no job.
func (s jobsSite) is(t testing.TB, id int64) jobs.State {
	t.Helper()
	return value[jobs.State](t, s, `SELECT coalesce((SELECT state FROM jobs WHERE id = $1), (SELECT state FROM jobs_history WHERE id = $1), '')`, id)
}

// last returns the latest operation, and unmarshals its detail.
func (s jobsSite) last(t testing.TB, detail any) ops.Operation {
	t.Helper()
	all, err := s.Operations(t.Context(), ops.OperationFilter{}, 1)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d operations, %v", len(all), err)
	}
	if err := json.Unmarshal(all[0].Detail, detail); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// traces counts the rows that operations write.
func (s jobsSite) traces(t testing.TB) int64 {
	t.Helper()
	return value[int64](t, s, `SELECT (SELECT count(*) FROM jobs_operations) + coalesce((SELECT count FROM jobs_changes), 0)`)
}

// queue returns a queue of the list.
func (s jobsSite) queue(t testing.TB, name string) ops.Queue {
	t.Helper()
	all, err := s.Queues(t.Context())
	if err != nil || all[0].Name != ops.AllQueues {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, q := range all {
		if q.Name == name {
			return q
		}
	}
	return ops.Queue{}
}

func (s jobsSite) list(t testing.TB, f ops.JobFilter, limit int) []ops.Job {
	t.Helper()
	all, err := s.List(t.Context(), f, limit)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// says fails the test unless an error is one line and contains the words.
func says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v; want %q in it, on one line", err, w)
		}
	}
}

// isRetried reports whether an error refuses a job that was retried before.
func isRetried(err error) bool {
	var refused *ops.StateError
	return errors.As(err, &refused) && strings.Contains(err.Error(), "it was retried before")
}
