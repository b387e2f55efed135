package queue

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Found is a finished or unfinished job.
type Found struct {
	Job
	Queue      string
	State      string
	CreatedAt  time.Time
	GoodUntil  *time.Time
	StartedAt  *time.Time
	Worker     uuid.UUID
	FinishedAt *time.Time
	Code       string
	Error      string
	Result     json.RawMessage
	Attempts   []Attempt // the latest first
}

// Attempt is a run that did not finish its job.
type Attempt struct {
	Number    int
	Worker    uuid.UUID
	StartedAt *time.Time
	EndedAt   time.Time
	Outcome   string
	Code      string
	Error     string
}

// Find returns a job. It returns sql.ErrNoRows if there is none.
func (q *Queue) Find(ctx context.Context, on store.Querier, id int64) (f Found, err error) {
	var args, meta, result []byte
	var worker uuid.NullUUID
	var due, goodUntil, started, finished sql.NullTime
	err = on.QueryRowContext(ctx, q.sql.find, id).Scan(&f.ID, &f.Kind, &f.Queue, &f.Priority, &due, &goodUntil, &f.State, &args, &meta, &f.CreatedAt,
		&f.Attempt, &f.Failures, &f.Resets, &f.Most, &started, &worker, &finished, &f.Code, &f.Error, &result)
	if err != nil {
		return f, fmt.Errorf("jobs: read job %d: %w", id, err)
	}
	f.Args, f.Meta, f.Result, f.Worker = args, meta, result, worker.UUID
	f.RunAt, f.CreatedAt, f.GoodUntil, f.StartedAt, f.FinishedAt = due.Time.UTC(), f.CreatedAt.UTC(), utc(goodUntil), utc(started), utc(finished)
	f.Attempts, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (a Attempt, err error) {
		var worker uuid.NullUUID
		var started sql.NullTime
		err = r.Scan(&a.Number, &worker, &started, &a.EndedAt, &a.Outcome, &a.Code, &a.Error)
		a.Worker, a.StartedAt, a.EndedAt = worker.UUID, utc(started), a.EndedAt.UTC()
		return a, err
	}, q.sql.attempts, id)
	if err != nil {
		return f, fmt.Errorf("jobs: read the attempts of job %d: %w", id, err)
	}
	return f, nil
}

// utc returns a time in UTC, nil for NULL. In another zone the year may be 10000, which JSON
// cannot represent.
func utc(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	at := t.Time.UTC()
	return &at
}

// Tally is the number of jobs of a queue in a state.
type Tally struct {
	Queue, State string
	Jobs         int64
	More         bool // more jobs than were counted
}

// Counts counts the unfinished jobs of each queue, up to a bound.
func (q *Queue) Counts(ctx context.Context, on store.Querier) ([]Tally, error) {
	all, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (t Tally, err error) {
		return t, r.Scan(&t.Queue, &t.State, &t.Jobs, &t.More)
	}, q.sql.counts)
	if err != nil {
		return nil, fmt.Errorf("jobs: count: %w", err)
	}
	return all, nil
}

// LogEntry is an entry in the log of a run.
type LogEntry struct {
	Attempt int
	At      time.Time
	Entry   json.RawMessage
}

// Logs returns the log of the runs of a job.
func (q *Queue) Logs(ctx context.Context, on store.Querier, id int64) ([]LogEntry, error) {
	all, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (l LogEntry, err error) {
		var entry []byte
		err = r.Scan(&l.Attempt, &l.At, &entry)
		l.At, l.Entry = l.At.UTC(), entry
		return l, err
	}, q.sql.logs, id)
	if err != nil {
		return nil, fmt.Errorf("jobs: read the log of job %d: %w", id, err)
	}
	return all, nil
}
