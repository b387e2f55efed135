package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/migrations"
)

// found returns what the doctor says of one check.
func (s site) found(t testing.TB, check string, flags ...string) finding {
	t.Helper()
	got := s.run(t, append(words("doctor -o json"), flags...)...)
	data := got.data(t)
	failed := false
	var of finding
	for _, one := range data["checks"].([]any) {
		f := one.(map[string]any)
		failed = failed || f["level"] == levelFail
		if f["check"] == check {
			remedy, _ := f["remedy"].(string)
			of = finding{check, f["level"].(string), f["says"].(string), remedy}
		}
	}
	if want := map[bool]int{true: exitRefused, false: exitDone}[failed]; got.code != want || data["ok"] == failed {
		t.Errorf("status %d, ok %v, and a check has failed: %v", got.code, data["ok"], failed)
	}
	if of.Check == "" {
		t.Fatalf("the doctor did not check %s: %s%s", check, got.out, got.talk)
	}
	return of
}

// A deployment without faults passes all checks.
func TestDoctorFindsNothing(t *testing.T) {
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	s.append(t, 3)
	s.work(t)
	out := s.expectAllOK(t).out
	for _, c := range append(append([]check{}, serverChecks...), tableChecks...) {
		if !strings.Contains(out, "OK    "+c.name) {
			t.Errorf("%s is not among\n%s", c.name, out)
		}
	}
}

func (s site) expectAllOK(t *testing.T) (last outcome) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(last.out)
		}
	}()
	await(t, "all checks to say OK", func() bool {
		last = s.run(t, "doctor")
		return last.code == exitDone && !strings.Contains(last.out, levelWarn)
	})
	return last
}

// clock is a database whose clock is off.
func clock(by string) string {
	return `CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT pg_catalog.clock_timestamp() ` + by + `$$;
		DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = public, pg_catalog'; END $$`
}

