package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// jobsOperation is an operation, and the state that a job must have for it. The state is empty
// for an operation on a queue.
type jobsOperation struct {
	kind ops.Kind
	in   jobs.State
	do   func(ctx context.Context, o *ops.Jobs, job int64, queue string, by ops.By) error
}

// everyJobs is every operation of Jobs.
var everyJobs = map[string]jobsOperation{
	"pause": {ops.KindPause, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.PauseQueue(ctx, q, by)
	}},
	"resume": {ops.KindResume, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.ResumeQueue(ctx, q, by)
	}},
	"cap": {ops.KindCap, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.SetCap(ctx, q, 3, by)
	}},
	"no cap": {ops.KindCap, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.RemoveCap(ctx, q, by)
	}},
	"retention": {ops.KindRetention, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.SetRetention(ctx, q, time.Hour, by)
	}},
	"no retention": {ops.KindRetention, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		return o.RemoveRetention(ctx, q, by)
	}},
	"cancel": {ops.KindCancel, jobs.StateAvailable, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		_, err := o.Cancel(ctx, id, by)
		return err
	}},
	"ask to end": {ops.KindCancel, jobs.StateRunning, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		_, err := o.Cancel(ctx, id, by)
		return err
	}},
	"retry": {ops.KindRetry, jobs.StateFailed, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		_, err := o.Retry(ctx, id, by)
		return err
	}},
	"rerun": {ops.KindRerun, jobs.StateCompleted, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		_, err := o.Rerun(ctx, id, by)
		return err
	}},
	"discard": {ops.KindDiscard, jobs.StateFailed, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		return o.Discard(ctx, id, by)
	}},
	"acknowledge": {ops.KindAcknowledge, "", func(ctx context.Context, o *ops.Jobs, _ int64, q string, by ops.By) error {
		_, err := o.Acknowledge(ctx, q, time.Time{}, by)
		return err
	}},
	"cancel all": {ops.KindCancel, jobs.StateAvailable, func(ctx context.Context, o *ops.Jobs, id int64, _ string, by ops.By) error {
		_, err := o.CancelAll(ctx, ops.JobFilter{After: max(id-1, 0), Before: max(id+1, 1)}, 10, by)
		return err
	}},
}

// ready creates a queue, and a job that allows the operation.
func (s jobsSite) ready(t testing.TB, name string) (id int64) {
	t.Helper()
	if name == "resume" || name == "no cap" || name == "no retention" {
		s.Exec(t, `INSERT INTO jobs_queues VALUES ('slow', 7, clock_timestamp(), 'bob', 'lunch', interval '1 day')`)
	}
	if in := everyJobs[name].in; in != "" {
		id = s.add(t, in)
	}
	return id
}

