package alarms_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func place(w ops.Worker) string { return fmt.Sprintf("%s/%d", w.Host, w.PID) }

func lines(all []alarms.Alarm) string {
	var b strings.Builder
	for _, t := range all {
		fmt.Fprintln(&b, t)
	}
	return b.String()
}

// find returns the list as text, one line each.
func find(t *testing.T, db *sql.DB, jobs string, workers ...ops.Worker) string {
	t.Helper()
	all, err := alarms.Find(t.Context(), db, store.Names{Jobs: jobs}, nil, workers, place)
	if err != nil {
		t.Fatal(err)
	}
	return lines(all)
}

// Each error of a Status is one alarm, however many workers report it. Dead workers and workers
// of another library have no alarms.
func TestErrorsOfWorkers(t *testing.T) {
	said := func(pid int, status string) ops.Worker {
		return ops.Worker{ID: uuid.New(), Host: "h", PID: pid, Status: json.RawMessage(status)}
	}
	dead := said(1, `{"LoopError": "it hangs"}`)
	dead.HeartbeatAge = time.Minute
	got := lines(alarms.List([]ops.Worker{
		said(9, `{"FrontierError": "cache 32"}`), dead,
		said(8, `{"FrontierError": "cache 32", "CoordinationError": "no right\nat all", "Consumers": [{"Name": "d"}, {"Name": "c#000-7ff", "LastError": "no customer"}]}`),
		said(7, `{"FrontierError": "cache 32", "NotifyError": "nobody listens", "LoopError": "it waits", "Consumers": [{"Name": "b", "LastError": "no order"}]}`),
		said(6, `[]`), said(5, `{"FrontierError": 7}`), said(4, ``), said(3, `{}`),
	}, place))
	const want = `worker h/7: log: cache 32 (and of 2 other workers)
worker h/7: notify: nobody listens
worker h/7: loop: it waits
worker h/8: coordination: no right; at all
consumer b: no order
consumer c#000-7ff: no customer
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// The list is short, however many alarms there are, and counts the alarms that it leaves out.
func TestListIsShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "consumers")
		var workers []ops.Worker
		for i := range n {
			workers = append(workers, ops.Worker{Host: "h", PID: i, Status: json.RawMessage(fmt.Sprintf(`{"LoopError": "%[1]d", "Consumers": [{"Name": "c%02[1]d", "LastError": "boom"}]}`, i))})
		}
		all := alarms.List(workers, place)
		named, others := map[alarms.Kind]int{}, map[alarms.Kind]int{}
		for _, one := range all {
			more := 0
			if one.Name == "" {
				if _, err := fmt.Sscanf(one.Text, "%d more", &more); err != nil {
					t.Fatalf("%v: %v", one, err)
				}
				others[one.Kind] += more
			} else {
				named[one.Kind]++
			}
		}
		for _, kind := range []alarms.Kind{alarms.Worker, alarms.Consumer} {
			if named[kind] != min(n, 5) || named[kind]+others[kind] != n {
				t.Fatalf("of %d: %s", n, lines(all))
			}
		}
	})
}

// An alarm about jobs lasts until its cause is gone.
func TestJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'a', now() + interval '1 hour'), ('k', 'b', now() - interval '1 minute'), ('k', 'c', 'infinity');
		INSERT INTO jobs (kind, queue, run_at, state, claim, claimed_by) VALUES ('k', 'a', now() - interval '1 hour', 'running', 7, gen_random_uuid());
		INSERT INTO jobs_queues (name, max_running) VALUES ('a', 3);
		INSERT INTO jobs_workers (worker_id, kinds) VALUES (gen_random_uuid(), '{k}');
		INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', now()), ('never', 'h', NULL)`)
	finish := `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_attempts, max_resets, state)
		SELECT -i, 'k', %s, 5, now(), '{}', now(), 1, 0, 0, 15, 5, %s FROM generate_series(%d, %d) AS i`
	d.Exec(t, fmt.Sprintf(finish, `'a'`, `CASE i % 2 WHEN 1 THEN 'completed' ELSE 'expired' END`, 1001, 1010))
	if got := find(t, d.DB, ""); got != "" {
		t.Fatalf("in good health:\n%s", got)
	}
	for _, c := range []struct{ does, undoes, says string }{
		{`UPDATE jobs SET run_at = now() - interval '1 hour' WHERE queue = 'b'`, `DELETE FROM jobs WHERE queue = 'b'`, "queue b: jobs are due and do not run, for 1h0m\n"},
		{`UPDATE jobs SET run_at = '-infinity', priority = 9 WHERE queue = 'c'`, `UPDATE jobs SET run_at = now()`, "queue c: jobs are due and do not run, for 876000h0m\n"},
		{`INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('b', now(), 'ann', E'lunch\nand a walk')`, `UPDATE jobs_queues SET paused_at = NULL`, "queue b: paused by ann (lunch; and a walk)\n"},
		{fmt.Sprintf(finish, `CASE i WHEN 1 THEN 'A' ELSE 'a' END`, `'failed'`, 1, 3), `DELETE FROM jobs_history`, "queue A: 1 job has failed for good\nqueue a: 2 jobs have failed for good\n"},
		{fmt.Sprintf(finish, `'a'`, `'failed'`, 1, 101), `DELETE FROM jobs_history`, "queue a: more than 100 jobs have failed for good\n"},
		{fmt.Sprintf(finish, `CASE i WHEN 1 THEN 'A' WHEN 4 THEN 'z' ELSE 'a' END`, `'failed'`, 1, 4) + `; UPDATE jobs_history SET acknowledged_at = now() WHERE id <> -2`, `UPDATE jobs_history SET acknowledged_at = now()`, "queue a: 1 job has failed for good\n"},
		{fmt.Sprintf(finish, `'a'`, `'failed'`, 5, 5), `DELETE FROM jobs_history`, "queue a: 1 job has failed for good\n"},
		{fmt.Sprintf(finish, `'q' || i`, `'failed'`, 1, 7), `DELETE FROM jobs_history`, "queue q1: 1 job has failed for good\nqueue q2: 1 job has failed for good\nqueue q3: 1 job has failed for good\nqueue q4: 1 job has failed for good\nqueue q5: 1 job has failed for good\nqueue: 2 more\n"},
		{`UPDATE jobs_schedules SET next_at = now() - interval '1 hour' WHERE name = 'nightly'`, `UPDATE jobs_schedules SET next_at = now()`, "schedule nightly: overdue for 1h0m\n"},
		{`UPDATE jobs_schedules SET paused_at = now() - interval '2 hours', paused_by = 'ann', paused_reason = E'lunch\nand a walk' WHERE name = 'nightly'`, `UPDATE jobs_schedules SET paused_at = NULL`, "schedule nightly: paused for 2h0m by ann (lunch; and a walk)\n"},
		{`UPDATE jobs_schedules SET next_at = now() - interval '1 hour', paused_at = now() - interval '2 hours', paused_by = NULL, paused_reason = NULL WHERE name = 'nightly'`, `DELETE FROM jobs_schedules`, "schedule nightly: overdue for 1h0m\nschedule nightly: paused for 2h0m\n"},
		{`INSERT INTO jobs_schedules (name, hash, paused_at, paused_by, paused_reason) VALUES ('new', 'h', now(), 'ann', 'lunch')`, `DELETE FROM jobs_schedules`, "schedule new: paused for 0m by ann (lunch)\n"},
		{`INSERT INTO jobs_schedules (name, hash, paused_at) VALUES ('never', 'h', 'infinity')`, `DELETE FROM jobs_schedules`, "schedule never: paused for 0m\n"},
		{`UPDATE jobs_workers SET hostname = 'h', pid = 7, status = '{"CoordinationError": "no right", "SettleError": "no disk", "Queues": [{"Name": "a"}, {"Name": "c"}, {"Name": "b", "LastError": "permission denied", "Overdue": 1, "Concurrency": 2, "OverdueSince": "2026-01-02T03:04:05Z"}]}'`, `UPDATE jobs_workers SET status = NULL`,
			"worker of jobs h/7: coordination: no right\nworker of jobs h/7: ends of jobs: no disk\nworker of jobs h/7: queue b: permission denied\nworker of jobs h/7: has lost 1 of 2 slots of queue b, the first since 2026-01-02 03:04:05\n"},
		{`UPDATE jobs_workers SET heartbeat_at = now() - interval '1 hour', status = '{"CoordinationError": "no right", "Queues": [{"Name": "b", "Overdue": 1, "Concurrency": 2}]}'`, `UPDATE jobs_workers SET heartbeat_at = now(), status = NULL`, "worker of jobs h/7: no heartbeat for long\nqueue a: jobs are due, and no worker serves it\nqueue c: jobs are due, and no worker serves it\n"},
		{`UPDATE jobs_schema SET version = 1000, applied = 1000`, fmt.Sprintf(`UPDATE jobs_schema SET version = %[1]d, applied = %[1]d`, migrations.JobsVersion), newer(migrations.JobsVersion)},
		{`UPDATE consumer_checkpoints_schema SET version = 1000, applied = 1000`, fmt.Sprintf(`UPDATE consumer_checkpoints_schema SET version = %[1]d, applied = %[1]d`, migrations.Version), newer(migrations.Version)},
		{`INSERT INTO jobs (kind, queue) VALUES ('k', 'd'); UPDATE jobs SET run_at = 'infinity' WHERE queue <> 'd'; UPDATE jobs_workers SET status = '{"Queues": [{"Name": "b"}]}'`, `UPDATE jobs_workers SET status = '{"Queues": [{"Name": "d"}]}'`, "queue d: jobs are due, and no worker serves it\n"},
		{fmt.Sprintf(finish, `'a'`, `'failed'`, 1, 1) + `; UPDATE jobs_workers SET status = '{"Queues": []}'`, `DELETE FROM jobs_history; UPDATE jobs_workers SET status = NULL`, "queue d: jobs are due, and no worker serves it\nqueue a: 1 job has failed for good\n"},
		{`INSERT INTO jobs_schedules (name, hash, paused_at) VALUES ('new', 'h', now()); UPDATE jobs_workers SET status = '{"Queues": []}'`, `DELETE FROM jobs_schedules; UPDATE jobs_workers SET status = NULL`, "queue d: jobs are due, and no worker serves it\nschedule new: paused for 0m\n"},
		{`DELETE FROM jobs_workers; UPDATE jobs SET run_at = now() - interval '1 hour' WHERE queue = 'd'`, `DELETE FROM jobs WHERE queue = 'd'`, "queue d: jobs are due and do not run, for 1h0m, and no worker serves it\n"},
		{`INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`, `INSERT INTO jobs_flow_sweep (next_at) VALUES (now() - interval '50 seconds')`, "flows: runs have not ended, and no worker advances them\n"},
		{`UPDATE jobs_flow_sweep SET next_at = now() - interval '61 seconds'`, `UPDATE jobs_flow_runs SET finished_at = now(), state = 'failed'`, "flows: runs have not ended, and no worker advances them\n"},
	} {
		d.Exec(t, c.does)
		if got := find(t, d.DB, ""); got != c.says {
			t.Errorf("%s\n%s\nwant\n%s", c.does, got, c.says)
		}
		d.Exec(t, c.undoes)
		if got := find(t, d.DB, ""); got != "" {
			t.Errorf("%s\n%s", c.undoes, got)
		}
	}
	// If jobs wait in a paused queue, the pause is the alarm.
	d.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'x', now() - interval '1 hour'); UPDATE jobs_queues SET paused_at = now(), paused_by = 'ann', paused_reason = 'r', name = '*' WHERE name = 'b'`)
	if got := find(t, d.DB, ""); got != "queue *: paused by ann (r)\n" {
		t.Errorf("while all are paused:\n%s", got)
	}
}

// newer returns the alarm about tables that version 1000 has upgraded.
func newer(version int) string {
	return fmt.Sprintf("tables: migrations: the tables belong to a newer version: the database has version 1000, which needs programs of version 1000 or later, and this program has version %d: update the program\n", version)
}

// Find reports obstacles to the workers' writes and connections, and builds that differ.
func TestDeployment(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	role := "shop_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role+` LOGIN; CREATE ROLE reader_`+role+` LOGIN CONNECTION LIMIT 0; GRANT UPDATE (heartbeat_at) ON worker_nodes TO `+role)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role+`, reader_`+role) })
	d.Exec(t, `ALTER ROLE reader_`+role+` SET default_transaction_read_only = on`)
	for _, c := range []struct{ does, undoes, says string }{
		{`ALTER ROLE ` + role + ` SET default_transaction_read_only = on`, `ALTER ROLE ` + role + ` RESET default_transaction_read_only`, "server: transactions are read-only by default for " + role + ", who may write as a worker\n"},
		{`ALTER ROLE ` + role + ` CONNECTION LIMIT 0`, `ALTER ROLE ` + role + ` CONNECTION LIMIT 7`, "server: the connection limit of role " + role + " is reached: 0 sessions of 0\n"},
		{`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$`, "server: transactions are read-only by default, and workers write\n"},
		{`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 1', current_database()); END $$`, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT -1', current_database()); END $$`, "sessions of 1\n"},
	} {
		d.Exec(t, c.does)
		if got := find(t, d.DB, ""); !strings.HasSuffix(got, c.says) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s\n%s\nwant\n%s", c.does, got, c.says)
		}
		d.Exec(t, c.undoes)
		if got := find(t, d.DB, ""); got != "" {
			t.Errorf("%s\n%s", c.undoes, got)
		}
	}
	if got := find(t, d.OpenSet(t, "default_transaction_read_only", "on"), ""); got != "" {
		t.Errorf("to a session that only reads:\n%s", got)
	}
	reads := "reads_" + role
	d.Exec(t, `CREATE ROLE `+reads+` LOGIN PASSWORD 'b'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+reads)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+reads+`; DROP ROLE `+reads) })
	d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER ROLE `+reads+` IN DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	scheme, rest, _ := strings.Cut(d.URL, "://")
	_, address, _ := strings.Cut(rest, "@")
	reader, err := sql.Open("pgx", scheme+"://"+reads+":b@"+address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	if got := find(t, reader, ""); got != "" {
		t.Errorf("to a role that only reads:\n%s", got)
	}
	reported := func(pid int, types ...string) ops.Worker {
		return ops.Worker{ID: uuid.New(), Host: "h", PID: pid, Able: []string{"c"}, Demands: map[string]ops.Demand{}, Scopes: map[string]ops.Scope{"c": {Types: types}}}
	}
	all, err := alarms.Find(t.Context(), d.DB, store.Names{}, []ops.Consumer{{Name: "c"}}, []ops.Worker{reported(7, "Order"), reported(8, "Order", "Invoice")}, place)
	const differ = "consumer c: the builds select different events: h/8 may run it, selecting Invoice, Order; h/7 waits, selecting Order\n"
	if err != nil || lines(all) != differ {
		t.Errorf("%v, %s\nwant\n%s", err, lines(all), differ)
	}
	gone := reported(8, "Order", "Invoice")
	gone.HeartbeatAge = time.Hour
	all, err = alarms.Find(t.Context(), d.DB, store.Names{}, []ops.Consumer{{Name: "c"}}, []ops.Worker{reported(7, "Order"), gone}, place)
	if err != nil || len(all) > 0 {
		t.Errorf("beside a dead worker of another build: %v, %s", err, lines(all))
	}
}

