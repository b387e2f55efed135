package ops_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// jobsWorker is a worker of jobs whose statements the test executes.
type jobsWorker struct {
	*queue.Queue
	s     jobsSite
	id    uuid.UUID
	claim int64
}

func newJobsWorker(t testing.TB, s jobsSite) *jobsWorker {
	t.Helper()
	n, err := tables.ParseJobs(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	h := &jobsWorker{queue.New(n), s, uuid.New(), rand.Int64()}
	s.Exec(t, `INSERT INTO jobs_workers (worker_id) VALUES ($1::uuid)`, h.id.String())
	return h
}

// claimJobs claims up to limit jobs within the caps.
func (h *jobsWorker) claimJobs(t testing.TB, name string, limit int) []queue.Job {
	tx, err := h.s.DB.BeginTx(context.Background(), nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = tx.Rollback() }()
	room, caps, err := h.Room(context.Background(), tx, name, limit)
	if err != nil {
		t.Error(err)
		return nil
	}
	h.claim++
	jobs, err := h.Claim(context.Background(), tx, queue.Demand{Worker: h.id, Claim: h.claim, Queue: name, Kinds: []string{"k"}, Caps: caps,
		Lanes: []queue.Lane{{Priority: 5}}, Limit: room, Start: room})
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Error(err)
	}
	return jobs
}

// Settings of an operator apply to the next claim.
func TestOperationsBindClaims(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	h := newJobsWorker(t, s)
	ctx := t.Context()
	s.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', 'q' FROM generate_series(1, 20)`)
	expect := func(what string, limit, want int) {
		t.Helper()
		if jobs := h.claimJobs(t, "q", limit); len(jobs) != want {
			t.Errorf("%s: %d jobs are claimed, want %d", what, len(jobs), want)
		}
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	expect("nothing is set", 2, 2)
	for _, name := range []string{"q", ops.AllQueues} {
		must(s.PauseQueue(ctx, name, by))
		expect("paused "+name, 2, 0)
		must(s.ResumeQueue(ctx, name, by))
		must(s.SetCap(ctx, name, 0, by))
		expect("a cap of none "+name, 2, 0)
		must(s.RemoveCap(ctx, name, by))
	}
	must(s.SetCap(ctx, "q", 5, by))
	expect("a cap of five", 10, 3)
	must(s.SetCap(ctx, ops.AllQueues, 3, by))
	expect("more than the cap runs", 10, 0)
	must(s.RemoveCap(ctx, ops.AllQueues, by), s.RemoveCap(ctx, "q", by))
	expect("no cap", 1, 1)
	if q := s.queue(t, "q"); q.Running != 6 || q.Due != 14 {
		t.Errorf("the queue is %+v", q)
	}
	all, err := s.CancelAll(ctx, ops.JobFilter{Queue: "q"}, 8, by)
	if err != nil || len(all.Asked) != 6 || len(all.Cancelled) != 2 {
		t.Fatalf("cancelled %+v, %v", all, err)
	}
	found, err := h.InFlight(ctx, s.DB, h.id, "q")
	if err != nil || len(found) != 6 || slices.ContainsFunc(found, func(j queue.Job) bool { return !j.Cancel }) {
		t.Errorf("the worker sees %+v, %v", found, err)
	}
}

// settle ends runs as a worker does. It tries locked rows again.
func (h *jobsWorker) settle(t *testing.T, ends []queue.End) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(ends) > 0; {
		settled, err := h.Settle(context.Background(), h.s.DB, ends)
		if err != nil || time.Now().After(deadline) {
			t.Errorf("%+v were not settled: %v", ends, err)
			return
		}
		ends = slices.DeleteFunc(ends, func(e queue.End) bool {
			return slices.ContainsFunc(settled, func(s queue.Settled) bool { return s.ID == e.ID })
		})
		runs := make([]queue.Run, len(ends))
		for i, e := range ends {
			runs[i] = e.Run
		}
		left, err := h.Judge(context.Background(), h.s.DB, runs)
		if err != nil || len(left) != len(ends) || slices.ContainsFunc(left, func(s queue.Settled) bool { return s.State != queue.Running }) {
			t.Errorf("%+v were not settled, and are %v, %v", ends, left, err)
			return
		}
	}
}

