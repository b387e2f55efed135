package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/migrations"
)

// deploymentAlarms are about workers, the server, tables and roles.
var deploymentAlarms = []alarm{
	{
		name: "No worker runs", age: soon,
		happen: func(t *testing.T, s *scene) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			s.append(t, 1)
			s.vars["POSITION"] = "1"
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			s.work(t, counter{})
			r()
		},
	},
	databaseAway(),
	connectionsUsedUp(),
	standby(),
	{
		name: "The tables are of an older version",
		happen: func(t *testing.T, s *scene) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			s.Exec(t, `ALTER TABLE consumer_checkpoints DROP COLUMN effects;
				ALTER TABLE consumer_dead_letters DROP COLUMN replay, DROP COLUMN forget;
				UPDATE consumer_checkpoints_schema SET applied = 4`)
			s.work(t, counter{})
			await(t, "the worker to end", func() bool { return s.worker.Live() != nil })
			if err := s.end(); !errors.Is(err, migrations.ErrNotApplied) {
				t.Errorf("the worker ended with: %v", err)
			}
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			r()
			s.work(t, counter{})
		},
	},
	rightMissing(),
	{
		name: "Notifications do not arrive",
		start: func(t *testing.T, s *scene) {
			s.build(t)
			role, as := s.login(t, "listener")
			s.vars["ROLENAME"] = role
			s.work(t, counter{}, worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString(as.env["DATABASE_URL"]))
			await(t, "the worker to listen", func() bool {
				return value[int64](t, s.site, `SELECT count(*) FROM pg_stat_activity WHERE usename = '`+role+`'`) == 1
			})
		},
		happen: func(t *testing.T, s *scene) {
			role := s.vars["ROLENAME"]
			s.Exec(t, `ALTER ROLE `+role+` NOLOGIN`)
			s.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`'`)
		},
	},
}

// on makes the site in the default database of a server, where all tables are.
func (s *scene) on(t *testing.T, server *embedded.Server) {
	t.Helper()
	d := &pgtest.Database{URL: server.URL("postgres")}
	var err error
	if d.DB, err = sql.Open("pgx", d.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.DB.Close() })
	s.site = at(d)
}

// standby has a primary and a standby, to which the way leads by mistake.
func standby() alarm {
	var server *embedded.Server
	var primary site
	return alarm{
		name: "The connection leads to a standby",
		start: func(t *testing.T, s *scene) {
			server = pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})
			s.on(t, server)
			s.expect(t, exitDone, words("migrate up"))
			s.expect(t, exitDone, words("migrate up --jobs"))
			primary = s.site
			s.work(t, counter{})
		},
		happen: func(t *testing.T, s *scene) {
			if err := s.end(); err != nil {
				t.Error(err)
			}
			other, err := server.Standby(t.Context(), 0)
			testdeps.Skip(t, err)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := other.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
			s.on(t, other)
			s.work(t, counter{})
			await(t, "the worker to end", func() bool { return s.worker.Live() != nil })
			if err := s.end(); err == nil {
				t.Error("a worker runs on a standby")
			}
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			s.site = primary
			s.work(t, counter{})
			r()
		},
	}
}

// databaseAway has a server of its own.
func databaseAway() alarm {
	var server *embedded.Server
	return alarm{
		name: "The database does not answer",
		start: func(t *testing.T, s *scene) {
			server = pgtest.OwnServer(t, nil)
			s.on(t, server)
			s.expect(t, exitDone, words("migrate up"))
			s.expect(t, exitDone, words("migrate up --jobs"))
			s.work(t, counter{})
		},
		happen: func(t *testing.T, s *scene) {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
		},
		mend: func(t *testing.T, s *scene, r remedy) {
			for _, verb := range []string{"doctor", "status", "status --check"} {
				s.expect(t, exitUnable, words(verb))
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			r()
		},
	}
}

// workAs runs a worker under a role of its own, ROLENAME.
func (s *scene) workAs(t *testing.T, name string) {
	t.Helper()
	s.build(t)
	role, as := s.login(t, name)
	s.Exec(t, `GRANT pg_read_all_stats TO `+role)
	s.vars["ROLENAME"] = role
	s.do(t, "pgfrontier migrate grants --worker "+role+` --writer "" --operator "" --reader "" | psql`)
	db, err := sql.Open("pgx", as.env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	owner := s.DB
	s.DB = db
	s.work(t, counter{})
	s.DB = owner
}

// connectionsUsedUp has a worker that loses its connections and gets no other.
func connectionsUsedUp() alarm {
	return alarm{
		name: "No connection is left for the workers", age: soon,
		start: func(t *testing.T, s *scene) { s.workAs(t, "limited") },
		happen: func(t *testing.T, s *scene) {
			role := s.vars["ROLENAME"]
			s.Exec(t, `ALTER ROLE `+role+` CONNECTION LIMIT 0`)
			s.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`'`)
			s.append(t, 1)
		},
	}
}

// rightMissing has a worker under a role of its own.
func rightMissing() alarm {
	return alarm{
		name: "A right is missing", age: soon,
		start: func(t *testing.T, s *scene) { s.workAs(t, "worker") },
		happen: func(t *testing.T, s *scene) {
			s.Exec(t, `REVOKE UPDATE ON consumer_checkpoints FROM `+s.vars["ROLENAME"])
			s.append(t, 1)
		},
	}
}
