package alarms

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/demand"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// Find lists the faults of a deployment: up to five of each kind, and the number of others.
// place names a worker. Find reports
// nothing about jobs if there are no such tables, or if the role may not read them.
func Find(ctx context.Context, db *sql.DB, names store.Names, consumers []ops.Consumer, workers []ops.Worker, place func(ops.Worker) string) ([]Alarm, error) {
	t, jobs, err := parse(names)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("find the alarms: %w", err))
	}
	var all []Alarm
	standby, seen, err := ofServer(ctx, db, jobs)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("find the alarms: %w", err))
	}
	if standby {
		all = append(all, Alarm{Kind: Standby, Text: "a standby, on which no worker runs; it shows what it has received"})
	}
	more, err := ofDeployment(ctx, db, names, t, jobs)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("find the alarms: %w", err))
	}
	all = append(all, more...)
	all = append(all, ofWorkers(workers, place)...)
	all = append(all, ofBuilds(consumers, workers, place)...)
	if seen {
		runners, err := jobWorkers(ctx, db, names, jobs)
		if err != nil {
			return nil, errtext.Of(fmt.Errorf("find the alarms about jobs: %w", err))
		}
		all = append(all, ofJobWorkers(runners, place)...)
		found, err := ofJobs(ctx, db, jobs)
		if err != nil {
			return nil, errtext.Of(fmt.Errorf("find the alarms about jobs: %w", err))
		}
		all = append(all, found...)
		if all, err = withUnhandled(ctx, db, jobs, all); err != nil {
			return nil, errtext.Of(fmt.Errorf("find the alarms about jobs: %w", err))
		}
	}
	return short(all), nil
}

// parse returns the tables of names.
func parse(names store.Names) (t tables.Tables, jobs tables.Jobs, err error) {
	if t, err = tables.Parse(names); err == nil {
		jobs, err = tables.ParseJobs(names)
	}
	return t, jobs, err
}

// ofDeployment finds the obstacles to the workers' writes, connections and starts. It omits
// faults that this role may not read.
func ofDeployment(ctx context.Context, db *sql.DB, names store.Names, t tables.Tables, jobs tables.Jobs) (all []Alarm, err error) {
	for _, find := range []func(context.Context, store.Querier, tables.Tables, tables.Jobs) (Condition, error){ReadOnly, Full} {
		c, err := find(ctx, db, t, jobs)
		if err != nil && pgdriver.SQLState(err) != pgdriver.InsufficientPrivilege {
			return nil, err
		}
		if c != (Condition{}) {
			all = append(all, Alarm{Kind: Server, Text: c.Text})
		}
	}
	for _, check := range []func(context.Context, store.Querier, *migrations.Config) error{migrations.Check, migrations.CheckJobs} {
		if err := check(ctx, db, &migrations.Config{Names: names}); errors.Is(err, migrations.ErrNewerVersion) {
			all = append(all, Alarm{Kind: Tables, Text: errtext.Line(err.Error())})
		}
	}
	return all, nil
}

// ofBuilds reports the consumers for which the builds of living workers differ.
func ofBuilds(consumers []ops.Consumer, workers []ops.Worker, place func(ops.Worker) string) (all []Alarm) {
	living := slices.DeleteFunc(slices.Clone(workers), IsSilent)
	for _, c := range consumers {
		if says := cmp.Or(demand.Waiting(c, living, place), demand.Disagreement(c, living, place)); says != "" {
			all = append(all, Alarm{Builds, c.Name, says})
		}
	}
	return all
}

// jobWorkers returns the workers of jobs, or none if the role may not read their table.
func jobWorkers(ctx context.Context, db *sql.DB, names store.Names, jobs tables.Jobs) ([]ops.Worker, error) {
	readable, err := mayRead(ctx, db, jobs)
	if err != nil || !readable {
		return nil, err
	}
	o, err := ops.NewJobs(db, ops.WithNames(names))
	if err != nil {
		return nil, err
	}
	all, err := o.Workers(ctx)
	if pgdriver.IsUndefined(err) {
		return nil, nil // tables of another version
	}
	return all, err
}