// Each check finds what it is about, and says what to do.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	const hour = `now() - interval '1 hour'`
	const overdueJob = `INSERT INTO jobs (kind, queue, run_at) VALUES ('welcome', 'mail', ` + hour + `)`
	for _, c := range []struct {
		check, level, says, remedy string
		fault                      string
		flags                      []string
	}{
		{check: "server", level: levelFail, says: "read-only", remedy: "RESET", fault: `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$`},
		{check: "server", level: levelWarn, says: "track_activities", remedy: "on", fault: `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET track_activities = off'; END $$`},
		{check: "tables", level: levelFail, says: "consumer_operations", remedy: "migrate up", fault: `DROP TABLE consumer_operations`},
		{check: "tables", level: levelFail, says: "newer", remedy: "newer version", fault: `UPDATE consumer_checkpoints_schema SET version = 1000, applied = 1000`},
		{check: "log", level: levelFail, says: "cache 32", remedy: "CACHE 1", fault: `ALTER SEQUENCE events_global_position_seq CACHE 32`},
		{check: "log", level: levelFail, says: "issue positions again", remedy: "NO CYCLE", fault: `ALTER SEQUENCE events_global_position_seq CYCLE`},
		{check: "log", level: levelFail, says: "increment 10", remedy: "INCREMENT 1", fault: `ALTER SEQUENCE events_global_position_seq INCREMENT 10`},
		{check: "positions", level: levelFail, says: "90 %", remedy: "NO MAXVALUE", fault: `ALTER SEQUENCE events_global_position_seq MAXVALUE 10; SELECT setval('events_global_position_seq', 9)`},
		{check: "indexes", level: levelWarn, says: "events_pkey", remedy: "REINDEX", fault: `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'events_pkey'::regclass`},
		{check: "drift", level: levelWarn, says: `"jobs" has no index on (queue, priority, run_at, id), so statements read the whole table; "jobs_workers" has no index on (heartbeat_at)`, remedy: `CREATE INDEX CONCURRENTLY "jobs_claim_idx" ON "jobs" (queue, priority, run_at, id) WHERE state = 'available'`, fault: `DROP INDEX jobs_claim_idx, jobs_workers_heartbeat_at_idx`},
		{check: "drift", level: levelWarn, says: `"events" has no unique index on (event_id)`, remedy: `CREATE UNIQUE INDEX CONCURRENTLY "events_event_id_key" ON "events" (event_id)`, fault: `ALTER TABLE events DROP CONSTRAINT events_event_id_key`},
		{check: "drift", level: levelWarn, says: `"aggregate_heads" has no unique index on (aggregate_type, aggregate_id)`, remedy: `CREATE UNIQUE INDEX CONCURRENTLY`, fault: `ALTER TABLE aggregate_heads DROP CONSTRAINT aggregate_heads_pkey`},
		{check: "drift", level: levelWarn, says: `"worker_nodes".heartbeat_at has type timestamp without time zone, not timestamp with time zone; "jobs".id has type integer, not bigint`, remedy: `ALTER TABLE "worker_nodes" ALTER COLUMN heartbeat_at TYPE TIMESTAMPTZ USING heartbeat_at::TIMESTAMPTZ; ALTER TABLE "jobs" ALTER COLUMN id TYPE BIGINT USING id::BIGINT`, fault: `ALTER TABLE worker_nodes ALTER COLUMN heartbeat_at TYPE timestamp; ALTER TABLE jobs ALTER COLUMN id TYPE int`},
		{check: "drift", level: levelWarn, says: `"events" is UNLOGGED, so a crash of the server empties it; "consumer_checkpoints_token" is logged`, remedy: `ALTER TABLE "events" SET LOGGED; ALTER TABLE "consumer_checkpoints_token" SET UNLOGGED`, fault: `ALTER TABLE events SET UNLOGGED; ALTER TABLE consumer_checkpoints_token SET LOGGED`},
		{check: "triggers", level: levelWarn, says: "trigger own of jobs_history", remedy: "return NEW", fault: `CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER own BEFORE INSERT ON jobs_history FOR EACH ROW EXECUTE FUNCTION own();
			CREATE TRIGGER after AFTER INSERT ON jobs_history FOR EACH ROW EXECUTE FUNCTION own(); CREATE TRIGGER off BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION own(); ALTER TABLE jobs DISABLE TRIGGER off`},
		{check: "triggers", level: levelWarn, says: "rule quiet of consumer_operations", remedy: "DROP RULE", fault: `CREATE RULE quiet AS ON INSERT TO consumer_operations DO INSTEAD NOTHING`},
		{check: "tables", level: levelFail, says: `"consumer_gap_skips" has no unique index on (id)`, remedy: "migrate up", fault: `ALTER TABLE consumer_gap_skips DROP CONSTRAINT consumer_gap_skips_pkey`},
		{check: "jobs", level: levelFail, says: `named "jobs_unique_key_idx"`, remedy: "migrate up --jobs", fault: `DROP INDEX jobs_unique_key_idx`},
		{check: "prepared", level: levelFail, says: "forgotten", remedy: "ROLLBACK PREPARED", fault: `BEGIN; SELECT nextval('events_global_position_seq'); PREPARE TRANSACTION 'forgotten'`},
		{check: "workers", level: levelFail, says: "no worker lives", remedy: "start", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c')`},
		{check: "workers", level: levelWarn, says: "h/8 (1h0m)", remedy: "rows of dead", fault: `INSERT INTO worker_nodes (worker_id, hostname, pid, heartbeat_at) VALUES (gen_random_uuid(), 'h', 7, now()), (gen_random_uuid(), 'h', 8, ` + hour + `)`},
		{check: "leader", level: levelWarn, says: "no worker leads", remedy: "run it again", fault: `INSERT INTO worker_nodes (worker_id, hostname, pid) VALUES (gen_random_uuid(), 'h', 7)`},
		{check: "leader", level: levelWarn, says: "h/7; h/8", remedy: "LeaderStrategy", fault: `INSERT INTO worker_nodes (worker_id, hostname, pid, status, heartbeat_at) VALUES (gen_random_uuid(), 'h', 7, '{"Leader": true}', now()), (gen_random_uuid(), 'h', 8, '{"Leader": true}', now() - interval '1 second')`},
		{check: "builds", level: levelWarn, says: "v1 (protocol 1); v2", remedy: "deployment", fault: `INSERT INTO worker_nodes (worker_id, build, heartbeat_at) VALUES (gen_random_uuid(), 'v1', now()), (gen_random_uuid(), 'v2', now() - interval '1 second')`},
		{check: "clocks", level: levelWarn, says: "this machine's is 1h30m ahead", remedy: "NTP", fault: clock(`- interval '90.5 minutes'`)},
		{check: "clocks", level: levelWarn, says: "this machine's is 1h30m behind", remedy: "NTP", fault: clock(`+ interval '90.5 minutes'`)},
		{check: "clocks", level: levelWarn, says: "database's clock, that of h/7 is at least 59m59s ahead", remedy: "NTP", fault: `INSERT INTO worker_nodes (worker_id, hostname, pid, heartbeat_at, status)
			SELECT gen_random_uuid(), 'h', n, now(), jsonb_build_object('LastHeartbeat', now() + interval '1 second' * (CASE n WHEN 7 THEN 3599 ELSE -3600 END)) FROM generate_series(7, 8) AS n`},
		{check: "complaints", level: levelFail, says: "h/7: the log was replaced", remedy: "log of that worker", fault: `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"FrontierError": "the log was replaced"}')`},
		{check: "owners", level: levelFail, says: "no worker lives to run: c", remedy: "start the workers", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c')`},
		{check: "owners", level: levelFail, says: "no worker has code for: c", remedy: "retire", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO worker_nodes (worker_id) VALUES (gen_random_uuid())`},
		{check: "owners", level: levelWarn, says: "no living worker runs: c", remedy: "leader's log", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO worker_nodes (worker_id, consumers) VALUES (gen_random_uuid(), '{c}')`},
		{check: "owners", level: levelWarn, says: "they wait to begin at the head: c", remedy: "pgfrontier blocked", fault: `INSERT INTO worker_nodes (worker_id, consumers) VALUES (gen_random_uuid(), '{c}')`},
		{check: "owners", level: levelFail, says: "no worker lives to run: c", remedy: "start the workers", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c');
			INSERT INTO worker_nodes (worker_id, consumers, heartbeat_at) VALUES (gen_random_uuid(), '{c}', ` + hour + `);
			INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'c', worker_id FROM worker_nodes`},
		{check: "late", level: levelFail, says: "consumer c: an event has been waiting for 1h", remedy: "pgfrontier consumer", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); UPDATE events SET created_at = ` + hour},
		{check: "errors", level: levelWarn, says: "c: no such column", remedy: "skip", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO worker_nodes (worker_id, status) VALUES (gen_random_uuid(), '{"Consumers": [{"Name": "c", "Consumer": "c", "LastError": "no such column", "Stuck": 1}]}')`},
		{check: "errors", level: levelWarn, says: "c: worker: a handler ignores", remedy: "start the process again", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO worker_nodes (worker_id, status) VALUES (gen_random_uuid(), '{"Consumers": [{"Name": "c", "LastError": "` + worker.ErrHandlerOverdue.Error() + `", "Stuck": 1}]}')`},
		{check: "errors", level: levelWarn, says: "c: permission denied for table totals", remedy: "GRANT what the error names to the workers' role, or mend the policy that refuses it; the event is not to blame", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO worker_nodes (worker_id, status) VALUES (gen_random_uuid(), '{"Consumers": [{"Name": "c", "LastError": "permission denied for table totals", "LastErrorState": "42501", "Stuck": 1}]}')`},
		{check: "errors", level: levelWarn, says: "c: 11 units (000, 001, 002, 003, 004, 005, 006, 007, 008, 009, 010): no such mailbox", remedy: "skip NAME POSITION", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c');
			INSERT INTO worker_nodes (worker_id, status) SELECT gen_random_uuid(), jsonb_build_object('Consumers', jsonb_agg(jsonb_build_object('Name', 'c#0' || lpad(i::text, 2, '0'), 'Stuck', i + 1,
			'LastError', format('worker: consumer "c#0%s" failed at position %s (event %s, type "T"), 3 in a row: no such mailbox', lpad(i::text, 2, '0'), i + 1, gen_random_uuid())))) FROM generate_series(0, 10) AS i`},
		{check: "paused", level: levelWarn, says: "c by bob (lunch)", remedy: "resume", fault: `INSERT INTO consumer_checkpoints (consumer_name, paused_at, paused_by, paused_reason) VALUES ('c', now(), 'bob', 'lunch')`},
		{check: "paused", level: levelWarn, says: "c by worker ", remedy: "skip NAME POSITION if the event shall never be handled; then pgfrontier resume NAME", fault: `INSERT INTO consumer_checkpoints (consumer_name, paused_at, paused_by, paused_reason) VALUES ('d', now(), 'bob', 'lunch'), ('c', now(), 'worker ' || gen_random_uuid(), 'no such mailbox')`},
		{check: "letters", level: levelWarn, says: "c has 1; one says: ERROR: permission denied for table totals (SQLSTATE 42501)", remedy: "GRANT what the error names to the workers' role, then pgfrontier letters retry NAME", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, error) VALUES ('c', 1, 'a', 'b', gen_random_uuid(), 't', 1, 'ERROR: permission denied for table totals (SQLSTATE 42501)')`},
		{check: "letters", level: levelWarn, says: "c has 1", remedy: "letters list", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c'); INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 1, 'a', 'b', gen_random_uuid(), 't', 1)`},
		{check: "in doubt", level: levelWarn, says: "c has 8001 of 10000", remedy: "blocked", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c');
			INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at)
			SELECT 'c', gen_random_uuid(), 2 * i, 2 * i, 1, 'open', 2 * i + 1, 2 * i + 1, now() FROM generate_series(1, 8001) AS i`},
		{check: "in doubt", level: levelWarn, says: "c#800-fff has 8001 of 10000", remedy: "blocked", fault: `INSERT INTO consumer_checkpoints (consumer_name, split_at, paused_at, paused_by, paused_reason) VALUES ('c', now(), now(), 'partitions', 'split');
			INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c#000-7ff'), ('c#800-fff');
			INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at)
			SELECT 'c#800-fff', gen_random_uuid(), 2 * i, 2 * i, 1, 'open', 2 * i + 1, 2 * i + 1, now() FROM generate_series(1, 8001) AS i`},
		{check: "jobs", level: levelFail, says: "jobs_attempts", remedy: "migrate up --jobs", fault: `DROP TABLE jobs_attempts CASCADE`},
		{check: "jobs", level: levelFail, says: "newer", remedy: "use the pgfrontier of the newer version", fault: `UPDATE jobs_schema SET version = 1000, applied = 1000`},
		{check: "job workers", level: levelFail, says: "no worker of jobs lives, and jobs are due: mail for 1h", remedy: "start", fault: overdueJob},
		{check: "job workers", level: levelFail, says: "no worker of jobs lives, and jobs are due: mail for 1h", remedy: "start", fault: overdueJob + `; INSERT INTO jobs_workers (worker_id, heartbeat_at) VALUES (gen_random_uuid(), now() - interval '31 seconds')`},
		{check: "job workers", level: levelWarn, says: "h/8 (1h0m)", remedy: "rows of dead", fault: overdueJob + `; INSERT INTO jobs_workers (worker_id, hostname, pid, heartbeat_at, heartbeat_timeout) VALUES (gen_random_uuid(), 'h', 7, now(), '1 day'), (gen_random_uuid(), 'h', 8, ` + hour + `, NULL)`},
		{check: "job workers", level: levelWarn, says: "h/7 has lost 2 of 10 slots of queue mail, the first since 2026-01-02", remedy: "start these processes again", fault: `INSERT INTO jobs_workers (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"Queues": [{"Name": "mail", "Concurrency": 10, "Overdue": 2, "OverdueSince": "2026-01-02T03:04:05Z"}, {"Name": "open"}]}')`},
		{check: "job errors", level: levelFail, says: "h/7: queue mail: permission denied", remedy: "migrate grants --jobs", fault: `INSERT INTO jobs_workers (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"Queues": [{"Name": "mail", "LastError": "permission denied"}]}')`},
		{check: "connections", level: levelWarn, says: "sessions of 1", remedy: "CONNECTION LIMIT N", fault: `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 1', current_database()); END $$`},
		{check: "queues", level: levelWarn, says: "mail by bob (lunch)", remedy: "jobs resume", fault: `INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'bob', 'lunch')`},
		{check: "queues", level: levelWarn, says: "do not run: mail for 1h", remedy: "has handlers", fault: `INSERT INTO jobs (kind, queue, run_at) VALUES ('welcome', 'mail', ` + hour + `), ('bill', 'open', now())`},
		{check: "failed jobs", level: levelWarn, says: "mail has 1", remedy: "then jobs retry, or jobs flows retry for a step of a flow; then jobs discard", fault: `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state) VALUES (1, 'welcome', 'mail', 5, now(), '{}', now(), 1, 1, 0, 5, 'failed'), (2, 'bill', 'open', 5, now(), '{}', now(), 1, 1, 0, 5, 'expired')`},
		{check: "failed jobs", level: levelWarn, says: "mail has 1; one says: pq: permission denied for table totals", remedy: "GRANT what the error names to the workers' role, then pgfrontier jobs retry", fault: `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, error) VALUES (1, 'welcome', 'mail', 5, now(), '{}', now(), 1, 1, 0, 5, 'failed', 'pq: permission denied for table totals')`},
		{check: "failed jobs", level: levelFail, says: "could not be checked", remedy: "see what doctor says of tables and of jobs", fault: `DROP TABLE jobs_history CASCADE`},
		{check: "unserved", level: levelWarn, says: "no worker serves their queues: mail", remedy: "WithQueue", fault: overdueJob + `; INSERT INTO jobs_workers (worker_id, kinds, status) VALUES (gen_random_uuid(), '{welcome}', '{"Queues": [{"Name": "open"}]}')`},
		{check: "unserved", level: levelWarn, says: "no worker advances them", remedy: "flow.Advance()", fault: `INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`},
		{check: "versions", level: levelWarn, says: "lists", remedy: "begin", fault: `INSERT INTO consumer_checkpoints (consumer_name, scope, effects) VALUES
			('e', '{"projection": "lists"}', '[{"after": 9223372036854775807}]')`},
		{check: "versions", level: levelFail, says: "totals: c and d", remedy: "retire", fault: `INSERT INTO consumer_checkpoints (consumer_name, scope, effects) VALUES
			('c', '{"projection": "totals"}', '[]'), ('d', '{"projection": "totals"}', '[]'), ('e', '{"projection": "totals"}', '[{"after": 9223372036854775807}]'), ('f', '{"projection": "lists"}', '[]')`},
		{check: "partitions", level: levelWarn, says: "c: the builds select different events: h/8 may run it, selecting ", remedy: "deploy the code that is wanted", fault: `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('c');
			INSERT INTO worker_nodes (worker_id, hostname, pid, consumers, partitions) VALUES
			(gen_random_uuid(), 'h', 7, '{c}', '{"c": {"count": 1, "scope": {"types": ["A"], "version": 0}}}'), (gen_random_uuid(), 'h', 8, '{c}', '{"c": {"count": 1, "scope": {"types": ["A", "B"], "version": 0}}}')`},
		{check: "schedules", level: levelWarn, says: "hourly paused by bob since 2020-01-02 03:04:05Z: lunch; nightly paused since 2020-01-02 03:04:05Z", remedy: "jobs resume", fault: `INSERT INTO jobs_schedules (name, hash, next_at, paused_at, paused_by, paused_reason) VALUES
			('hourly', 'h', now() + interval '1 hour', '2020-01-02 03:04:05Z', 'bob', 'lunch'), ('nightly', 'h', now() + interval '1 hour', '2020-01-02 03:04:05Z', NULL, NULL)`},
		{check: "schedules", level: levelWarn, says: "overdue: nightly since 1h0m; nightly paused by bob since", remedy: "jobs retire", fault: `INSERT INTO jobs_schedules (name, hash, next_at, paused_at, paused_by, paused_reason) VALUES ('nightly', 'h', ` + hour + `, now(), 'bob', 'lunch')`},
		{check: "schedules", level: levelWarn, says: "nightly since 1h", remedy: "start a process", fault: `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', ` + hour + `)`},
	} {
		t.Run(c.check+" "+c.says, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
				t.Fatal(err)
			}
			s.append(t, 1)
			if f := s.found(t, c.check); f.Level != levelOK {
				t.Fatalf("before the fault: %+v", f)
			}
			if c.check == "prepared" {
				gid := "forgotten in " + value[string](t, s, `SELECT current_database()`) // the server has it once
				c.fault = strings.ReplaceAll(c.fault, "forgotten", gid)
				t.Cleanup(func() { s.Exec(t, `ROLLBACK PREPARED '`+gid+`'`) })
			}
			s.Exec(t, c.fault)
			s.expectFound(t, c.check, c.level, c.says, c.remedy, c.flags...)
		})
	}
}

