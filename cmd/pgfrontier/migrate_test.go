package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := at(pgtest.Empty(t))
	s.expect(t, exitRefused, words("migrate check"), "missing or out of date", "worker_nodes")
	s.expect(t, exitRefused, words("migrate check --jobs -o json"), `"ok":false`)
	s.expect(t, exitUnable, words("status"), "migrate up")
	s.expect(t, exitDone, words("migrate up"), "have version")
	s.expect(t, exitDone, words("migrate up -o json"), `"tables_version":`)
	s.expect(t, exitDone, words("migrate check"), "ok\n")
	s.expect(t, exitRefused, words("migrate check --jobs"))
	s.expect(t, exitDone, words("migrate up --jobs"), "jobs")
	s.expect(t, exitDone, words("migrate check --jobs"))
	s.expect(t, exitDone, words("status"), "no consumer has run yet")
	s.Exec(t, `DROP INDEX jobs_claim_idx`)
	s.expect(t, exitDone, words("migrate check --jobs"), `"jobs" has no index on (queue, priority, run_at, id), so statements read the whole table: CREATE INDEX CONCURRENTLY "jobs_claim_idx"`)
	s.Exec(t, `UPDATE consumer_checkpoints_schema SET version = 1000, applied = 1000`)
	s.expect(t, exitRefused, words("migrate check"), "newer")
}

// The SQL that is printed makes what check wants, and needs no database to be printed.
func TestMigrateSQL(t *testing.T) {
	t.Parallel()
	s, offline := at(pgtest.Empty(t)), site{}
	for _, line := range []string{"migrate sql --store", "migrate sql", "migrate sql --jobs"} {
		sql := offline.expect(t, exitDone, words(line)).out
		s.Exec(t, sql)
		if strings.Contains(sql, "{{") {
			t.Errorf("%s: tern takes a file as a template, and would fill in a {{", line)
		}
	}
	s.expect(t, exitDone, words("migrate check"))
	s.expect(t, exitDone, words("migrate check --jobs"))
	if plain := offline.expect(t, exitDone, words("migrate sql")).out; plain != offline.expect(t, exitDone, words("migrate sql --format golang-migrate")).out {
		t.Error("golang-migrate takes a file as it is, and another was printed")
	}
	goose := offline.expect(t, exitDone, words("migrate sql --format goose --table worker-nodes=infra.nodes")).out
	if !strings.HasPrefix(goose, "-- +goose Up\n-- +goose StatementBegin\n") || !strings.HasSuffix(goose, "\n-- +goose StatementEnd\n") || !strings.Contains(goose, `"infra"."nodes"`) {
		t.Errorf("printed %.200s", goose)
	}
	s.Exec(t, goose)
}

// What is printed is what cmd/migrate-gen writes to files.
func TestMigrateSQLIsThatOfFiles(t *testing.T) {
	for line, generate := range map[string]func(*migrations.Config) error{
		"migrate sql": migrations.GeneratePostgres, "migrate sql --store": migrations.GenerateStore, "migrate sql --jobs": migrations.GenerateJobs,
	} {
		c := migrations.DefaultConfig()
		c.OutputFolder, c.OutputFilename = t.TempDir(), "tables.sql"
		if err := generate(&c); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(c.OutputFolder, c.OutputFilename))
		if err != nil {
			t.Fatal(err)
		}
		if got := (site{}).expect(t, exitDone, words(line)).out; got != string(text) {
			t.Errorf("%s does not print what migrate-gen writes", line)
		}
	}
}

