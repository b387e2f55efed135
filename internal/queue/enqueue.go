package queue

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// NewJob is a job to enqueue. The table's defaults replace zero fields.
type NewJob struct {
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue,omitempty"`
	Priority    int             `json:"priority,omitempty"` // 1, the first, to 9
	At          *time.Time      `json:"at,omitempty"`       // nil: Delay from now
	Delay       int64           `json:"delay,omitempty"`    // microseconds, by the server's clock
	GoodUntil   *time.Time      `json:"good_until,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"`
	Meta        json.RawMessage `json:"meta,omitempty"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	MaxResets   *int            `json:"max_resets,omitempty"`
	UniqueKey   string          `json:"unique_key,omitempty"`  // no two unfinished jobs have the same key
	UntilStart  bool            `json:"until_start,omitempty"` // the key is free again once the job runs
	nullArgs
}

// nullArgs marks arguments that are JSON's null, since jsonb_to_record converts null to SQL's NULL.
type nullArgs struct {
	Null bool `json:"null_args,omitempty"`
}

// Enqueuer enqueues jobs.
type Enqueuer struct {
	sql           enqueueSQL
	jobs, emitted ident.Table
}

type enqueueSQL struct{ enqueue, enqueueAlike, enqueueOnce, emit, keys, once string }

// Enqueue inserts jobs and returns their ids, in order. The id is 0 for a job whose unique key
// is taken. The COMMIT notifies the workers that wait for jobs of these queues.
func (q *Enqueuer) Enqueue(ctx context.Context, on store.Querier, jobs []NewJob) (ids []int64, err error) {
	if alike(jobs) {
		return q.enqueueAlike(ctx, on, jobs)
	}
	return q.enqueue(ctx, on, q.sql.enqueue, jobs)
}

// alike reports whether the jobs differ only in their arguments, and have no unique key.
func alike(jobs []NewJob) bool {
	if len(jobs) == 0 || jobs[0].UniqueKey != "" {
		return false
	}
	first := jobs[0]
	for _, j := range jobs[1:] {
		if j.Kind != first.Kind || j.Queue != first.Queue || j.Priority != first.Priority || j.Delay != first.Delay || j.UniqueKey != "" ||
			j.MaxAttempts != first.MaxAttempts || !same(j.At, first.At) || !same(j.GoodUntil, first.GoodUntil) || !same(j.MaxResets, first.MaxResets) ||
			!bytes.Equal(j.Meta, first.Meta) {
			return false
		}
	}
	return true
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

func (q *Enqueuer) enqueueAlike(ctx context.Context, on store.Querier, jobs []NewJob) (ids []int64, err error) {
	args := make([]json.RawMessage, len(jobs))
	for i, j := range jobs {
		if args[i] = j.Args; j.Args == nil {
			args[i] = json.RawMessage(`{}`)
		}
	}
	given, err := list(args)
	if err != nil {
		return nil, fmt.Errorf("jobs: enqueue: %w", err)
	}
	j := jobs[0]
	resets := 5
	if j.MaxResets != nil {
		resets = *j.MaxResets
	}
	ids, err = read(ctx, on, "enqueue", scanID, q.sql.enqueueAlike, j.Kind, cmp.Or(j.Queue, "default"), cmp.Or(j.Priority, 5), timeOf(j.At), j.Delay,
		timeOf(j.GoodUntil), textOf(j.Meta), sql.NullInt64{Int64: int64(j.MaxAttempts), Valid: j.MaxAttempts > 0}, given, resets)
	if err == nil && len(ids) != len(jobs) {
		return nil, fmt.Errorf("jobs: enqueue: %w", pgdriver.Dropped(q.jobs.String()))
	}
	slices.Sort(ids)
	return ids, err
}

func timeOf(t *time.Time) sql.NullTime {
	if t == nil {
		return sql.NullTime{}
	}
	return sql.NullTime{Time: *t, Valid: true}
}

func textOf(text json.RawMessage) sql.NullString {
	return sql.NullString{String: string(text), Valid: text != nil}
}

// Once is a key under which only one job is ever enqueued.
type Once struct {
	Key  string
	Hash string        // of the job
	For  time.Duration // 0: for ever
}

// EnqueueOnce inserts a job unless one was inserted under the key before, and returns its id, or 0.
func (q *Enqueuer) EnqueueOnce(ctx context.Context, on store.Querier, job NewJob, once Once) (id int64, err error) {
	ids, err := q.enqueue(ctx, on, q.sql.enqueueOnce, []NewJob{job}, once.Key, once.Hash,
		sql.NullInt64{Int64: once.For.Microseconds(), Valid: once.For > 0})
	return cmp.Or(ids...), err
}

// Emit inserts a job unless the emitter has already inserted it in its n-th call for the event
// at position. It returns the job's id, or 0.
func (q *Enqueuer) Emit(ctx context.Context, on store.Querier, job NewJob, emitter string, position int64, n int) (id int64, err error) {
	for range 2 {
		ids, err := q.enqueue(ctx, on, q.sql.emit, []NewJob{job}, emitter, position, n)
		if err != nil || ids[0] != -2 {
			return cmp.Or(ids...), err
		}
	}
	return 0, fmt.Errorf("jobs: enqueue: %w", pgdriver.Dropped(q.emitted.String()))
}

func (q *Enqueuer) enqueue(ctx context.Context, on store.Querier, statement string, jobs []NewJob, more ...any) (ids []int64, err error) {
	jobs = slices.Clone(jobs)
	for i := range jobs {
		jobs[i].Null = string(jobs[i].Args) == "null"
	}
	given, err := list(jobs)
	if err != nil {
		return nil, fmt.Errorf("jobs: enqueue: %w", err)
	}
	ids = make([]int64, len(jobs))
	type placed struct{ n, id int64 }
	all, err := read(ctx, on, "enqueue", pgdriver.Columns(func(p *placed) []any { return []any{&p.n, &p.id} }), statement, append([]any{given}, more...)...)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if ids[p.n-1] = p.id; p.id == -1 {
			return nil, fmt.Errorf("jobs: enqueue: %w", pgdriver.Dropped(q.jobs.String()))
		}
	}
	return ids, nil
}

// Owners returns the ids of the unfinished jobs that hold unique keys.
func (q *Enqueuer) Owners(ctx context.Context, on store.Querier, keys []string) (owners map[string]int64, err error) {
	type owner struct {
		key string
		id  int64
	}
	all, err := read(ctx, on, "read unique keys", pgdriver.Columns(func(o *owner) []any { return []any{&o.key, &o.id} }), q.sql.keys, names(keys))
	owners = make(map[string]int64, len(all))
	for _, o := range all {
		owners[o.key] = o.id
	}
	return owners, err
}

// OnceOwner returns the id and the hash of the job that was enqueued under a key. The id is 0
// if there is none.
func (q *Enqueuer) OnceOwner(ctx context.Context, on store.Querier, key string) (id int64, hash string, err error) {
	err = on.QueryRowContext(ctx, q.sql.once, key).Scan(&id, &hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, "", fmt.Errorf("jobs: read a key: %w", err)
	}
	return id, hash, nil
}
