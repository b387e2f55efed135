package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// late appends an event that has been waiting for ten minutes.
func (s *shop) late(t *testing.T, aggregate string) {
	t.Helper()
	s.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, created_at)
		VALUES ('Order', $1::text, (SELECT count(*) + 1 FROM events WHERE aggregate_id = $1::text), $2::uuid, 'OrderPlaced', '{}', now() - interval '10 minutes')`, aggregate, uuid.New())
}

// due enqueues a job that has been due for ten minutes.
func (s *shop) due(t *testing.T, queue, do string) {
	t.Helper()
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at, args) VALUES ('errand', $1::text, now() - interval '10 minutes', jsonb_build_object('Do', $2::text))`, queue, do)
}

// cutOff ends the sessions of the workers, which connect again.
func (s *shop) cutOff(t *testing.T) {
	t.Helper()
	s.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'`)
}

// startFlow starts a run of the flow.
func (s *shop) startFlow(t *testing.T, do string) {
	t.Helper()
	f, _, _ := orderFlow()
	if _, err := f.Start(context.Background(), flow.NewClient(jobs.NewClient(s.DB)), nil, do); err != nil {
		t.Fatal(err)
	}
}

// bySQL is a breakage by a statement.
func bySQL(statement string) func(t *testing.T, s *shop) {
	return func(t *testing.T, s *shop) { s.Exec(t, statement) }
}

