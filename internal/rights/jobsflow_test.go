package rights_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

var by = ops.By{Operator: "ann", Reason: "a test"}

// check fails the test if an action of a role has failed.
func (d *deployment) check(errs ...error) {
	d.t.Helper()
	for _, err := range errs {
		if err != nil {
			d.t.Error(err)
		}
	}
}

// value returns the result of a call, and checks its error.
func value[T any](d *deployment) func(v T, err error) T {
	return func(v T, err error) T {
		d.t.Helper()
		if err != nil {
			d.t.Error(err)
		}
		return v
	}
}

func (d *deployment) announce(db *sql.DB) {
	d.t.Helper()
	d.check(changes.Notify(d.t.Context(), db, d.names.Changes))
	var count int64
	d.check(db.QueryRowContext(d.t.Context(), `SELECT `+changes.Count(d.names.Changes)).Scan(&count))
}

// enqueue executes every action of clients. An action of one statement of package queue is one
// line.
func (d *deployment) enqueue(db *sql.DB) {
	d.t.Helper()
	ctx, q := d.t.Context(), queue.New(d.names)
	ids := value[[]int64](d)(q.Enqueue(ctx, db, []queue.NewJob{{Kind: "a", UniqueKey: "k"}, {Kind: "a", Queue: "slow"}, {Kind: "b"}}))
	value[int64](d)(q.EnqueueOnce(ctx, db, queue.NewJob{Kind: "a"}, queue.Once{Key: "once", Hash: "h"}))
	value[int64](d)(q.Emit(ctx, db, queue.NewJob{Kind: "a"}, "c", 7, 0))
	value[map[string]int64](d)(q.Owners(ctx, db, []string{"k"}))
	_, _, err := q.OnceOwner(ctx, db, "once")
	value[bool](d)(q.Await(ctx, db, ids[0]))
	value[queue.Found](d)(q.Find(ctx, db, ids[0]))
	value[[]queue.Tally](d)(q.Counts(ctx, pgdriver.NewPool(db)))
	_, _, reported := q.Channels(ctx, db)
	d.check(err, reported)
	value[queue.State](d)(q.Cancel(ctx, db, ids[0]))
	d.Exec(d.t, `UPDATE infra.work SET state = 'running', claim = 1, claimed_by = gen_random_uuid() WHERE id = $1`, ids[1])
	value[queue.State](d)(q.Cancel(ctx, db, ids[1]))
	d.announce(db)
	d.schedule(db)
	d.startRuns(db)
}

type (
	listJob struct{}
	itemJob struct{}
)

func (listJob) Kind() string { return "list" }
func (itemJob) Kind() string { return "item" }

// flowOf returns a flow with a step that makes a list, and a step for its elements.
func flowOf() (f *flow.Flow[int], list *flow.Step[listJob, []itemJob], items *flow.Mapped[itemJob, int]) {
	f = flow.New[int]("f")
	list = flow.Add[[]itemJob](f, "list", func(int) listJob { return listJob{} })
	return f, list, flow.Map[int](f, "items", list)
}

func (d *deployment) flows(db *sql.DB) *flow.Client {
	return flow.NewClient(jobs.NewClient(db, jobs.WithNames(store.Names{Jobs: "infra.work"})))
}

// startRuns executes every action of clients on flows.
func (d *deployment) startRuns(db *sql.DB) {
	d.t.Helper()
	ctx, c := d.t.Context(), d.flows(db)
	f, list, items := flowOf()
	run := value[flow.Started](d)(f.Start(ctx, c, nil, 1, flow.Key("k"))).Run
	value[flow.Started](d)(f.Start(ctx, c, nil, 1, flow.Key("k")))
	value[jobs.State](d)(c.Cancel(ctx, nil, run))
	d.check(c.Retry(ctx, nil, run, "list"))
	value[jobs.State](d)(c.Cancel(ctx, nil, run))
	d.Exec(d.t, `UPDATE infra.work_flow_steps SET state = 'completed' WHERE id >> 30 = $1`, run)
	d.check(c.Retry(ctx, nil, run, "items")) // the step's list is complete, and empty
	value[flow.Run](d)(c.Wait(ctx, run))
	value[[]itemJob](d)(list.Output(ctx, c, run))
	value[[]int](d)(items.Outputs(ctx, c, run))
	value[[]flow.Run](d)(c.Runs(ctx, flow.Filter{Flow: "f", State: jobs.StateRunning}, 10))
}