// Every operation is recorded with operator, reason and time, and notifies the workers.
func TestEveryJobsOperationIsAudited(t *testing.T) {
	t.Parallel()
	for name, op := range everyJobs {
		t.Run(name, func(t *testing.T) {
			s := newJobsSite(t)
			id := s.ready(t, name)
			channel, err := changes.Channel(t.Context(), s.DB, ident.Table{Name: "jobs_changes"})
			if err != nil {
				t.Fatal(err)
			}
			listener, err := pgx.Connect(t.Context(), s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close(context.Background()) }()
			if _, err := listener.Exec(t.Context(), "LISTEN "+ident.Quote(channel)); err != nil {
				t.Fatal(err)
			}
			if err := op.do(t.Context(), s.Jobs, id, "slow", by); err != nil {
				t.Fatal(err)
			}
			var detail map[string]any
			got := s.last(t, &detail)
			if age := time.Since(got.At); got.Kind != op.kind || got.By != by || age < 0 || age > time.Hour {
				t.Errorf("recorded %+v, %v", got, detail)
			}
			if name != "cancel all" && (got.Job != id || got.Queue != "slow") {
				t.Errorf("recorded %+v, want it of job %d in queue slow", got, id)
			}
			if n := value[int64](t, s, `SELECT count FROM jobs_changes`); n != 1 {
				t.Errorf("the counter of changes is %d, want 1", n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := listener.WaitForNotification(ctx); err != nil {
				t.Errorf("awaited a notification on %s: %v", channel, err)
			}
		})
	}
}

// A refused operation changes and records nothing.
func TestEveryJobsOperationRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	id := s.add(t, jobs.StateAvailable)
	for name, c := range map[string]struct {
		id    int64
		queue string
		by    ops.By
		want  error
		says  string
		queues,
		jobs bool
	}{
		"no operator":     {id, "slow", ops.By{Reason: "why"}, ops.ErrInvalid, "By.Operator is empty", true, true},
		"a long reason":   {id, "slow", ops.By{Operator: "ann", Reason: strings.Repeat("x", 2001)}, ops.ErrInvalid, "By.Reason has 2001 bytes, at most 2000", true, true},
		"no queue":        {id, "", by, ops.ErrInvalid, "the queue's name is empty", true, false},
		"a long queue":    {id, strings.Repeat("q", 1001), by, ops.ErrInvalid, "the queue's name has 1001 bytes", true, false},
		"a NUL":           {id, "a\x00b", by, ops.ErrInvalid, `the queue's name "a\x00b"`, true, false},
		"no job":          {0, "slow", by, ops.ErrInvalid, "the job's ID is 0", false, true},
		"an unknown job":  {id + 9, "slow", by, ops.ErrNoJob, fmt.Sprintf("of job %d: there is no such job: List lists", id+9), false, true},
		"the largest one": {1<<63 - 2, "slow", by, ops.ErrNoJob, "there is no such job", false, true},
	} {
		for kind, op := range everyJobs {
			if op.in == "" && !c.queues || op.in != "" && !c.jobs || kind == "cancel all" && errors.Is(c.want, ops.ErrNoJob) || kind == "cancel all" && c.id == 0 {
				continue
			}
			err := op.do(t.Context(), s.Jobs, c.id, c.queue, c.by)
			if !errors.Is(err, c.want) {
				t.Errorf("%s with %s: %v", kind, name, err)
			}
			says(t, err, c.says, fmt.Sprintf("ops: %s of ", op.kind))
		}
	}
	if n := s.traces(t); n > 0 || s.is(t, id) != jobs.StateAvailable || value[int](t, s, `SELECT count(*) FROM jobs_queues`) > 0 {
		t.Errorf("%d traces of refused operations", n)
	}
}

func TestNewJobsRefusesInvalidNames(t *testing.T) {
	t.Parallel()
	_, err := ops.NewJobs(nil)
	says(t, err, "db is nil")
	_, err = ops.NewJobs(pgtest.Empty(t).DB, ops.WithNames(store.Names{Jobs: "a b"}))
	says(t, err, "Names.Jobs", `"a b"`)
}

func TestJobsWithOtherTableNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	names := store.Names{Jobs: "infra.work"}
	o, err := ops.NewJobs(d.DB, ops.WithNames(names))
	if err != nil {
		t.Fatal(err)
	}
	_, err = o.Queues(t.Context())
	for _, err := range []error{err, o.PauseQueue(t.Context(), "q", by)} {
		if !errors.Is(err, migrations.ErrNotApplied) {
			t.Errorf("without tables: %v", err)
		}
		says(t, err, "infra.work", "migrations.ApplyJobs")
	}
	if err := migrations.ApplyJobs(t.Context(), d.DB, &migrations.Config{Names: names}); err != nil {
		t.Fatal(err)
	}
	if err := o.PauseQueue(t.Context(), "q", by); err != nil {
		t.Error(err)
	}
	if all, err := o.Operations(t.Context(), ops.OperationFilter{Queue: "q"}, 10); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// Each operation and list works with each driver and exec mode.
func TestJobsDrivers(t *testing.T) {
	t.Parallel()
	pools := map[string]func(jobsSite) *sql.DB{"lib/pq": func(s jobsSite) *sql.DB { return s.OpenPQ(t) }}
	for _, mode := range pgtest.Modes() {
		pools["pgx "+mode.String()] = func(s jobsSite) *sql.DB { return s.OpenMode(t, mode) }
	}
	for name, open := range pools {
		t.Run(name, func(t *testing.T) {
			s := newJobsSite(t)
			db := open(s)
			db.SetMaxOpenConns(1) // an operation needs no second connection
			o := jobsOperator(t, db)
			for name, op := range everyJobs {
				id := s.ready(t, name)
				if err := op.do(t.Context(), o, id, "slow", by); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				s.Exec(t, `TRUNCATE jobs_queues`)
			}
			s.add(t, jobs.StateRunning)
			if err := o.SetRetention(t.Context(), "slow", ops.Forever, by); err != nil {
				t.Error(err)
			}
			queues, err := o.Queues(t.Context())
			if err != nil || len(queues) != 2 || *queues[1].Retention != ops.Forever || queues[1].Running < 1 {
				t.Errorf("%+v, %v", queues, err)
			}
			all, err := o.List(t.Context(), ops.JobFilter{Queue: "slow", Kind: "mail", After: 1}, 100)
			if err != nil || len(all) < 5 || string(all[0].Args) != `{"to": 7}` || all[0].Worker.String()[:8] != "12345678" {
				t.Errorf("%+v, %v", all, err)
			}
			s.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) VALUES (7, 1, 'released')`)
			if attempts, err := o.Attempts(t.Context(), 7); err != nil || len(attempts) != 1 {
				t.Errorf("%+v, %v", attempts, err)
			}
			if operations, err := o.Operations(t.Context(), ops.OperationFilter{Queue: "slow"}, 100); err != nil || len(operations) != len(everyJobs) {
				t.Errorf("%d operations, %v", len(operations), err)
			}
		})
	}
}

// When the answer to COMMIT is lost, the error names the outcome as unknown, and where to
// check.
func TestUnknownOutcomeOfAJobsOperation(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	config, err := pgx.ParseConfig(s.URL)
	if err != nil {
		t.Fatal("the connection string")
	}
	var after atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &cutConn{Conn: c, after: &after}, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	o := jobsOperator(t, db)
	for _, happened := range []bool{false, true} {
		after.Store(happened)
		id := s.add(t, jobs.StateFailed)
		as, err := o.Retry(t.Context(), id, by)
		var unknown *ops.UnknownOutcomeError
		if !errors.As(err, &unknown) || as != 0 {
			t.Fatalf("the answer to COMMIT was lost: %d, %v", as, err)
		}
		await(t, "the server to have ended the transaction", func() bool {
			return value[int](t, s, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND relation = 'jobs_operations'::regclass`) == 0
		})
		all, err := s.Operations(t.Context(), ops.OperationFilter{Job: id}, 10)
		if found := len(all) == 1 && all[0].ID == unknown.Operation; err != nil || found != happened {
			t.Errorf("COMMIT happened: %v; Operations has %+v, %v", happened, all, err)
		}
	}
}

