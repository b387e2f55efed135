package queue

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// maxAttempts bounds the stored attempts of a job, since a job may snooze for ever.
const maxAttempts = 1000

// ChannelsSQL returns SQL expressions for the channels of new jobs and of awaited ends. The
// name contains the table's oid, which is unique within the database.
func ChannelsSQL(t tables.Jobs) (newJobs, ends string) {
	oid := `to_regclass(` + ident.Literal(t.Jobs.SQL()) + `)::oid::text`
	return `'worker_jobs_' || ` + oid, `'worker_jobs_ends_' || ` + oid
}

// orphansSQL returns the statement with the tables of consumers, or without them if there are none.
func orphansSQL(t tables.Jobs, events *tables.Tables) string {
	if events == nil {
		return texts.Statement("orphans", sqltext.Names(t, sqltext.Values{"known": "false"}))
	}
	values := sqltext.Names(t, sqltext.Names(*events, nil))
	values["known"] = texts.Fill(`EXISTS (SELECT FROM {checkpoints} AS c WHERE c.consumer_name = of.emitter)`, values)
	return texts.Statement("orphans", values)
}

func raiseSQL(t tables.Jobs, events tables.Tables) string {
	return texts.Statement("raise", sqltext.Names(t, sqltext.Names(events, nil)))
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

// read returns the rows of a statement. what names the statement in its error.
func read[T any](ctx context.Context, on store.Querier, what string, scan func(*sql.Rows) (T, error), statement string, args ...any) ([]T, error) {
	all, err := pgdriver.QueryAll(ctx, on, scan, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: %s: %w", what, err)
	}
	return all, nil
}

// readRow reads the row of a statement. what names the statement in its error.
func readRow(ctx context.Context, on store.Querier, what, statement string, args []any, into ...any) error {
	if err := on.QueryRowContext(ctx, statement, args...).Scan(into...); err != nil {
		return fmt.Errorf("jobs: %s: %w", what, err)
	}
	return nil
}

// exec executes a statement. what names the statement in its error.
func exec(ctx context.Context, on store.Querier, what, statement string, args ...any) error {
	if _, err := on.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("jobs: %s: %w", what, err)
	}
	return nil
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

// names returns a list of names as JSON.
func names(all []string) string {
	text, _ := list(all) // each string has a JSON form
	return text
}

var scanID = pgdriver.Value[int64]