// An index that CREATE INDEX CONCURRENTLY builds is no invalid one, until that has failed.
func TestDoctorLeavesIndexesThatAreBuilt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	held, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }()
	if _, err := held.ExecContext(t.Context(), `LOCK worker_nodes IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	built := make(chan error, 1)
	go func() {
		_, err := s.DB.ExecContext(t.Context(), `CREATE INDEX CONCURRENTLY slow ON worker_nodes (created_at)`)
		built <- err
	}()
	await(t, "the index to be there, invalid", func() bool {
		return value[int](t, s, `SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid = 'worker_nodes'::regclass`) == 1
	})
	s.expectFound(t, "indexes", levelOK, "all are valid", "")
	s.Exec(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_progress_create_index WHERE datname = current_database()`)
	if err := <-built; err == nil {
		t.Fatal("the index was built beside a transaction that holds the table")
	}
	s.expectFound(t, "indexes", levelWarn, "slow", "REINDEX")
}

// Where there are jobs only, nothing is said of consumers, nor of a log.
func TestDoctorOfJobsOnly(t *testing.T) {
	s := newJobsSite(t)
	out := s.expectAllOK(t).out
	for _, c := range append(append([]check{}, serverChecks...), tableChecks...) {
		if strings.Contains(out, "OK    "+c.name) != c.jobs {
			t.Errorf("%s is, or is not, among\n%s", c.name, out)
		}
	}
	s.Exec(t, `INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'bob', 'lunch')`)
	s.expectFound(t, "queues", levelWarn, "mail by bob (lunch)", "jobs resume")
	s.Exec(t, `DROP TABLE jobs_attempts CASCADE`)
	s.expectFound(t, "jobs", levelFail, "jobs_attempts", "migrate up --jobs")
}

