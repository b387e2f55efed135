package workertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobdryrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
)

// EnqueuedJob is a job that was enqueued.
type EnqueuedJob[T jobs.Args] struct {
	jobs.Header // MaxAttempts is 0 unless the job was enqueued with it
	Args        T
	State       jobs.State
	GoodUntil   *time.Time
	UniqueKey   string // of Unique and UniqueUntilStart, while an unfinished job holds the key
}

// Enqueued lists the finished and unfinished jobs of T's kind, in the order in which they were
// enqueued. on is a database or a transaction. A transaction sees its own jobs before it
// commits: the transaction of a test, or of a consumer under [Handle].
//
// opts are the options of a client: jobs.WithNames.
func Enqueued[T jobs.Args](ctx context.Context, on jobs.Querier, opts ...jobs.ClientOption) ([]EnqueuedJob[T], error) {
	var zero T
	kind := zero.Kind()
	fail := func(err error) ([]EnqueuedJob[T], error) {
		return nil, fmt.Errorf("workertest: jobs of kind %s: %w", errtext.Value(kind), errtext.Of(err))
	}
	t, err := jobTables([]jobs.ClientOption(opts))
	if err != nil {
		return fail(err)
	}
	all, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (j EnqueuedJob[T], err error) {
		var args, meta []byte
		var due sql.NullTime
		j.Kind = kind
		err = r.Scan(&j.ID, &j.Queue, &j.Priority, &due, &j.Attempt, &j.Failures, &j.MaxAttempts, &j.Resets, &meta, &args, &j.State, &j.GoodUntil, &j.UniqueKey)
		if err == nil {
			j.RunAt = due.Time.UTC()
			j.Meta, err = meta, json.Unmarshal(args, &j.Args)
		}
		return j, err
	}, strings.NewReplacer("{jobs}", t.Jobs.SQL(), "{history}", t.History.SQL()).Replace(enqueuedSQL), kind)
	if err != nil {
		return fail(err)
	}
	return all, nil
}

var enqueuedSQL = `
SELECT id, queue, priority, ` + pgdriver.TimeOrNever(`run_at`) + `, attempt, failures, coalesce(max_attempts, 0), resets, meta, args, state, ` + pgdriver.TimeOrNever(`good_until`) + `, coalesce(unique_key, '')
FROM {jobs} WHERE kind = $1::text
UNION ALL
SELECT id, queue, priority, ` + pgdriver.TimeOrNever(`run_at`) + `, attempt, failures, coalesce(max_attempts, 0), resets, meta, args, state, ` + pgdriver.TimeOrNever(`good_until`) + `, ''
FROM {history} WHERE kind = $1::text
ORDER BY id`

// jobTables returns the tables that the options name.
func jobTables(options any) (tables.Jobs, error) {
	return tables.ParseJobs(jobdryrun.Of(options).Names)
}