// An operation waits for the holder of its row until its context ends. The server ends an idle
// operation.
func TestJobsOperationsWait(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	id := s.add(t, jobs.StateAvailable)
	s.Exec(t, `INSERT INTO jobs_queues (name) VALUES ('slow')`)
	other, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	for _, lock := range []string{`SELECT FROM jobs FOR UPDATE`, `SELECT FROM jobs_queues FOR NO KEY UPDATE`} {
		if _, err := other.Exec(lock); err != nil {
			t.Fatal(err)
		}
	}
	for name, do := range map[string]func(ctx context.Context) error{
		`"slow": gave up waiting for its row in jobs_queues`: func(ctx context.Context) error { return s.PauseQueue(ctx, "slow", by) },
		"gave up waiting for its row in jobs": func(ctx context.Context) error {
			_, err := s.Cancel(ctx, id, by)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		says(t, do(ctx), name, "allow more time")
		cancel()
	}
	if all, err := s.CancelAll(t.Context(), ops.JobFilter{Queue: "slow"}, 10, by); err != nil || len(all.Cancelled) != 0 {
		t.Errorf("what somebody else holds is not passed over: %+v, %v", all, err)
	}
	end(t, other.Rollback)
	s.Exec(t, `CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.reason := current_setting('idle_in_transaction_session_timeout'); RETURN NEW; END $$`)
	s.Exec(t, `CREATE TRIGGER spy BEFORE INSERT ON jobs_operations FOR EACH ROW EXECUTE FUNCTION spy()`)
	if _, err := s.Cancel(t.Context(), id, by); err != nil {
		t.Fatal(err)
	}
	var detail map[string]any
	if got := s.last(t, &detail).By.Reason; got != "15s" {
		t.Errorf("within an operation, idle_in_transaction_session_timeout is %s, want 15s", got)
	}
}