// login makes a role that logs in, and returns the command as that role.
func (s site) login(t *testing.T, name string) (role string, as site) {
	t.Helper()
	database := value[string](t, s, `SELECT current_database()`) // roles are the server's
	role = name + database[len(database)-12:]
	s.Exec(t, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'r'`, role))
	t.Cleanup(func() { s.Exec(t, fmt.Sprintf(`DROP OWNED BY %[1]s; DROP ROLE %[1]s`, role)) })
	return role, site{s.Database, map[string]string{"DATABASE_URL": s.as(role, "r"), "PGFRONTIER_OPERATOR": "ann"}}
}

// The verbs that read, and those that change things, one after the other; of the consumer c.
var (
	readingVerbs = []string{
		"status", "status --check", "status -o json", "consumer c", "workers", "operations", "operations c", "gaps c", "wait c 2",
		"blocked", "blocked --queries", "letters list c --payload", "letters show c 1 --payload", "plan testdata/build.json", "migrate check", "doctor",
	}
	changingVerbs = []string{
		"pause c", "skip c 3", "reset c --to beginning", "reset c --to settled", "resume c", "replay c Order a", "partition c 2", "begin b --at 1", "shadow e", "switch c e", "switch e c", "rename c d", "retire d",
	}
	changingLetters   = []string{"letters retry c 1", "letters discard c 1", "letters retry c --all", "letters discard c --all"}
	readingJobsVerbs  = []string{"jobs queues", "jobs list", "jobs list --state failed", "jobs show 1", "jobs schedules", "jobs flows list", "jobs operations", "migrate check --jobs"}
	changingJobsVerbs = []string{
		"jobs pause q", "jobs resume q", "jobs cap q 3", "jobs cap q none", "jobs retention q 1h", "jobs retention q none", "jobs pause nightly --schedule", "jobs resume nightly --schedule",
		"jobs retry 1", "jobs retry 1 --again", "jobs cancel 2", "jobs cancel --all", "jobs discard 1", "jobs retire nightly",
	}
)

// The roles of the printed grants may do what their verbs do, and no more.
func TestMigrateGrants(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	roles, as := map[string]string{}, map[string]site{}
	for _, name := range []string{"writer", "worker", "operator", "reader", "client", "job_worker", "job_operator", "job_reader"} {
		roles[name], as[name] = s.login(t, name)
	}
	s.Exec(t, site{}.expect(t, exitDone, []string{"migrate", "grants", "--writer", roles["writer"], "--worker", roles["worker"], "--operator", roles["operator"], "--reader", roles["reader"]}).out)
	sql := site{}.expect(t, exitDone, []string{"migrate", "grants", "--jobs", "--client", roles["client"], "--worker", roles["job_worker"], "--operator", roles["job_operator"], "--reader", roles["job_reader"]}).out
	if want, err := migrations.JobsGrants(nil, migrations.JobsRoles{Client: roles["client"], Worker: roles["job_worker"], Operator: roles["job_operator"], Reader: roles["job_reader"]}); err != nil || sql != want {
		t.Errorf("printed\n%s\n%v, want\n%s", sql, err, want)
	}
	s.Exec(t, sql)
	s.append(t, 5)
	s.settle(t, 4)
	s.place(t, 2)
	s.letter(t, 1, "a", "x")
	s.add(t, "welcome", "failed")
	s.add(t, "welcome", "available")
	s.add(t, "welcome", "running")
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash) VALUES ('nightly', 'h')`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id) VALUES (gen_random_uuid())`)

	may := func(role string, want int, says string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if got := as[role].run(t, words(line)...); got.code != want || !strings.Contains(got.out+got.talk, says) {
				t.Errorf("%s: %s: status %d, want %d and %q\n%s%s", role, line, got.code, want, says, got.out, got.talk)
			}
		}
	}
	changing := func(lines []string) (all []string) {
		for _, line := range lines {
			all = append(all, line+" --reason r --yes")
		}
		return all
	}
	may("reader", exitDone, "", readingVerbs[:len(readingVerbs)-1]...)
	may("reader", exitUnable, "permission denied", changing(slices.Concat(changingLetters, changingVerbs))...)
	may("operator", exitDone, "", readingVerbs[:len(readingVerbs)-1]...)
	may("writer", exitUnable, "permission denied", "status", "consumer c", "pause c --reason r")
	may("job_reader", exitDone, "", readingJobsVerbs...)
	may("job_reader", exitUnable, "permission denied", changing(changingJobsVerbs)...)
	may("client", exitUnable, "permission denied", "jobs operations", "jobs pause q --reason r")
	may("job_worker", exitDone, "", "migrate check --jobs")
	may("worker", exitDone, "", "migrate check", "status")

	// The doctor: no check fails for want of a privilege; the workers' role may make each.
	for _, role := range []string{"reader", "operator", "worker"} {
		checks := as[role].run(t, words("doctor -o json")...).data(t)["checks"].([]any)
		if want := len(serverChecks) + len(tableChecks); len(checks) != want {
			t.Errorf("%s: %d checks, want %d", role, len(checks), want)
		}
		for _, one := range checks {
			f := one.(map[string]any)
			if !strings.Contains(f["says"].(string), "could not be checked") {
				continue
			}
			ofJobs := slices.Contains([]string{"jobs", "job workers", "job errors", "queues", "failed jobs", "schedules", "sequences", "unserved"}, f["check"].(string))
			if f["level"] != levelWarn || !ofJobs && (role == "worker" || f["check"] != "log" && f["check"] != "positions") {
				t.Errorf("%s: %v", role, f)
			}
		}
	}
	s.letter(t, 3, "b", "x")
	may("operator", exitDone, "", changing(changingLetters)...)
	s.Exec(t, `DELETE FROM worker_nodes`) // or nothing is retired
	may("operator", exitDone, "", changing(changingVerbs)...)
	may("job_operator", exitDone, "", readingJobsVerbs...)
	may("job_operator", exitDone, "", changing(changingJobsVerbs)...)
}

// A role without a name is left out, and the others have their usual names.
func TestGrantsLeaveOut(t *testing.T) {
	for line, lacks := range map[string]string{"migrate grants": "", "migrate grants --reader=": "event_reader", "migrate grants --jobs": "", "migrate grants --jobs --operator=": "job_operator"} {
		out := site{}.expect(t, exitDone, words(line)).out
		usual := []string{"event_writer", "event_worker", "event_operator", "event_reader"}
		if strings.Contains(line, "--jobs") {
			usual = []string{"job_client", "job_worker", "job_operator", "job_reader"}
		}
		for _, role := range usual {
			if strings.Contains(out, role) != (role != lacks) {
				t.Errorf("%s, of %s:\n%s", line, role, out)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	site{}.expect(t, exitDone, words("version"), "pgfrontier ", fmt.Sprint("version ", migrations.Version), fmt.Sprint("version ", migrations.JobsVersion))
	site{}.expect(t, exitDone, words("version -o json"), fmt.Sprintf(`"tables_version":%d`, migrations.Version))
}