// advance runs a worker that advances a flow, and removes the flow.
func (d *deployment) advance(db *sql.DB, leased bool) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), pgtest.Patience)
	defer cancel()
	f, list, items := flowOf()
	h := jobs.NewHandlers()
	flow.Handle(h, list, func(context.Context, *jobs.Job[listJob]) ([]itemJob, error) { return make([]itemJob, 2), nil })
	flow.Handle(h, items, func(context.Context, *jobs.Job[itemJob]) (int, error) { return 1, nil })
	leader := jobs.LeaderStrategyAdvisory
	if leased {
		leader = jobs.LeaderStrategyLease
	}
	c := d.flows(d.DB)
	run := value[flow.Started](d)(f.Start(ctx, c, nil, 1)).Run
	w := jobs.NewWorker(db, h, jobs.WithNames(store.Names{Jobs: "infra.work"}), jobs.WithLeaderStrategy(leader), flow.Advance(), jobs.WithRetention(time.Second))
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	value[flow.Run](d)(c.Wait(ctx, run))
	pgtest.PollLasting(func() bool {
		_, err := c.Get(ctx, run)
		return errors.Is(err, flow.ErrNotFound) || ctx.Err() != nil
	})
	cancel()
	d.check(<-done)
}

type tickJob struct{}

func (tickJob) Kind() string { return "tick" }

// often is a schedule with a tick every 10 ms.
type often struct{}

func (often) Next(t time.Time) time.Time { return t.Add(10 * time.Millisecond) }

// schedule runs a schedule for a few ticks, twice: first its row is new, then its times have
// changed.
func (d *deployment) schedule(db *sql.DB) {
	d.t.Helper()
	d.Exec(d.t, `DELETE FROM infra.work_schedules`)
	for range 2 {
		ctx, cancel := context.WithTimeout(d.t.Context(), pgtest.Patience)
		s := schedule.New(db, jobs.NewClient(db, jobs.WithNames(store.Names{Jobs: "infra.work"})),
			schedule.Job("s", often{}, func(time.Time) jobs.Args { return tickJob{} }))
		done := make(chan error, 1)
		go func() { done <- s.Start(ctx) }()
		for ctx.Err() == nil && s.Status()[0].Jobs == 0 && s.Status()[0].Err == nil && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		d.check(<-done, s.Status()[0].Err)
		if s.Status()[0].Jobs == 0 {
			d.t.Error("no tick came")
		}
		d.Exec(d.t, `UPDATE infra.work_schedules SET hash = ''`)
	}
}