// Operators and workers act at once. Each job is in exactly one table, and the table of
// operations has each job that was deleted or created.
func TestOperatorsAmongWorkers(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	const enqueued = 300
	s.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', 'q' FROM generate_series(1, $1)`, enqueued)
	began := time.Now()
	retried := make([]atomic.Int64, 3)
	var discarded atomic.Int64
	over := func() bool { // after a second, and after the events judged below
		lasts, came := time.Since(began), retried[0].Load()+retried[1].Load()+retried[2].Load()
		return lasts > patience || lasts > time.Second && came > 0 && discarded.Load() > 0
	}
	var all sync.WaitGroup
	for range 3 {
		h := newJobsWorker(t, s)
		all.Go(func() {
			for !over() {
				var ends []queue.End
				for _, j := range h.claimJobs(t, "q", 1+rand.IntN(5)) {
					delay := rand.Int64N(20_000)
					to := []queue.State{queue.Completed, queue.Failed, queue.Available}[rand.IntN(3)]
					ends = append(ends, queue.End{Run: j.Run, To: to, Delay: &delay, Counts: true, Outcome: queue.Erred})
				}
				h.settle(t, ends)
			}
		})
	}
	for i := range retried {
		all.Go(func() {
			ctx := context.Background()
			for !over() {
				var err error
				switch id := rand.Int64N(enqueued) + 1; rand.IntN(6) {
				case 0:
					_, err = s.Cancel(ctx, id, by)
				case 1, 2:
					var as int64
					if as, err = s.Retry(ctx, id, by); err == nil && as != id {
						retried[i].Add(1)
					}
				case 3:
					if err = s.Discard(ctx, id, by); err == nil {
						discarded.Add(1)
					}
				case 4:
					_, err = s.CancelAll(ctx, ops.JobFilter{Kind: "k", After: id}, 2, by)
				default:
					if err = s.PauseQueue(ctx, "q", by); err == nil {
						err = s.ResumeQueue(ctx, "q", by)
					}
				}
				var refused *ops.StateError
				if err != nil && !errors.As(err, &refused) && !errors.Is(err, ops.ErrNoJob) && !errors.Is(err, ops.ErrPaused) && !errors.Is(err, ops.ErrNotPaused) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := value[int](t, s, `SELECT count(*) FROM jobs JOIN jobs_history USING (id)`); n > 0 {
		t.Errorf("%d jobs are in both tables", n)
	}
	there := value[int64](t, s, `SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM jobs_history)`)
	gone := value[int64](t, s, `SELECT count(DISTINCT job_id) FROM jobs_operations WHERE operation = 'discard'`)
	came := value[int64](t, s, `SELECT count(DISTINCT detail->>'new_job') FROM jobs_operations WHERE operation = 'retry'`)
	if there != enqueued+came-gone || came != retried[0].Load()+retried[1].Load()+retried[2].Load() || came == 0 || gone == 0 {
		t.Errorf("there are %d jobs of %d, %d have come by retries, %d have gone", there, enqueued, came, gone)
	}
	if n := value[int](t, s, `SELECT count(*) FROM (SELECT job_id FROM jobs_operations WHERE detail ? 'new_job' GROUP BY job_id HAVING count(*) > 1) AS twice`); n > 0 {
		t.Errorf("%d jobs were retried twice", n)
	}
	cancelled := value[int](t, s, `SELECT count(*) FROM jobs_history AS h WHERE state = 'cancelled' AND NOT EXISTS (
		SELECT FROM jobs_operations AS o WHERE operation = 'cancel' AND (o.job_id = h.id OR o.detail->'cancelled' @> to_jsonb(h.id) OR o.detail->'asked_to_end' @> to_jsonb(h.id)))`)
	if cancelled > 0 {
		t.Errorf("%d jobs were cancelled by nobody", cancelled)
	}
}

// Jobs have failed. An operator reads the error, and retries them.
func ExampleJobs_Retry() {
	ctx := context.Background()
	t, drop := pgtest.Example()
	defer drop()
	d := pgtest.Empty(t)
	check(migrations.ApplyJobs(ctx, d.DB, nil))
	// Workers have stored this job.
	d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, code, error)
		VALUES (nextval('jobs_id_seq'), 'welcome', 'mail', 5, now(), '{"UserID": 7}', now(), 15, 15, 0, 5, 'failed', 'SMTP', 'the relay refuses')`)

	o, err := ops.NewJobs(d.DB)
	check(err)
	failed, err := o.List(ctx, ops.JobFilter{States: []jobs.State{jobs.StateFailed}, Queue: "mail"}, 100)
	check(err)
	for _, j := range failed {
		fmt.Printf("%s %s failed %d times: %s\n", j.Kind, j.Args, j.Failures, j.Error)
		as, err := o.Retry(ctx, j.ID, ops.By{Operator: "ann", Reason: "the relay works again"})
		check(err)
		fmt.Println("job", j.ID, "runs again as job", as)
	}
	_, err = o.Retry(ctx, 1, ops.By{Operator: "bob", Reason: "a second click"})
	if !isRetried(err) {
		log.Panic(err)
	}
	// Output:
	// welcome {"UserID": 7} failed 15 times: the relay refuses
	// job 1 runs again as job 2
}
