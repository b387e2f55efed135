package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/migrations"
)

func (a *app) migrateVerbs() *cobra.Command {
	return a.group("migrate", "create, upgrade and check the tables", a.migrateUpVerb(), a.migrateCheckVerb(), a.migrateSQLVerb(), a.migrateGrantsVerb())
}

func (a *app) migrateUpVerb() *cobra.Command {
	var ofJobs bool
	var limit time.Duration
	c := &cobra.Command{
		Use: "up", Short: "create or upgrade the tables, in one transaction", Args: cobra.NoArgs,
		Long:    "Creates or upgrades the tables of the worker and of the event store, or those of\njobs. It can be run again. An upgrade waits for transactions that use the tables;\non a large events table that lacks an index it holds up appends: see migrate sql\n--store.",
		Example: "  pgfrontier migrate up\n  pgfrontier migrate up --jobs",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if limit <= 0 {
				return usage("--timeout %v: it is above 0", limit)
			}
			config, err := a.config()
			if err != nil {
				return err
			}
			db, err := a.open(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			apply, of, version := migrations.Apply, "the worker and the event store", migrations.Version
			if ofJobs {
				apply, of, version = migrations.ApplyJobs, "jobs", migrations.JobsVersion
			}
			if err := apply(ctx, db, config); err != nil {
				return err
			}
			a.printDone(object{"applied": true, "tables_version": version}, fmt.Sprintf("the tables of %s have version %d", of, version))
			return nil
		}),
	}
	c.Flags().BoolVar(&ofJobs, "jobs", false, "the tables of jobs instead")
	c.Flags().DurationVar(&limit, "timeout", time.Hour, "how long it may take")
	return c
}

func (a *app) migrateCheckVerb() *cobra.Command {
	var ofJobs bool
	c := &cobra.Command{
		Use: "check", Short: "exit with 1 if the tables are missing, too old or too new", Args: cobra.NoArgs,
		Example: "  pgfrontier migrate check\n  pgfrontier migrate check --jobs",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			config, err := a.config()
			if err != nil {
				return err
			}
			db, err := a.open(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			check := migrations.Check
			if ofJobs {
				check = migrations.CheckJobs
			}
			err = check(ctx, db, config)
			if err != nil && !errors.Is(err, migrations.ErrNotApplied) && !errors.Is(err, migrations.ErrNewerVersion) {
				return err
			}
			said, drift := "ok", []string{}
			if err != nil {
				said = clean(err.Error())
			} else if says, remedies, err := findDrift(ctx, db, config.Names); pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege {
				drift = append(drift, "drift is not known, since this role may not use all schemas: "+clean(err.Error()))
			} else if err != nil {
				return err
			} else {
				for i := range says {
					drift = append(drift, clean(says[i]+": "+remedies[i]))
				}
			}
			if printed := a.print(object{"ok": err == nil, "reason": said, "drift": drift}, func() string {
				return strings.Join(append([]string{said}, drift...), "\n") + "\n"
			}); printed != nil {
				return printed
			}
			if err != nil {
				return saysNo
			}
			return nil
		}),
	}
	c.Flags().BoolVar(&ofJobs, "jobs", false, "the tables of jobs instead")
	return c
}