// work executes every action of a worker except its coordination.
func (d *deployment) work(db *sql.DB, dead func([]uuid.UUID) (string, []any)) {
	d.t.Helper()
	ctx, q, me := d.t.Context(), queue.New(d.names), uuid.New()
	d.Exec(d.t, `INSERT INTO infra.work_workers (worker_id) VALUES ($1::uuid)`, me.String())
	d.Exec(d.t, `INSERT INTO infra.work (kind) SELECT 'a' FROM generate_series(1, 9)`)
	d.Exec(d.t, `INSERT INTO infra.work (kind, good_until) VALUES ('a', '2000-01-01')`)
	demand := queue.Demand{Worker: me, Claim: 1, Queue: "default", Lanes: []queue.Lane{{Priority: 5}}, Kinds: []string{"a"}, Limit: 5}
	claimed := value[[]queue.Job](d)(q.Claim(ctx, db, demand))
	if len(claimed) != 5 {
		d.t.Fatalf("claimed %v", claimed)
	}
	demand.Condition = "j.id > $8::bigint"
	demand.Condition, demand.Args = "id > $8::bigint", []any{1 << 40}
	value[[]queue.Job](d)(q.Claim(ctx, db, demand))
	demand.Condition, demand.Args = "", nil
	d.Exec(d.t, `INSERT INTO infra.work_queues (name, max_running) VALUES ('default', 9) ON CONFLICT (name) DO UPDATE SET max_running = 9`)
	tx := value[*sql.Tx](d)(db.BeginTx(ctx, nil))
	_, caps, err := q.Room(ctx, tx, "default", 10)
	d.check(err)
	demand.Caps = caps
	demand.Claim, demand.Limit = 2, 1
	value[[]queue.Job](d)(q.Claim(ctx, tx, demand))
	d.check(tx.Commit())
	value[queue.Peek](d)(q.Peek(ctx, db, "default", demand.Lanes, demand.Kinds, time.Second))
	value[[]queue.Job](d)(q.InFlight(ctx, db, me, "default"))
	runs := make([]queue.Run, len(claimed))
	for i, j := range claimed {
		runs[i] = j.Run
	}
	value[[]int64](d)(q.Start(ctx, db, runs))
	d.check(q.Log(ctx, db, claimed[0].ID, 1, json.RawMessage(`{}`)))
	value[[]int64](d)(q.Complete(ctx, db, runs[:1]))
	value[[]queue.Settled](d)(q.Settle(ctx, db, []queue.End{
		{Run: runs[1], To: queue.Completed, Result: json.RawMessage(`1`)}, {Run: runs[2], To: queue.Failed, Code: "E", Error: "boom"},
		{Run: runs[3], To: queue.Available, Counts: true, Outcome: queue.Erred},
	}))
	value[[]queue.Settled](d)(q.Judge(ctx, db, runs))
	d.check(q.Want(ctx, db, "default"))
	value[[]string](d)(q.Unknown(ctx, db, "default", []string{"b"}))
	d.Exec(d.t, `DELETE FROM infra.work_workers WHERE worker_id = $1::uuid`, me.String())
	with, args := dead(value[[]uuid.UUID](d)(q.Claimers(ctx, db)))
	if back, _, err := q.Reset(ctx, db, value[[]int64](d)(q.Lost(ctx, db, nil, 10, with, args...)), with, args...); err != nil || back == 0 {
		d.t.Errorf("%d jobs are reset, %v", back, err)
	}
	value[[]int64](d)(q.Expire(ctx, db, value[[]int64](d)(q.Expirable(ctx, db, nil, 10))))
	for _, name := range value[[]string](d)(q.Retained(ctx, db)) {
		ids, _, err := q.Retainable(ctx, db, name, time.Microsecond, queue.Finished{}, nil, 1000)
		d.check(err)
		value[int](d)(q.Remove(ctx, db, ids))
	}
	value[int](d)(q.Forget(ctx, db, value[[]string](d)(q.Forgettable(ctx, db, nil, 1000))))
	value[int64](d)(q.Raise(ctx, db, events))
	d.check(migrations.CheckJobs(ctx, db, &config))
	d.announce(db)
}

// coordinate runs the coordination of a worker until it leads, and passes on the function that
// judges the dead.
func (d *deployment) coordinate(db *sql.DB, leased bool, then func(dead func([]uuid.UUID) (string, []any))) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), pgtest.Patience)
	defer cancel()
	const database = `(SELECT oid FROM pg_database WHERE datname = current_database())`
	_, err := db.ExecContext(ctx, incarnation.InsertToken(d.names.Token), d.scan(`SELECT oid::bigint::text FROM pg_database WHERE datname = current_database()`), uuid.NewString())
	d.check(err)
	leads := make(chan bool, 10)
	c := coord.New(coord.Config{
		DB: db, ID: uuid.New(), Units: []string{"a"}, Column: "kinds",
		Nodes: d.names.Workers, Stopped: d.names.Stopped, Leader: d.names.Leader, Changes: d.names.Changes, Token: d.names.Token,
		HeartbeatInterval: 100 * time.Millisecond, HeartbeatTimeout: 10 * time.Second, RebalanceInterval: 100 * time.Millisecond,
		Lease: leased, Incarnation: incarnation.Of(d.names.Token, "", "", database), FailedOver: func(string) bool { return false },
		Status: func() ([]byte, error) { return []byte(`{}`), nil },
		OnMembers: func(rows, _ []uuid.UUID) {
			select {
			case leads <- true:
			default:
			}
		},
		OnFailure: func(err error) { d.t.Error(err) },
	})
	d.check(c.Register(ctx))
	done := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { done <- c.Run(run) }()
	for range 3 {
		select {
		case <-leads:
		case <-ctx.Done():
			d.t.Fatal("nobody leads")
		}
	}
	then(func(workers []uuid.UUID) (string, []any) {
		with, args, err := c.DeadSQL(workers, time.Second)
		d.check(err)
		return with, args
	})
	stop()
	<-done
	d.check(c.Leave(ctx, false))
}

