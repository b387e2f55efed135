package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
)

// login makes a role that logs in, and a pool of this role.
func (s *stage) login(kind string) (role string, db *sql.DB) {
	s.t.Helper()
	var name string
	if err := s.d.DB.QueryRowContext(s.t.Context(), `SELECT right(current_database(), 20)::text`).Scan(&name); err != nil {
		s.t.Fatal(err)
	}
	role = ident.Quote(name + " " + kind)
	s.d.Exec(s.t, `CREATE ROLE `+role+` LOGIN PASSWORD 'of-the-logins'`)
	s.t.Cleanup(func() {
		s.d.Exec(s.t, `DROP OWNED BY `+role)
		s.d.Exec(s.t, `DROP ROLE `+role)
	})
	u, err := url.Parse(s.d.URL)
	if err != nil {
		s.t.Fatal("the connection string is no URL")
	}
	u.User = url.UserPassword(name+" "+kind, "of-the-logins")
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		s.t.Fatal("pgx does not take the connection string")
	}
	db = stdlib.OpenDB(*config)
	s.t.Cleanup(func() { _ = db.Close() })
	return role, db
}

// Start names every privilege that the role of a worker lacks, and these suffice for a whole run.
// The granted role of a client lacks nothing.
func TestStartNamesMissingPrivileges(t *testing.T) {
	t.Parallel()
	for name, leader := range map[string]jobs.LeaderStrategy{"advisory": jobs.LeaderStrategyAdvisory, "lease": jobs.LeaderStrategyLease} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if err := migrations.Apply(t.Context(), s.d.DB, nil); err != nil { // the tables of consumers
				t.Fatal(err)
			}
			s.d.Exec(t, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
			_, db := s.login("worker")
			err := jobs.NewWorker(db, s.Handlers, jobs.WithLeaderStrategy(leader)).Start(t.Context())
			if err == nil {
				t.Fatal("a worker without handlers starts")
			}
			jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
				if j.Failures == 0 {
					return errors.New("not yet")
				}
				return j.Log(ctx, "logged")
			}, jobs.Retry(jobs.Fixed(0)))
			err = jobs.NewWorker(db, s.Handlers, jobs.WithLeaderStrategy(leader)).Start(t.Context())
			if !errors.Is(err, jobs.ErrPrivileges) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("without privileges Start returned %v", err)
			}
			lease, emitters := strings.Contains(err.Error(), "jobs_leader"), strings.Contains(err.Error(), "consumer_checkpoints")
			if lease != (leader == jobs.LeaderStrategyLease) || !emitters {
				t.Errorf("it asks for the lease: %v, for the consumers' tables: %v: %v", lease, emitters, err)
			}
			_, list, _ := strings.Cut(err.Error(), fmt.Sprint(jobs.ErrPrivileges, ": "))
			for statement := range strings.SplitSeq(list, "; ") {
				s.d.Exec(t, statement)
			}
			client, pool := s.login("client")
			text, err := migrations.JobsGrants(nil, migrations.JobsRoles{Client: strings.Trim(client, `"`)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.d.OpenPQ(t).ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
			s.Client = jobs.NewClient(pool)
			_, stop := s.runOn(db, jobs.WithLeaderStrategy(leader))
			if i := s.ended(s.add(task{1})); i.State != jobs.StateCompleted || i.Failures != 1 {
				t.Errorf("the job is %+v", i)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if n, err := s.Counts(t.Context()); err != nil || len(n) != 0 {
				t.Errorf("the client counts %v, %v", n, err)
			}
		})
	}
}

// Rows that row-level security hides are not taken for missing. Start refuses such a role, and a
// client that finds nothing returns an error.
func TestHiddenRowsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	role, db := s.login("hidden")
	s.d.Exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role)
	s.d.Exec(t, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role)
	id := s.add(task{1})
	client := jobs.NewClient(db)
	scheduler := func(ctx context.Context) error {
		return schedule.New(db, client, schedule.Job("s", schedule.Every(time.Hour), func(time.Time) jobs.Args { return task{2} })).Start(ctx)
	}
	get := func(ctx context.Context) error { _, err := client.Get(ctx, id); return err }
	run := func(ctx context.Context) error { _, err := flow.NewClient(client).Get(ctx, 1); return err }
	for _, test := range []struct {
		about, table string
		does         func(ctx context.Context) error
	}{
		{"a worker", "jobs_queues", jobs.NewWorker(db, s.Handlers).Start},
		{"a worker that advances flows", "jobs_flow_sweep", jobs.NewWorker(db, s.Handlers, flow.Advance()).Start},
		{"a scheduler", "jobs_schedules", scheduler},
		{"a scheduler", "jobs_schema", scheduler},
		{"Get", "jobs", get},
		{"Get", "jobs_history", func(ctx context.Context) error { _, err := client.Get(ctx, id+1); return err }},
		{"Cancel", "jobs", func(ctx context.Context) error { _, err := client.Cancel(ctx, nil, id); return err }},
		{"Wait", "jobs", func(ctx context.Context) error { _, err := jobs.Wait[any](ctx, client, id); return err }},
		{"Counts", "jobs", func(ctx context.Context) error { _, err := client.Counts(ctx); return err }},
		{"Logs", "jobs_logs", func(ctx context.Context) error { _, err := client.Logs(ctx, id); return err }},
		{"Get of a run", "jobs_flow_runs", run},
		{"Cancel of a run", "jobs_flow_runs", func(ctx context.Context) error { _, err := flow.NewClient(client).Cancel(ctx, nil, 1); return err }},
		{"Wait for a run", "jobs_flow_runs", func(ctx context.Context) error { _, err := flow.NewClient(client).Wait(ctx, 1); return err }},
	} {
		s.d.Exec(t, `ALTER TABLE `+test.table+` ENABLE ROW LEVEL SECURITY`)
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience) // a worker that starts would run
		err := test.does(ctx)
		cancel()
		want := "row-level security hides rows from role " + role + ": ALTER ROLE " + role + " BYPASSRLS, or make the role the owner, or ALTER TABLE public." + test.table + " DISABLE ROW LEVEL SECURITY"
		if !errors.Is(err, jobs.ErrPrivileges) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s, of %s: %v, want %s", test.about, test.table, err, want)
		}
		s.d.Exec(t, `ALTER TABLE `+test.table+` DISABLE ROW LEVEL SECURITY`)
	}
	if err := get(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := run(t.Context()); !errors.Is(err, flow.ErrNotFound) {
		t.Errorf("a run that is not there: %v", err)
	}
}