func (a *app) migrateSQLVerb() *cobra.Command {
	var ofStore, ofJobs bool
	var format string
	c := &cobra.Command{
		Use: "sql", Short: "print the SQL for a migration tool", Args: cobra.NoArgs,
		Long: `Prints the SQL that creates or upgrades the worker's tables, with --store the
event store's, with --jobs those of jobs. It can be run again, and upgrades older
tables in place. plain is for psql, tern, atlas and others. It needs no database.`,
		Example: "  pgfrontier migrate sql --store > 000_event_store_tables.sql\n  pgfrontier migrate sql --format goose > 001_worker_tables.sql",
		RunE: a.verb(func(_ context.Context, _ []string) error {
			config, err := a.config()
			if err != nil {
				return err
			}
			text := migrations.SQL
			switch {
			case ofStore && ofJobs:
				return usage("--store and --jobs: one at a time")
			case ofStore:
				text = migrations.StoreSQL
			case ofJobs:
				text = migrations.JobsSQL
			}
			sql, err := text(config)
			if err != nil {
				return usage("%w", err)
			}
			switch format {
			case "plain", "golang-migrate": // which takes a file as it is
			case "goose":
				sql = "-- +goose Up\n-- +goose StatementBegin\n" + strings.TrimRight(sql, "\n") + "\n-- +goose StatementEnd\n"
			default:
				return usage("--format %q: it is plain, goose or golang-migrate", format)
			}
			return a.print(object{"sql": sql}, func() string { return sql })
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().BoolVar(&ofStore, "store", false, "the event store's tables")
	c.Flags().BoolVar(&ofJobs, "jobs", false, "the tables of jobs")
	c.Flags().StringVar(&format, "format", "plain", "plain, goose or golang-migrate")
	return c
}

func (a *app) migrateGrantsVerb() *cobra.Command {
	var ofJobs bool
	roles, jobs := migrations.DefaultRoles(), migrations.DefaultJobsRoles()
	names := map[string]*string{} // as they are given
	c := &cobra.Command{
		Use: "grants", Short: "print the GRANTs that database roles need", Args: cobra.NoArgs,
		Long: `Prints the privileges of the roles, as SQL: all tables of the worker and of the
event store, or with --jobs those of jobs. The roles must exist; an empty name
leaves one out. It needs no database.`,
		Example: "  pgfrontier migrate grants | psql\n  pgfrontier migrate grants --worker app_worker --reader \"\" | psql\n  pgfrontier migrate grants --jobs --client app | psql",
	}
	c.RunE = a.verb(func(_ context.Context, _ []string) error {
		tables, err := a.config()
		if err != nil {
			return err
		}
		into := map[string]*string{"writer": &roles.Writer, "worker": &roles.Worker, "operator": &roles.Operator, "reader": &roles.Reader}
		if ofJobs {
			into = map[string]*string{"client": &jobs.Client, "worker": &jobs.Worker, "operator": &jobs.Operator, "reader": &jobs.Reader}
		}
		for flag, name := range names {
			if !c.Flags().Changed(flag) {
				continue
			}
			if into[flag] == nil {
				return usage("--%s names no role of these tables: --jobs has client, the others writer", flag)
			}
			*into[flag] = *name
		}
		var sql string
		if ofJobs {
			sql, err = migrations.JobsGrants(tables, jobs)
		} else {
			sql, err = migrations.Grants(tables, roles)
		}
		if err != nil {
			return usage("%w", err)
		}
		return a.print(object{"sql": sql}, func() string { return sql })
	})
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&ofJobs, "jobs", false, "for the tables of jobs")
	for _, role := range [][2]string{
		{"writer", "appends events (event_writer)"}, {"client", "enqueues jobs (job_client)"},
		{"worker", "runs consumers, or jobs (event_worker, job_worker)"}, {"operator", "uses this command (event_operator, job_operator)"},
		{"reader", "reads (event_reader, job_reader)"},
	} {
		names[role[0]] = f.String(role[0], "", role[1])
	}
	return c
}

func (a *app) versionVerb() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version of this command and of its tables", Args: cobra.NoArgs,
		Example: "  pgfrontier version",
		RunE: a.verb(func(context.Context, []string) error {
			build := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
				build = info.Main.Version
			}
			return a.print(object{"build": build, "go": runtime.Version(), "tables_version": migrations.Version, "jobs_tables_version": migrations.JobsVersion}, func() string {
				return fmt.Sprintf("pgfrontier %s, %s\ntables of the worker: version %d, of jobs: version %d\n", build, runtime.Version(), migrations.Version, migrations.JobsVersion)
			})
		}),
	}
}