// operate executes every change of ops.Jobs.
func (d *deployment) operate(db *sql.DB) {
	d.t.Helper()
	ctx := d.t.Context()
	o := value[*ops.Jobs](d)(ops.NewJobs(db, ops.WithNames(config.Names)))
	d.check(o.PauseQueue(ctx, "q", by), o.ResumeQueue(ctx, "q", by), o.SetCap(ctx, "q", 0, by), o.RemoveCap(ctx, "q", by),
		o.SetRetention(ctx, "q", time.Hour, by), o.RemoveRetention(ctx, "q", by))
	value[ops.Acknowledged](d)(o.Acknowledge(ctx, "q", time.Time{}, by))
	busy := uuid.New()
	d.Exec(d.t, `INSERT INTO infra.work_workers (worker_id) VALUES ($1::uuid)`, busy.String())
	value[[]ops.Worker](d)(o.Workers(ctx))
	value[[]ops.StoppedWorker](d)(o.StoppedWorkers(ctx))
	d.check(o.DrainWorker(ctx, busy, by))
	d.Exec(d.t, `DELETE FROM infra.work_workers WHERE worker_id = $1::uuid`, busy.String())
	add := func() (id int64) {
		d.t.Helper()
		d.check(d.DB.QueryRowContext(ctx, `INSERT INTO infra.work (kind, run_at) VALUES ('op', clock_timestamp() + interval '1 hour') RETURNING id`).Scan(&id))
		return id
	}
	id := add()
	value[int64](d)(o.Retry(ctx, id, by))
	value[jobs.State](d)(o.Cancel(ctx, id, by))
	as := value[int64](d)(o.Retry(ctx, id, by))
	value[int64](d)(o.Rerun(ctx, id, by))
	d.check(o.Discard(ctx, id, by))
	d.Exec(d.t, `UPDATE infra.work SET state = 'running', claim = 1, claimed_by = gen_random_uuid() WHERE id = $1`, as)
	value[ops.CancelledJobs](d)(o.CancelAll(ctx, ops.JobFilter{Kind: "op"}, 10, by))
	d.Exec(d.t, `INSERT INTO infra.work_schedules (name, hash) VALUES ('o', '')`)
	d.check(o.PauseSchedule(ctx, "o", by), o.ResumeSchedule(ctx, "o", by), o.RemoveSchedule(ctx, "o", by))
	run := d.startedRun()
	d.check(o.CancelFlowRun(ctx, run, by), o.RetryFlowRun(ctx, run, by, "list"))
	d.check(o.CancelFlowRun(ctx, run, by), o.RetryFlowRun(ctx, run, by, "list"))
	d.Exec(d.t, `UPDATE infra.work_flow_steps SET state = 'completed', finished_at = now() WHERE id >> 30 = $1`, run)
	d.Exec(d.t, `UPDATE infra.work_flow_runs SET state = 'completed', unfinished = 0, finished_at = now() WHERE id = $1`, run)
	d.check(o.RetryFlowRun(ctx, run, by, "items"))
	d.read(o)
}

// startedRun returns a run that no worker advances.
func (d *deployment) startedRun() int64 {
	d.t.Helper()
	f, _, _ := flowOf()
	return value[flow.Started](d)(f.Start(d.t.Context(), d.flows(d.DB), nil, 1)).Run
}