func bySignal(signal syscall.Signal, names ...string) func(t *testing.T, s *shop) {
	return func(t *testing.T, s *shop) {
		for _, name := range names {
			if err := s.pods[name].Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const aboutOneProcess = "it is about each process, and none is to blame"

var breakagesOfDeployment = []breakage{
	{
		name: "all workers dead",
		says: map[source]string{
			byStatus: `workers +0, and 2 silent, none leads`, byDoctor: `FAIL +workers +no worker lives`, byConsole: `no worker runs`,
			byProbes: `events-1 /livez: no answer`, byAlerts: `(?s)JobsNoWorkers.*NoWorkers`,
		},
		happen: bySignal(syscall.SIGKILL, podNames...),
		remedy: `start the workers`,
		mend: func(t *testing.T, s *shop) {
			for _, name := range podNames {
				s.start(t, name)
			}
		},
	},
	{
		name: "all workers of jobs dead",
		says: map[source]string{
			byStatus: `no worker of jobs lives|no worker serves it`, byDoctor: `FAIL +job workers +no worker of jobs lives`, byConsole: `no worker of jobs lives|no worker serves it`,
			byProbes: `jobs-1 /livez: no answer`, byAlerts: `JobsNoWorkers`,
		},
		happen: func(t *testing.T, s *shop) {
			bySignal(syscall.SIGKILL, "jobs-1", "jobs-2")(t, s)
			s.Exec(t, `INSERT INTO jobs (kind, queue, args) VALUES ('errand', 'mail', '{}')`)
		},
		remedy: `start the workers of jobs`,
		mend: func(t *testing.T, s *shop) {
			s.start(t, "jobs-1")
			s.start(t, "jobs-2")
		},
	},
	{
		name: "database read-only",
		says: map[source]string{
			byStatus: `read-only`, byDoctor: `FAIL +server +.*read-only`, byConsole: `read-only`,
			byProbes: `events-1 /readyz: .*read-only`, byAlerts: `(?s)JobsLeaders.*Leaders`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `ALTER DATABASE postgres SET default_transaction_read_only = on`)
			s.cutOff(t)
		},
		remedy: `ALTER DATABASE .* RESET default_transaction_read_only`,
		mend: func(t *testing.T, s *shop) {
			s.Exec(t, `SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only`)
			s.cutOff(t)
		},
	},
	{
		name: "workers' role read-only",
		says: map[source]string{
			byStatus: `read-only`, byDoctor: `FAIL +server +.*read-only`, byConsole: `read-only`,
			byProbes: `events-1 /readyz: .*read-only`, byAlerts: `(?s)JobsLeaders.*Leaders`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `ALTER ROLE shop SET default_transaction_read_only = on`)
			s.cutOff(t)
		},
		remedy: `ALTER ROLE .* RESET default_transaction_read_only`,
		mend: func(t *testing.T, s *shop) {
			s.Exec(t, `ALTER ROLE shop RESET default_transaction_read_only`)
			s.cutOff(t)
		},
	},
	{
		name: "connection limit of the database reached",
		says: map[source]string{
			byStatus: `too many connections`, byDoctor: `too many connections`, byConsole: `too many connections|silent`,
			byProbes: `events-1 /readyz: .*too many connections`, byAlerts: `JobsQueueDown`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `ALTER DATABASE postgres CONNECTION LIMIT 0`)
			s.cutOff(t)
		},
		remedy: `raise the limit`,
		mend:   bySQL(`ALTER DATABASE postgres CONNECTION LIMIT -1`),
	},
	{
		name: "connection limit of the workers' role reached",
		says: map[source]string{
			byStatus: `connection limit`, byDoctor: `connection limit`, byConsole: `connection limit`,
			byProbes: `events-1 /readyz: .*too many connections`, byAlerts: `JobsQueueDown`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `ALTER ROLE shop CONNECTION LIMIT 0`)
			s.cutOff(t)
		},
		remedy: `ALTER ROLE .* CONNECTION LIMIT`,
		mend:   bySQL(`ALTER ROLE shop CONNECTION LIMIT -1`),
	},
	{
		name: "GRANT lost: of checkpoints",
		says: map[source]string{
			byStatus: `permission denied`, byDoctor: `WARN +errors +.*permission denied`, byConsole: `permission denied`,
			byProbes: `events-\d /readyz: .*permission denied`, byAlerts: `ConsumerLate orders`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `REVOKE UPDATE ON consumer_checkpoints FROM shop`)
			s.late(t, "x")
		},
		remedy: `GRANT`,
		mend:   func(t *testing.T, s *shop) { s.grant(t) },
	},
	{
		name: "GRANT lost: of heartbeats",
		says: map[source]string{
			byStatus: `workers +0, and 2 silent`, byDoctor: `FAIL +workers +no worker lives`, byConsole: `no worker runs`,
			byProbes: `events-1 /readyz: .*permission denied`, byAlerts: `Leaders`,
		},
		happen: bySQL(`REVOKE UPDATE ON worker_nodes FROM shop`),
		remedy: `probe of readiness`,
		mend:   func(t *testing.T, s *shop) { s.grant(t) },
	},
	{
		name: "GRANT lost: of jobs",
		says: map[source]string{
			byStatus: `permission denied`, byDoctor: `permission denied`, byConsole: `permission denied`,
			byProbes: `jobs-1 /readyz: .*permission denied`, byAlerts: `JobsQueueDown`,
		},
		happen: func(t *testing.T, s *shop) {
			s.Exec(t, `REVOKE UPDATE ON jobs FROM shop`)
			s.Exec(t, `INSERT INTO jobs (kind, queue, args) VALUES ('errand', 'mail', '{}')`)
		},
		remedy: `GRANT`,
		mend:   func(t *testing.T, s *shop) { s.grant(t) },
	},
	{
		name: "newer tables",
		says: map[source]string{
			byStatus: `newer version`, byDoctor: `FAIL +tables +.*newer version`, byConsole: `newer version`,
		},
		unless: map[source]string{byProbes: "a worker checks at its start", byAlerts: "a worker checks at its start"},
		happen: bySQL(`UPDATE consumer_checkpoints_schema SET version = version + 100, applied = applied + 100`),
		remedy: `use the pgfrontier of the newer version`,
		mend:   bySQL(`UPDATE consumer_checkpoints_schema SET version = version - 100, applied = applied - 100`),
	},
	{
		name: "code removed",
		says: map[source]string{
			byStatus: `loyalty .* unowned`, byDoctor: `FAIL +owners +no worker has code for: loyalty`, byConsole: `1 consumer that nobody runs: loyalty`,
			byAlerts: `ConsumersUnowned`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) {
				b.Consumers = slices.DeleteFunc(b.Consumers, func(n string) bool { return n == "loyalty" })
			}, "events-1", "events-2")
		},
		remedy: `deploy a worker that has their code, or retire them`,
		mend: func(t *testing.T, s *shop) {
			s.do(t, `pgfrontier retire loyalty --reason "it was removed" --yes`)
			s.await(t, "all to be well without it", s.healthy)
			s.deploy(t, nil, "events-1", "events-2")
		},
	},
	{
		name: "half-rolled deployment",
		says: map[source]string{
			byStatus: `consumer mailer: .*select different events`, byDoctor: `WARN +partitions +mailer: the builds select different events`, byConsole: `consumer mailer: .*select different events`,
		},
		unless: map[source]string{byProbes: aboutOneProcess, byAlerts: "the consumer runs, on the build that selects more"},
		happen: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Types = map[string][]string{"mailer": {"Order", "Invoice"}} }, "events-1")
		},
		remedy: `deploy the code that is wanted everywhere`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Types = map[string][]string{"mailer": {"Order", "Invoice"}} }, "events-2")
		},
	},
	{
		name: "a worker killed",
		says: map[source]string{
			byStatus: `workers +1, and 1 silent`, byDoctor: `WARN +workers +no heartbeat for long`, byConsole: `1 silent worker`,
			byProbes: `events-1 /livez: no answer`,
		},
		unless: map[source]string{byAlerts: "the other worker takes over; up of the process itself is Prometheus' own"},
		happen: bySignal(syscall.SIGKILL, "events-1"),
		remedy: `see whether these processes live`,
		mend:   func(t *testing.T, s *shop) { s.start(t, "events-1") },
	},
	{
		name: "a worker stopped",
		says: map[source]string{
			byStatus: `workers +1, and 1 silent`, byDoctor: `WARN +workers +no heartbeat for long`, byConsole: `1 silent worker`,
			byProbes: `events-1 /livez: no answer`,
		},
		unless: map[source]string{byAlerts: "the other worker takes over; up of the process itself is Prometheus' own"},
		happen: bySignal(syscall.SIGSTOP, "events-1"),
		remedy: `see whether these processes live`,
		mend:   bySignal(syscall.SIGCONT, "events-1"),
	},
	{
		name: "server down, and started again",
		says: map[source]string{
			byStatus: `the database does not answer`, byDoctor: `the database does not answer`, byConsole: `did not answer|503`,
			byProbes: `events-1 /readyz: the database does not answer`, byAlerts: `JobsQueueDown`,
		},
		happen: func(t *testing.T, s *shop) {
			if err := s.server.Kill(); err != nil {
				t.Fatal(err)
			}
		},
		remedy: `that the server runs`,
		mend: func(t *testing.T, s *shop) {
			if err := s.server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	},
}