// A server keeps connections for superusers and for roles that are granted them. Workers get none
// of these.
func TestServerIsFull(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"max_connections": "9", "superuser_reserved_connections": "5"}
	var version int
	if err := pgtest.New(t).DB.QueryRowContext(t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 160000 {
		settings = map[string]string{"max_connections": "9", "superuser_reserved_connections": "3", "reserved_connections": "2"}
	}
	db, err := sql.Open("pgx", pgtest.OwnServer(t, settings).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for range 3 {
		if got := find(t, db, ""); got != "" {
			t.Fatalf("with free connections:\n%s", got)
		}
		held, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = held.Close() }()
	}
	if got, want := find(t, db, ""), "server: the connection limit of the server is reached: 4 sessions of 4\n"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// If there are no tables of jobs, or the role may not read them, there are no alarms about
// jobs. The alarms about workers remain.
func TestJobsOfUnreadableTables(t *testing.T) {
	t.Parallel()
	worker := ops.Worker{Host: "h", PID: 7, Status: json.RawMessage(`{"LoopError": "it waits"}`)}
	const says = "worker h/7: loop: it waits\n"
	d := pgtest.New(t)
	if got := find(t, d.DB, "", worker); got != says {
		t.Errorf("without tables of jobs:\n%s", got)
	}
	role := "blind_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE SCHEMA "order"; CREATE ROLE `+role+` LOGIN PASSWORD 'b'`)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	if err := migrations.ApplyJobs(t.Context(), d.DB, &migrations.Config{Names: store.Names{Jobs: "order.tasks"}}); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO "order".tasks_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'ann', 'lunch')`)
	const paused = "queue mail: paused by ann (lunch)\n"
	scheme, rest, _ := strings.Cut(d.URL, "://")
	_, address, _ := strings.Cut(rest, "@")
	blind, err := sql.Open("pgx", scheme+"://"+role+":b@"+address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blind.Close() })
	for _, step := range []struct{ grant, says string }{
		{`SELECT 1`, says},
		{`GRANT USAGE ON SCHEMA "order" TO ` + role, says},
		{`GRANT SELECT ON "order".tasks, "order".tasks_history, "order".tasks_queues TO ` + role, says},
		{`GRANT SELECT ON "order".tasks_schedules TO ` + role, says + paused},
	} {
		d.Exec(t, step.grant)
		if got := find(t, blind, "order.tasks", worker); got != step.says {
			t.Errorf("after %s:\n%s", step.grant, got)
		}
	}
	for _, db := range []*sql.DB{d.DB, d.OpenPQ(t)} {
		if got := find(t, db, "order.tasks", worker); got != says+paused {
			t.Errorf("for the owner:\n%s", got)
		}
	}
	d.Exec(t, `ALTER TABLE "order".tasks_schedules RENAME next_at TO at`) // as in another version
	if got := find(t, d.DB, "order.tasks", worker); got != says {
		t.Errorf("with tables of another version:\n%s", got)
	}
	none := d.OpenPQ(t)
	_ = none.Close()
	if _, err := alarms.Find(t.Context(), none, store.Names{}, nil, nil, place); err == nil {
		t.Error("a database that is away is no error")
	}
}