// The doctor misses workers of jobs while jobs are due in a queue that is not paused. A role
// that may not read their table is told so.
func TestDoctorMissesWorkersOfJobs(t *testing.T) {
	s := newJobsSite(t)
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('welcome', 'mail', now() - interval '1 hour'), ('bill', 'open', now() + interval '1 hour')`)
	level := func(want string, flags ...string) {
		t.Helper()
		if f := s.found(t, "job workers", flags...); f.Level != want {
			t.Errorf("found %+v, want %s", f, want)
		}
	}
	level(levelFail)
	level(levelOK, "--max-age", "2h")
	for _, queue := range []string{"mail", "*"} {
		s.expect(t, exitDone, line("jobs pause %s --reason r", queue))
		level(levelOK)
		s.expect(t, exitDone, line("jobs resume %s --reason r", queue))
		level(levelFail)
	}
	role, as := s.login(t, "doctor")
	s.Exec(t, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+role+`; REVOKE SELECT ON jobs_workers FROM `+role)
	as.expectFound(t, "job workers", levelWarn, "could not be checked", "GRANT SELECT ON public.jobs_workers TO "+role+"; or run the doctor as the workers' role, if that is another")
	s.Exec(t, `GRANT SELECT ON jobs_workers TO `+role)
	as.expectFound(t, "job workers", levelFail, "no worker of jobs lives", "start")

	s.Exec(t, `INSERT INTO jobs_workers (worker_id) VALUES (gen_random_uuid())`)
	s.expectFound(t, "job workers", levelOK, "1 live", "")
	s.Exec(t, `UPDATE jobs_workers SET heartbeat_at = now() - interval '1 hour'`)
	s.expectFound(t, "job workers", levelFail, "no worker of jobs lives", "start")
	s.Exec(t, `DELETE FROM jobs WHERE queue = 'mail'`)
	s.expectFound(t, "job workers", levelWarn, "no heartbeat for long", "rows of dead")
}

// The checks of indexes and of dead rows leave out no table of the library.
func TestDoctorKnowsAllTables(t *testing.T) {
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	p := patient{}
	var err error
	if p.t, err = (&app{place: place{getenv: func(string) string { return "" }}}).parsed(); err != nil {
		t.Fatal(err)
	}
	missing := value[string](t, s, `SELECT coalesce(string_agg(relname, ', '), '') FROM pg_class
		WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace AND oid NOT IN (`+oursSQL+`)`, p.ours())
	if missing != "" {
		t.Errorf("they leave out %s", missing)
	}
}

// How many ranges in doubt are many is what the option of the consumer's worker says.
func TestDoctorKnowsMaxOpenRanges(t *testing.T) {
	s := newSite(t)
	s.append(t, 1)
	s.work(t, worker.WithMaxOpenRanges(100))
	await(t, "the worker to tell its options", func() bool {
		return value[int64](t, s, `SELECT count(*) FROM consumer_assignments JOIN worker_nodes USING (worker_id) WHERE status->'MaxOpenRanges' = '100'`) == 1
	})
	// It has loaded its progress, and does not ask for these again.
	await(t, "the event to be handled", func() bool {
		return value[int64](t, s, `SELECT coalesce(max(last_position), 0) FROM consumer_checkpoints`) == 1
	})
	open := func(n int) {
		s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at)
			SELECT 'c', gen_random_uuid(), 1000 + 2 * i, 1000 + 2 * i, 1, 'open', 1001 + 2 * i, 1001 + 2 * i, now() FROM generate_series(1, $1::int) AS i`, n)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_timeout, status) VALUES (gen_random_uuid(), '1 day', '{"MaxOpenRanges": 1000}')`) // another's option
	open(80)
	if f := s.found(t, "in doubt"); f.Level != levelOK {
		t.Errorf("80 ranges: %+v", f)
	}
	open(1)
	s.expectFound(t, "in doubt", levelWarn, "c has 81 of 100", "WithMaxOpenRanges")
	s.Exec(t, `UPDATE consumer_gap_skips SET state = 'void', closed_at = now()`)
}

func (s site) expectFound(t *testing.T, check, level, says, remedy string, flags ...string) {
	t.Helper()
	f := s.found(t, check, flags...)
	if f.Level != level || !strings.Contains(f.Says, says) || !strings.Contains(f.Remedy, remedy) {
		t.Errorf("found %+v, want %s with %q and %q", f, level, says, remedy)
	}
}

// A transaction that stays open fails, once it is older than --max-age.
func TestDoctorFindsOpenTransactions(t *testing.T) {
	s := newSite(t)
	s.begin(t, "x", 1)
	if f := s.found(t, "transactions"); f.Level != levelOK || !strings.Contains(f.Says, "1 have") {
		t.Errorf("while it is young: %+v", f)
	}
	await(t, "the transaction to be too old", func() bool { return s.found(t, "transactions", "--max-age", "100ms").Level == levelFail })
	s.expectFound(t, "transactions", levelFail, "idle in transaction", "pg_terminate_backend", "--max-age", "100ms")
}

// A transaction that ends while the doctor reads is none that its role may not see: the server
// shows the lock, and then a session that is gone or rests, or no prepared transaction. The views
// stand for what the server shows a moment later.
func TestDoctorAndTransactionsThatEndMeanwhile(t *testing.T) {
	s := newSite(t)
	s.Exec(t, `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = public, pg_catalog'; END $$`)
	s.begin(t, "x", 1)
	columns := value[string](t, s, `SELECT string_agg(CASE WHEN attname IN ('xact_start', 'backend_xid', 'backend_xmin') THEN 'NULL::' || format_type(atttypid, atttypmod) || ' AS ' || attname ELSE attname END, ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_stat_activity'::regclass AND attnum > 0`)
	const sessions = `CREATE OR REPLACE VIEW public.pg_stat_activity AS SELECT `
	for _, moment := range []struct{ what, view string }{
		{"the session is gone", sessions + `* FROM pg_catalog.pg_stat_activity WHERE state = 'active'`},
		{"the session rests", sessions + columns + ` FROM pg_catalog.pg_stat_activity`},
	} {
		s.Exec(t, moment.view)
		if f := s.found(t, "transactions"); f.Level != levelOK || !strings.Contains(f.Says, "0 have") {
			t.Errorf("%s: %+v", moment.what, f)
		}
	}
	s.Exec(t, `CREATE OR REPLACE VIEW public.pg_stat_activity AS SELECT `+strings.ReplaceAll(columns, " state,", " 'disabled'::text AS state,")+` FROM pg_catalog.pg_stat_activity`)
	s.expectFound(t, "transactions", levelWarn, "is hidden", "track_activities")
	s.Exec(t, `DROP VIEW public.pg_stat_activity`)
	gid := "gone from " + value[string](t, s, `SELECT current_database()`)
	s.Exec(t, `BEGIN; SELECT nextval('events_global_position_seq'); PREPARE TRANSACTION '`+gid+`'`)
	t.Cleanup(func() { s.Exec(t, `ROLLBACK PREPARED '`+gid+`'`) })
	s.expectFound(t, "prepared", levelFail, gid, "ROLLBACK PREPARED")
	s.Exec(t, `CREATE VIEW public.pg_prepared_xacts AS SELECT * FROM pg_catalog.pg_prepared_xacts WHERE false`)
	if f := s.found(t, "prepared"); f.Level != levelOK {
		t.Errorf("it was committed: %+v", f)
	}
}