// mayRead reports whether the role may read the table of workers of jobs.
func mayRead(ctx context.Context, db store.Querier, jobs tables.Jobs) (readable bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT coalesce(has_table_privilege(to_regclass($1::text)::oid, 'SELECT'), false)`, jobs.Workers.SQL()).Scan(&readable)
	return readable, err
}

// ofServer reports whether the server is a standby, and whether the tables of jobs exist and can be
// read. It checks schemas first, since a name in a schema without USAGE would be an error.
func ofServer(ctx context.Context, db store.Querier, jobs tables.Jobs) (standby, seen bool, err error) {
	names := []string{}
	for _, t := range []ident.Table{jobs.Jobs, jobs.History, jobs.Queues, jobs.Schedules} {
		names = append(names, t.SQL())
	}
	schema := ""
	if jobs.Jobs.Schema != "" {
		schema = ident.Quote(jobs.Jobs.Schema)
	}
	found, err := pgdriver.QueryAll(ctx, db, pgdriver.Columns(func(both *[2]bool) []any { return []any{&both[0], &both[1]} }), `
SELECT pg_is_in_recovery(), CASE WHEN $1::text = '' OR coalesce(has_schema_privilege(to_regnamespace($1::text)::oid, 'USAGE'), false)
	THEN (SELECT bool_and(coalesce(has_table_privilege(to_regclass(name)::oid, 'SELECT'), false)) FROM unnest(string_to_array($2::text, E'\n')) AS name)
	ELSE false END`, schema, strings.Join(names, "\n"))
	if err != nil || len(found) == 0 {
		return false, false, err
	}
	return found[0][0], found[0][1], nil
}

// withUnhandled adds the queues with due jobs and the runs of flows that no worker handles. It
// adds nothing for tables of another version, or that the role may not read.
func withUnhandled(ctx context.Context, db store.Querier, jobs tables.Jobs, all []Alarm) ([]Alarm, error) {
	q := queue.New(jobs)
	readable, err := mayRead(ctx, db, jobs)
	if err != nil {
		return nil, err
	}
	if readable {
		queues, err := q.Unserved(ctx, db)
		if err != nil && !pgdriver.IsUndefined(err) {
			return nil, err
		}
		all = withUnserved(all, queues)
	}
	unadvanced, err := q.Unadvanced(ctx, db)
	if err != nil && !pgdriver.IsUndefined(err) {
		return nil, err
	}
	if unadvanced {
		all = append(all, Alarm{Kind: Unadvanced, Text: "runs have not ended, and no worker advances them"})
	}
	return all, nil
}

// withUnserved marks the queues that no worker serves, next to the other alarms of that kind.
func withUnserved(all []Alarm, queues []string) []Alarm {
	for _, name := range queues {
		if i := slices.IndexFunc(all, func(t Alarm) bool { return t.Kind == Due && t.Name == name }); i >= 0 {
			all[i].Text += ", and no worker serves it"
			continue
		}
		behind := slices.IndexFunc(all, func(t Alarm) bool { return t.Kind == Failed || t.Kind == Overdue || t.Kind == PausedSchedule })
		if behind < 0 {
			behind = len(all)
		}
		all = slices.Insert(all, behind, Alarm{Due, name, "jobs are due, and no worker serves it"})
	}
	return all
}

const mostFailed = 100 // maximum number of failed jobs of a queue that are counted

// ofJobs lists the queues and schedules that need attention. For tables of another version,
// which pgfrontier doctor reports, it lists none.
func ofJobs(ctx context.Context, db *sql.DB, jobs tables.Jobs) ([]Alarm, error) {
	all, err := pgdriver.ReadAll(ctx, pgdriver.Pool{DB: db}, func(r *sql.Rows) (t Alarm, err error) {
		var by, reason string
		var n int64
		if err := r.Scan(&t.Kind, &t.Name, &by, &reason, &n); err != nil {
			return t, err
		}
		since := cmp.Or(strings.TrimSuffix((time.Duration(n)*time.Microsecond).Round(time.Minute).String(), "0s"), "0m")
		switch t.Kind {
		case Paused:
			t.Text = errtext.Line(fmt.Sprintf("paused by %s (%s)", by, reason))
		case Due:
			t.Text = fmt.Sprintf("jobs are due and do not run, for %s", since)
		case Failed:
			t.Text = failed(n)
		case Overdue:
			t.Text = fmt.Sprintf("overdue for %s", since)
		case PausedSchedule:
			if t.Text = "paused for " + since; by != "" {
				t.Text = errtext.Line(fmt.Sprintf("%s by %s (%s)", t.Text, by, reason))
			}
		}
		return t, nil
	}, jobsSQL(jobs), Late.Microseconds())
	if pgdriver.IsUndefined(err) {
		return nil, nil
	}
	return all, err
}

func failed(n int64) string {
	switch {
	case n == 1:
		return "1 job has failed for good"
	case n > mostFailed:
		return fmt.Sprintf("more than %d jobs have failed for good", mostFailed)
	}
	return fmt.Sprintf("%d jobs have failed for good", n)
}

func jobsSQL(t tables.Jobs) string {
	return texts.Statement("jobs", sqltext.Names(t, sqltext.Values{"most": fmt.Sprint(mostFailed + 1)}))
}