var breakagesOfConsumers = []breakage{
	{
		name: "poison event, put among the dead letters",
		says: map[source]string{
			byStatus: `orders .* runs +1`, byDoctor: `WARN +letters +orders has 1`, byConsole: `1 dead letter`, byAlerts: `DeadLetters orders`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) { s.late(t, "poison orders") },
		remedy: `pgfrontier letters list NAME, then letters retry or letters discard`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Mended = true }, "events-1", "events-2")
			s.do(t, `pgfrontier letters list orders`)
			s.do(t, `pgfrontier letters retry orders --all --reason "it was mended"`)
			s.await(t, "the dead letter to be handled", s.healthy)
			s.deploy(t, nil, "events-1", "events-2")
		},
	},
	{
		name: "poison event, at which the consumer pauses",
		says: map[source]string{
			byStatus: `orders .* paused`, byDoctor: `WARN +paused +orders by worker`, byConsole: `1 consumer paused: orders`, byAlerts: `ConsumerPaused orders`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Policy = worker.FailPause }, "events-1", "events-2")
			s.late(t, "poison orders")
		},
		remedy: `pgfrontier resume NAME`,
		mend: func(t *testing.T, s *shop) {
			next := s.tools.expect(t, exitDone, words("consumer orders")).out
			at := regexp.MustCompile(`at position (\d+)`).FindStringSubmatch(next)
			if at == nil {
				t.Fatalf("consumer does not name the position:\n%s", next)
			}
			s.do(t, fmt.Sprintf(`pgfrontier skip orders %s --reason "it has no customer" --yes`, at[1]))
			s.do(t, `pgfrontier resume orders --reason "skipped"`)
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "events-1", "events-2")
		},
	},
	{
		name: "hanging handler",
		says: map[source]string{
			byStatus: `consumer orders: .*ignores the end of its context`, byDoctor: `orders: .*ignores the end of its context`, byConsole: `consumer orders: .*ignores the end of its context`,
			byProbes: `/readyz: consumer "orders": .*ignores the end of its context`, byAlerts: `ConsumerLate orders`,
		},
		happen: func(t *testing.T, s *shop) { s.late(t, "hang orders") },
		remedy: `start the process again`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Mended = true }, "events-1", "events-2")
			s.await(t, "the event to be handled", s.healthy)
			s.deploy(t, nil, "events-1", "events-2")
		},
	},
	{
		name: "transaction left idle",
		says: map[source]string{
			byStatus: `open +1 transaction`, byDoctor: `FAIL +transactions +pid \d+`, byConsole: `process \d+ of .* is open for`,
			byProbes: `/readyz: .*pg_terminate_backend`, byAlerts: `ConsumerLate orders`,
		},
		happen: func(t *testing.T, s *shop) {
			tx := s.begin(t, "idle", 1)
			s.late(t, "behind it")
			_ = tx // the remedy ends it
		},
		remedy: `pg_terminate_backend\(\d+\)`,
		mend: func(t *testing.T, s *shop) {
			said := regexp.MustCompile(`pg_terminate_backend\((\d+)\)`).FindStringSubmatch(s.ask(byDoctor).text)
			if said == nil {
				t.Fatal("the doctor names no process")
			}
			s.Exec(t, `SELECT pg_terminate_backend(`+said[1]+`)`)
		},
	},
}