// However many jobs there are, Find reads few rows, also with the statistics of empty tables.
func TestFindReadsFewRows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `ALTER TABLE jobs SET (autovacuum_enabled = off); ALTER TABLE jobs_history SET (autovacuum_enabled = off); ANALYZE jobs, jobs_history`)
	d.Exec(t, `INSERT INTO jobs (kind, queue, priority, run_at) SELECT 'k', 'q' || i % 50, 1 + i % 9, now() - interval '1 hour' FROM generate_series(1, 100000) AS i`)
	d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_attempts, max_resets, state)
		SELECT -i, 'k', 'q' || i % 50, 5, now(), '{}', now(), 1, 0, 0, 15, 5, CASE i % 4 WHEN 1 THEN 'failed' WHEN 2 THEN 'expired' ELSE 'completed' END FROM generate_series(1, 100000) AS i`)
	names, err := tables.ParseJobs(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	for _, statistics := range []string{"of empty tables", "of today", "from before the failed jobs were acknowledged"} {
		switch statistics {
		case "of today":
			d.Exec(t, `ANALYZE jobs, jobs_history`)
		case "from before the failed jobs were acknowledged":
			d.Exec(t, `UPDATE jobs_history SET acknowledged_at = now() WHERE state = 'failed' AND id < -4`)
		}
		conn, err := d.DB.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		plan, text := pgtest.Explain(t, conn, "force_generic_plan", alarms.JobsSQL(names), `(300000000)`)
		if n := plan.Visited(); n > 20_000 || plan.Cost > 100_000 { // jit_above_cost
			t.Errorf("with the statistics %s, %.0f rows are read, at a cost of %g:\n%s", statistics, n, plan.Cost, text)
		}
		_ = conn.Close()
	}
}

// A worker is silent after its own or the default timeout, and if its heartbeat is in the
// future.
func TestIsSilent(t *testing.T) {
	for _, c := range []struct {
		age, timeout time.Duration
		want         bool
	}{
		{0, 0, false}, {29 * time.Second, 0, false}, {31 * time.Second, 0, true}, {-1, 0, true}, {-1, time.Hour, true},
		{59 * time.Minute, time.Hour, false}, {61 * time.Minute, time.Hour, true}, {4 * time.Second, 3 * time.Second, true},
	} {
		if got := alarms.IsSilent(ops.Worker{HeartbeatAge: c.age, HeartbeatTimeout: c.timeout}); got != c.want {
			t.Errorf("%v old, with a time-out of %v: %v", c.age, c.timeout, got)
		}
	}
}