// read executes every list of ops.Jobs.
func (d *deployment) read(o *ops.Jobs) {
	d.t.Helper()
	ctx := d.t.Context()
	value[[]ops.Job](d)(o.List(ctx, ops.JobFilter{Kind: "op", After: 1, Before: 1 << 40}, 10))
	value[[]jobs.Attempt](d)(o.Attempts(ctx, 1))
	value[[]ops.Queue](d)(o.Queues(ctx))
	value[[]ops.ScheduleInfo](d)(o.Schedules(ctx))
	value[[]string](d)(o.Unserved(ctx))
	value[bool](d)(o.Unadvanced(ctx))
	run := d.startedRun()
	value[flow.Run](d)(o.FlowRun(ctx, run))
	value[[]flow.Run](d)(o.FlowRuns(ctx, flow.Filter{Flow: "f", State: jobs.StateRunning, Before: 1 << 30}, 10))
	value[[]ops.Operation](d)(o.Operations(ctx, ops.OperationFilter{Job: 1, Queue: "q"}, 10))
}

var strategies = map[string]bool{"advisory": false, "lease": true}

// Workers, clients and operators succeed with privileges on only the columns that they need.
// Without any one of these privileges, a statement fails.
func TestJobsPrivilegesOnColumns(t *testing.T) {
	t.Parallel()
	t.Run("client and operator", func(t *testing.T) {
		t.Parallel()
		d := deploy(t)
		d.checkParts(d.role("client"), rights.JobsClient(d.names), d.enqueue)
		d.checkParts(d.role("scheduler"), rights.JobsScheduler(d.names), func(db *sql.DB) {
			d.schedule(db)
			q := queue.New(d.names) // also with jobs.Unique
			value[[]int64](d)(q.Enqueue(t.Context(), db, []queue.NewJob{{Kind: "a", UniqueKey: "k"}}))
			value[map[string]int64](d)(q.Owners(t.Context(), db, []string{"k"}))
		})
		d.checkParts(d.role("operator"), slices.Concat(rights.JobsOperator(d.names), rights.JobsMarks(d.names)), d.operate)
	})
	for name, leased := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deploy(t)
			needs := slices.Concat(rights.JobsWorker(d.names, leased), rights.JobsEmitters(events), rights.JobsFlows(d.names))
			d.checkParts(d.role("worker"), needs, func(db *sql.DB) {
				d.coordinate(db, leased, func(dead func([]uuid.UUID) (string, []any)) { d.work(db, dead) })
				d.advance(db, leased)
			})
		})
	}
}

