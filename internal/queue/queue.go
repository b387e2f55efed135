package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Queue is the tables of jobs. Its statements run on connections or in transactions of the callers.
type Queue struct {
	tables tables.Jobs
	sql    statements
}

// New returns a Queue.
func New(t tables.Jobs) *Queue { return &Queue{t, newStatements(t)} }

// Channels returns the names of two channels. newJobs carries the queue of each new job. ends
// carries the id of each ended job that a process awaits.
func (q *Queue) Channels(ctx context.Context, on store.Querier) (newJobs, ends string, err error) {
	n, e := ChannelsSQL(q.tables)
	err = on.QueryRowContext(ctx, `SELECT coalesce(`+n+`, ''), coalesce(`+e+`, '')`).Scan(&newJobs, &ends)
	if err == nil && newJobs == "" {
		err = fmt.Errorf("there is no table %s", q.tables.Jobs)
	}
	if err != nil {
		return "", "", fmt.Errorf("jobs: read the channels: %w", err)
	}
	return newJobs, ends, nil
}

// Run names a run of a job. It is the fence: a statement must name the run to end it.
type Run struct {
	ID    int64 `json:"id"`
	Claim int64 `json:"claim"`
}

// list returns a list as text, which every driver accepts in every exec mode.
func list[T any](all []T) (string, error) {
	if all == nil {
		all = []T{}
	}
	b, err := json.Marshal(all)
	return string(b), err
}

func (q *Queue) ids(ctx context.Context, on store.Querier, statement string, runs []Run) ([]int64, error) {
	ids, claims := Arrays(runs)
	return pgdriver.QueryAll(ctx, on, scanID, statement, ids, claims)
}

// Arrays returns the ids and the claims of runs as arrays in text form.
func Arrays(runs []Run) (ids, claims string) {
	a, b := []byte{'{'}, []byte{'{'}
	for i, r := range runs {
		if i > 0 {
			a, b = append(a, ','), append(b, ',')
		}
		a, b = strconv.AppendInt(a, r.ID, 10), strconv.AppendInt(b, r.Claim, 10)
	}
	return string(append(a, '}')), string(append(b, '}'))
}

var scanID = pgdriver.Value[int64]