var breakagesOfJobs = []breakage{
	{
		name: "a queue with no worker",
		says: map[source]string{
			byStatus: `queue archive: .*no worker serves it`, byDoctor: `WARN +unserved +.*archive`, byConsole: `queue archive: .*no worker serves it`, byAlerts: `JobsLate archive`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) { s.due(t, "archive", "") },
		remedy: `start a worker that has them, by WithQueue`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Queues = append(slices.Clone(b.Queues), "archive") }, "jobs-1")
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "jobs-1")
		},
	},
	{
		name: "a forgotten schedule",
		says: map[source]string{
			byStatus: `schedule nightly: overdue`, byDoctor: `WARN +schedules +overdue: nightly`, byConsole: `schedule nightly: overdue`, byAlerts: `JobsScheduleOverdue nightly`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Schedules = []string{"digest"} }, "jobs-1", "jobs-2")
			s.Exec(t, `UPDATE jobs_schedules SET next_at = next_at - interval '10 minutes' WHERE name = 'nightly'`)
		},
		remedy: `jobs retire SCHEDULE`,
		mend: func(t *testing.T, s *shop) {
			s.do(t, `pgfrontier jobs retire nightly --reason "the report is gone" --yes`)
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "jobs-1", "jobs-2")
		},
	},
	{
		name: "an unadvanced flow",
		says: map[source]string{
			byStatus: `flows: runs have not ended, and no worker advances them`, byDoctor: `WARN +unserved +runs of flows have not ended`, byConsole: `flows: runs have not ended`, byAlerts: `JobsFlowsUnadvanced`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Advances = false }, "jobs-1", "jobs-2")
			s.startFlow(t, "")
			s.Exec(t, `UPDATE jobs_flow_sweep SET next_at = next_at - interval '50 seconds'`) // which have passed
		},
		remedy: `give flow.Advance\(\) to the workers`,
		mend:   func(t *testing.T, s *shop) { s.deploy(t, nil, "jobs-1", "jobs-2") },
	},
	{
		name: "a failing flow",
		says: map[source]string{
			byStatus: `queue mail: 1 job has failed for good`, byDoctor: `WARN +failed jobs +mail has 1`, byConsole: `queue mail: 1 job has failed for good`, byAlerts: `JobsFailed mail,charge`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) { s.startFlow(t, "fail") },
		remedy: `or jobs flows retry for a step of a flow; then jobs discard`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Mended = true }, "jobs-1", "jobs-2")
			s.do(t, fmt.Sprintf(`pgfrontier jobs flows retry %d --reason "the bank answers"`, value[int64](t, s.site, `SELECT id FROM jobs_flow_runs WHERE state = 'failed'`)))
			s.do(t, fmt.Sprintf(`pgfrontier jobs discard %d --reason "it was run again" --yes`, value[int64](t, s.site, `SELECT id FROM jobs_history WHERE state = 'failed'`)))
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "jobs-1", "jobs-2")
		},
	},
	{
		name: "poison job",
		says: map[source]string{
			byStatus: `queue mail: 1 job has failed for good`, byDoctor: `WARN +failed jobs +mail has 1`, byConsole: `queue mail: 1 job has failed for good`, byAlerts: `JobsFailed mail,errand`,
		},
		unless: map[source]string{byProbes: aboutOneProcess},
		happen: func(t *testing.T, s *shop) { s.due(t, "mail", "fail") },
		remedy: `jobs list --state failed, then jobs retry.* then jobs discard`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Mended = true }, "jobs-1", "jobs-2")
			id := value[int64](t, s.site, `SELECT id FROM jobs_history WHERE state = 'failed'`)
			s.do(t, fmt.Sprintf(`pgfrontier jobs retry %d --reason "mended"`, id))
			s.do(t, fmt.Sprintf(`pgfrontier jobs discard %d --reason "it was run again" --yes`, id))
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "jobs-1", "jobs-2")
		},
	},
	{
		name: "hanging job",
		says: map[source]string{
			byStatus: `lost 1 of 2 slots of queue mail`, byDoctor: `WARN +job workers +.*lost 1 of 2 slots of queue mail`, byConsole: `lost 1 of 2 slots of queue mail`,
			byAlerts: `JobsLostSlots mail`,
		},
		unless: map[source]string{byProbes: "a worker with free slots is ready"},
		happen: func(t *testing.T, s *shop) { s.due(t, "mail", "hang") },
		remedy: `start these processes again`,
		mend: func(t *testing.T, s *shop) {
			s.deploy(t, func(b *build) { b.Mended = true }, "jobs-1", "jobs-2")
			for _, id := range strings.Fields(value[string](t, s.site, `SELECT coalesce(string_agg(id::text, ' '), '') FROM jobs_history WHERE state = 'failed'`)) {
				s.do(t, `pgfrontier jobs discard `+id+` --reason "it hangs" --yes`)
			}
			s.await(t, "all to be well", s.healthy)
			s.deploy(t, nil, "jobs-1", "jobs-2")
		},
	},
}