// A Waiter succeeds with exactly its columns.
func TestWaiterPrivilegesOnColumns(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 1)`)
	d.checkParts(d.role("waiter"), rights.Waiter(events), func(db *sql.DB) {
		w := worker.NewWaiter(db)
		if err := w.WaitFor(t.Context(), "c", 1); err != nil {
			t.Error(err)
		}
		if err := w.WaitFor(t.Context(), "d", 1); !errors.Is(err, worker.ErrNoConsumer) {
			t.Error(err)
		}
	})
}

// Each role succeeds with exactly the privileges of migrations.JobsGrants.
func TestJobsRolesUnderTheirGrants(t *testing.T) {
	t.Parallel()
	for name, leased := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := deploy(t)
			d.Exec(t, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
			roles := migrations.JobsRoles{Client: d.role("client"), Worker: d.role("worker"), Operator: d.role("operator"), Reader: d.role("reader")}
			text, err := migrations.JobsGrants(&config, roles)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := d.OpenPQ(t).ExecContext(t.Context(), text); err != nil {
					t.Fatalf("%v in\n%s", err, text)
				}
			}
			client, worker, operator, reader := d.open(roles.Client), d.open(roles.Worker), d.open(roles.Operator), d.open(roles.Reader)
			d.enqueue(client)
			d.operate(operator)
			d.coordinate(worker, leased, func(dead func([]uuid.UUID) (string, []any)) { d.work(worker, dead) })
			d.advance(worker, leased)
			o := value[*ops.Jobs](d)(ops.NewJobs(reader, ops.WithNames(config.Names)))
			d.read(o)
			d.check(migrations.CheckJobs(t.Context(), reader, &config))
			d.noneDenied()
			if err := o.PauseQueue(t.Context(), "q", by); err == nil {
				t.Error("a reader pauses a queue")
			}
			d.mayNot(client, `DELETE FROM infra.work_history`, `UPDATE infra.work_history SET state = 'failed'`, `UPDATE infra.work_queues SET max_running = 1`, `SELECT * FROM infra.work_operations`, `CREATE TABLE infra.mine ()`)
			d.mayNot(worker, `INSERT INTO infra.work_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`, `UPDATE infra.work_history SET state = 'failed'`, `SELECT * FROM infra.work_operations`, `UPDATE infra.work_schema SET version = 9`,
				`UPDATE consumer_checkpoints SET last_position = 0`, `CREATE TABLE infra.mine ()`)
			d.mayNot(operator, `UPDATE infra.work_history SET state = 'failed'`, `DELETE FROM infra.work_operations`, `UPDATE infra.work_operations SET operator = ''`, `DELETE FROM infra.work_queues`,
				`UPDATE infra.work_workers SET heartbeat_at = now()`, `INSERT INTO infra.work_attempts VALUES (1, 1)`)
			d.mayNot(reader, `UPDATE infra.work SET priority = 1`, `DELETE FROM infra.work_history`, `INSERT INTO infra.work (kind) VALUES ('a')`)
		})
	}
}

// A worker that advances flows names its role's missing privileges. With these it succeeds.
func TestAdvanceNamesMissingPrivileges(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	login := d.role("worker")
	db := d.open(login)
	for _, needs := range [][]rights.Need{rights.JobsWorker(d.names, false), rights.JobsEmitters(events)} {
		for _, statement := range value[[]string](d)(rights.Missing(t.Context(), db, needs)) {
			d.Exec(t, statement)
		}
	}
	h := jobs.NewHandlers()
	jobs.Register(h, func(context.Context, *jobs.Job[listJob]) error { return nil })
	err := jobs.NewWorker(db, h, jobs.WithNames(store.Names{Jobs: "infra.work"}), flow.Advance()).Start(t.Context())
	if !errors.Is(err, jobs.ErrPrivileges) {
		t.Fatalf("Start: %v", err)
	}
	_, grants, _ := strings.Cut(err.Error(), jobs.ErrPrivileges.Error()+": ")
	for statement := range strings.SplitSeq(grants, "; ") {
		d.Exec(t, statement)
	}
	d.advance(db, false)
	d.noneDenied()
}

// A Scheduler refuses the role of a worker, and names the missing privileges. With these it
// succeeds.
func TestSchedulerNamesMissingPrivileges(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.Exec(t, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	login := d.role("worker")
	text, err := migrations.JobsGrants(&config, migrations.JobsRoles{Worker: login})
	if err != nil {
		t.Fatal(err)
	}
	d.Exec(t, text)
	db := d.open(login)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience) // a Scheduler that starts would run
	defer cancel()
	err = schedule.New(db, jobs.NewClient(db, jobs.WithNames(store.Names{Jobs: "infra.work"})),
		schedule.Job("s", often{}, func(time.Time) jobs.Args { return tickJob{} })).Start(ctx)
	if !errors.Is(err, jobs.ErrPrivileges) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "ON infra.work_schedules TO "+ident.Quote(login)) {
		t.Fatalf("Start: %v", err)
	}
	d.noneDenied() // it has tried no statement without the privilege
	_, grants, _ := strings.Cut(err.Error(), jobs.ErrPrivileges.Error()+": ")
	for statement := range strings.SplitSeq(grants, "; ") {
		d.Exec(t, statement)
	}
	d.schedule(db)
	d.noneDenied()
}

// Missing finds tables in a schema that the role may not use.
func TestMissingOfJobs(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	login := d.role("stranger")
	needs := rights.JobsClient(d.names)
	missing := value[[]string](d)(rights.Missing(t.Context(), d.open(login), needs))
	if len(missing) < 9 || missing[0] != `GRANT USAGE ON SCHEMA infra TO `+ident.Quote(login) {
		t.Errorf("missing: %q", missing)
	}
	for _, statement := range missing {
		d.Exec(t, statement)
	}
	if missing := value[[]string](d)(rights.Missing(t.Context(), d.open(login), needs)); len(missing) > 0 {
		t.Errorf("still missing: %q", missing)
	}
}