// What is open for long and has drawn no positions holds back vacuum, or keeps locks.
func TestDoctorFindsWhatHoldsVacuumBack(t *testing.T) {
	s := newSite(t)
	s.Exec(t, `CREATE TABLE mine (n int)`)
	begin := func(application string, level sql.IsolationLevel, work string) (pid int, tx *sql.Tx) {
		t.Helper()
		db, err := sql.Open("pgx", s.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if tx, err = db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		if err = tx.QueryRow(`SELECT pg_backend_pid() FROM set_config('application_name', $1, false)`, application).Scan(&pid); err == nil {
			_, err = tx.Exec(work)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pid, tx
	}
	const age = 300 * time.Millisecond
	says := func(text string) {
		t.Helper()
		await(t, "vacuum: "+text, func() bool {
			f := s.found(t, "vacuum", "--max-age", age.String())
			return f.Level == levelWarn && strings.Contains(f.Says, text) && strings.Contains(f.Remedy, "pg_terminate_backend") && !strings.Contains(f.Says, "secret")
		})
	}
	quiet := func(flags ...string) {
		t.Helper()
		await(t, "nothing to be wrong", func() bool { return s.found(t, "vacuum", flags...).Level == levelOK })
	}
	for _, c := range []struct {
		application string
		level       sql.IsolationLevel
		work, does  string
	}{
		{"report", sql.LevelRepeatableRead, `SELECT 'secret'`, "keeps dead rows from vacuum"},
		{"shop", sql.LevelDefault, `INSERT INTO mine VALUES (1)`, "keeps dead rows from vacuum"},
		{"psql", sql.LevelDefault, `SELECT FROM mine`, "keeps locks"},
	} {
		pid, tx := begin(c.application, c.level, c.work)
		says(fmt.Sprintf("pid %d (%s, idle in transaction) %s for ", pid, c.application, c.does))
		quiet("--max-age", "1h")
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		quiet("--max-age", age.String())
	}
	gid := "bill 7 of " + value[string](t, s, `SELECT current_database()`)
	s.Exec(t, `BEGIN; INSERT INTO mine VALUES (1); PREPARE TRANSACTION '`+gid+`'`)
	t.Cleanup(func() { s.Exec(t, `ROLLBACK PREPARED '`+gid+`'`) })
	says(`prepared transaction "` + gid + `" of postgres keeps dead rows from vacuum for `)
	if f := s.found(t, "prepared"); f.Level != levelOK {
		t.Errorf("it has drawn no positions: %+v", f)
	}
	pid, _ := begin("shop", sql.LevelDefault, `SELECT nextval('events_global_position_seq')`)
	await(t, "the transaction to hold the log back", func() bool { return s.found(t, "transactions", "--max-age", age.String()).Level == levelFail })
	if f := s.found(t, "vacuum", "--max-age", age.String()); strings.Contains(f.Says, fmt.Sprint(pid)) {
		t.Errorf("named twice: %+v", f)
	}
}

// Row-level security, and what a role may not see, show under that role only.
func TestDoctorUnderOtherRoles(t *testing.T) {
	s := newSite(t)
	role, d := s.login(t, "doctor")
	appender, _ := s.login(t, "appender")
	s.Exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role+`; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role)
	s.Exec(t, `ALTER TABLE consumer_dead_letters ENABLE ROW LEVEL SECURITY`)
	d.expectFound(t, "row security", levelFail, "a worker of this role does not start", "ALTER TABLE public.consumer_dead_letters DISABLE ROW LEVEL SECURITY")
	s.Exec(t, `ALTER TABLE consumer_dead_letters DISABLE ROW LEVEL SECURITY`)
	for _, check := range []string{"visibility", "log", "row security"} {
		if f := d.found(t, check); f.Level != levelOK {
			t.Errorf("before: %+v", f)
		}
	}
	open := s.begin(t, "x", 1)
	d.expectFound(t, "transactions", levelWarn, "this role does not see", "pg_read_all_stats")
	s.Exec(t, `GRANT INSERT ON events TO `+appender)
	d.expectFound(t, "visibility", levelWarn, appender, "pg_read_all_stats")
	d.expectFound(t, "vacuum", levelWarn, "sessions of other roles", "pg_read_all_stats")
	s.Exec(t, `GRANT pg_read_all_stats TO `+role)
	for _, check := range []string{"vacuum", "transactions"} {
		if f := d.found(t, check); f.Level != levelOK {
			t.Errorf("of a role that sees all: %+v", f)
		}
	}
	_ = open.Rollback()
	s.Exec(t, `REVOKE INSERT ON consumer_checkpoints_token FROM `+role)
	d.expectFound(t, "log", levelWarn, "could not be checked", `GRANT SELECT, INSERT, UPDATE ON "consumer_checkpoints_token" to this role; or run the doctor as the workers' role, if that is another`)
	s.Exec(t, `GRANT INSERT ON consumer_checkpoints_token TO `+role+`; ALTER TABLE events ENABLE ROW LEVEL SECURITY`)
	d.expectFound(t, "log", levelFail, "row-level security", "BYPASSRLS")
	d.expectFound(t, "row security", levelFail, "hides rows from role "+role, "ALTER TABLE public.events DISABLE ROW LEVEL SECURITY")
	d.expectFound(t, "transactions", levelWarn, "could not be checked", "mend the log")
	d.expect(t, exitDone, words("status"), "row-level security")
	d.expect(t, exitRefused, words("status --check"), "BYPASSRLS")
	d.expect(t, exitDone, words("status -o json"), `"log":{"error":`)
}

// Behind a transaction-pooling proxy notifications are lost.
func TestDoctorBehindAProxy(t *testing.T) {
	s := newSite(t)
	behind := at(s.Bounced(t, nil))
	behind.expectFound(t, "proxy", levelWarn, "transaction-pooling", "LeaderStrategyLease")
	behind.expectFound(t, "notify", levelWarn, "no notification", "past the proxy")
	behind.expect(t, exitDone, words("status"))
	behind.place(t, 0)
	behind.expect(t, exitDone, words("pause c --reason r"))
}

func TestDoctorOnAStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})
	standby, err := primary.Standby(t.Context(), 0)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s := site{env: map[string]string{"DATABASE_URL": standby.URL("")}}
	s.expectFound(t, "server", levelFail, "standby", "read-write")
}

func TestDoctorFindsDeadTuples(t *testing.T) {
	s := newSite(t)
	if f := s.found(t, "dead tuples"); f.Level != levelOK {
		t.Fatalf("before: %+v", f)
	}
	s.Exec(t, `ALTER TABLE aggregate_heads SET (autovacuum_enabled = off)`)
	s.Exec(t, `INSERT INTO aggregate_heads (aggregate_type, aggregate_id, aggregate_version) SELECT 'a', i::text, 1 FROM generate_series(1, 20000) AS i`)
	s.Exec(t, `DELETE FROM aggregate_heads`)
	await(t, "the statistics", func() bool {
		s.Exec(t, `SELECT`) // or before PostgreSQL 15 an idle session does not tell what it has counted
		return s.found(t, "dead tuples").Level == levelWarn
	})
	s.expectFound(t, "dead tuples", levelWarn, "aggregate_heads (", "VACUUM")
}
