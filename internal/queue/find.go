package queue

import (
	"context"
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

// Reader reads jobs and their logs, for which it also writes.
type Reader struct{ sql readSQL }

type readSQL struct{ find, attempts, counts, logs, await, log string }

// Find returns a job. It returns sql.ErrNoRows if there is none.
func (q *Reader) Find(ctx context.Context, on store.Querier, id int64) (f Found, err error) {
	err = on.QueryRowContext(ctx, q.sql.find, id).Scan(&f.ID, &f.Kind, &f.Queue, &f.Priority, pgdriver.UTC(&f.RunAt), pgdriver.UTCOrNil(&f.GoodUntil), &f.State, pgdriver.RawJSON(&f.Args), pgdriver.RawJSON(&f.Meta), pgdriver.UTC(&f.CreatedAt),
		&f.Attempt, &f.Failures, &f.Resets, &f.Most, pgdriver.UTCOrNil(&f.StartedAt), &f.Worker, pgdriver.UTCOrNil(&f.FinishedAt), &f.Code, &f.Error, pgdriver.RawJSON(&f.Result))
	if err != nil {
		return f, fmt.Errorf("jobs: read job %d: %w", id, err)
	}
	f.Attempts, err = pgdriver.QueryAll(ctx, on, pgdriver.Columns(func(a *Attempt) []any {
		return []any{&a.Number, &a.Worker, pgdriver.UTCOrNil(&a.StartedAt), pgdriver.UTC(&a.EndedAt), &a.Outcome, &a.Code, &a.Error}
	}), q.sql.attempts, id)
	if err != nil {
		return f, fmt.Errorf("jobs: read the attempts of job %d: %w", id, err)
	}
	return f, nil
}

// Tally is the number of jobs of a queue in a state.
type Tally struct {
	Queue, State string
	Jobs         int64
	More         bool // more jobs than were counted
}

// Counts counts the unfinished jobs of each queue, up to a bound.
func (q *Reader) Counts(ctx context.Context, db pgdriver.Pool) ([]Tally, error) {
	all, err := pgdriver.ReadAll(ctx, db, pgdriver.Columns(func(t *Tally) []any { return []any{&t.Queue, &t.State, &t.Jobs, &t.More} }), q.sql.counts)
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
func (q *Reader) Logs(ctx context.Context, on store.Querier, id int64) ([]LogEntry, error) {
	return read(ctx, on, fmt.Sprintf("read the log of job %d", id), pgdriver.Columns(func(l *LogEntry) []any { return []any{&l.Attempt, pgdriver.UTC(&l.At), pgdriver.RawJSON(&l.Entry)} }), q.sql.logs, id)
}

// Await requests a notification at the end of a job, and reports whether the job is unfinished.
func (q *Reader) Await(ctx context.Context, on store.Querier, id int64) (unfinished bool, err error) {
	err = readRow(ctx, on, fmt.Sprintf("await job %d", id), q.sql.await, []any{id}, &unfinished)
	return unfinished, err
}

// Log stores a JSON entry in the log of a run.
func (q *Reader) Log(ctx context.Context, on store.Querier, id int64, attempt int, entry json.RawMessage) error {
	return exec(ctx, on, fmt.Sprintf("log of job %d", id), q.sql.log, id, attempt, string(entry))
}
