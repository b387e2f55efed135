package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// List shows every column of a job, and zero values for a job without optional columns.
func TestListShowsJobs(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.Exec(t, `INSERT INTO jobs (kind) VALUES ('bare')`)
	bare := s.list(t, ops.JobFilter{}, 10)[0]
	if bare.ID == 0 || bare.Kind != "bare" || bare.Queue != "default" || bare.State != jobs.StateAvailable || bare.Priority != 5 || string(bare.Args) != `{}` || bare.RunAt.IsZero() || bare.CreatedAt.IsZero() ||
		bare.GoodUntil != nil || bare.Meta != nil || bare.UniqueKey != "" || bare.Worker != uuid.Nil || bare.StartedAt != nil || bare.CancelAt != nil || bare.FinishedAt != nil || bare.Code+bare.Error != "" || bare.Result != nil {
		t.Errorf("the bare one is %+v", bare)
	}
	id := s.add(t, jobs.StateRunning)
	s.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome, code, error) VALUES ($1, 1, 'error', 'E1', 'first'), ($1, 2, 'lost', 'WORKER_LOST', NULL), ($1, 3, 'error', 'E3', 'third'), ($1, 4, 'snoozed', NULL, NULL)`, id)
	j := s.list(t, ops.JobFilter{}, 10)[0]
	if j.ID != id || j.State != jobs.StateRunning || j.Attempt != 4 || j.Failures != 2 || j.Resets != 1 || j.MaxAttempts != 6 || j.MaxResets != 3 || j.Priority != 3 || string(j.Meta) != `{"by": "me"}` ||
		j.UniqueKey == "" || j.GoodUntil == nil || j.StartedAt == nil || j.Worker.String()[:8] != "12345678" || j.Code != "E3" || j.Error != "third" || j.FinishedAt != nil {
		t.Errorf("the running one is %+v", j)
	}
	attempts, err := s.Attempts(t.Context(), id)
	if err != nil || len(attempts) != 4 || attempts[0].Error != "first" || attempts[1].Outcome != "lost" || attempts[3].Number != 4 || attempts[3].Worker != uuid.Nil || attempts[3].StartedAt != nil || attempts[3].EndedAt.IsZero() {
		t.Errorf("its attempts are %+v, %v", attempts, err)
	}
	s.Exec(t, `UPDATE jobs SET run_at = 'infinity', good_until = 'infinity' WHERE id = $1`, id)
	if j := s.list(t, ops.JobFilter{}, 10)[0]; !j.RunAt.IsZero() || j.GoodUntil != nil {
		t.Errorf("of one that is never due, and never over: %v, %v", j.RunAt, j.GoodUntil)
	}
	id = s.add(t, jobs.StateFailed)
	j = s.list(t, ops.JobFilter{}, 10)[0]
	if j.ID != id || j.State != jobs.StateFailed || j.Code != "E7" || j.Error != "boom" || string(j.Result) != `{"n": 1}` || j.FinishedAt == nil || time.Since(*j.FinishedAt) > time.Hour {
		t.Errorf("the failed one is %+v", j)
	}
}

// The pages of List contain each job of a filter once.
func TestListFilters(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	all := append(slices.Clone(unfinished), finished...)
	for i := range 40 {
		id := value[int64](t, s, `INSERT INTO jobs (kind, queue) VALUES ($1, $2) RETURNING id`, fmt.Sprint("k", i%3), fmt.Sprint("q", i%2))
		s.put(t, id, all[i%len(all)])
	}
	stored := s.list(t, ops.JobFilter{}, 100)
	if len(stored) != 40 || !slices.IsSortedFunc(stored, func(a, b ops.Job) int { return int(b.ID - a.ID) }) {
		t.Fatalf("%d jobs", len(stored))
	}
	for _, states := range [][]jobs.State{nil, {jobs.StateFailed}, {jobs.StateRunning, jobs.StateRunning}, {jobs.StateCompleted, jobs.StateAvailable}, all} {
		for _, f := range []ops.JobFilter{{}, {Kind: "k1"}, {Queue: "q1"}, {Kind: "k2", Queue: "q0"}, {After: 10, Before: 31}, {After: 39}, {Kind: "none"}} {
			f.States = states
			var want, got []int64
			for _, j := range stored {
				if (len(states) == 0 || slices.Contains(states, j.State)) && (f.Kind == "" || f.Kind == j.Kind) && (f.Queue == "" || f.Queue == j.Queue) && j.ID > f.After && (f.Before == 0 || j.ID < f.Before) {
					want = append(want, j.ID)
				}
			}
			for {
				page := s.list(t, f, 3)
				if len(page) == 0 {
					break
				}
				for _, j := range page {
					got = append(got, j.ID)
				}
				f.Before = page[len(page)-1].ID
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %v, want %v", f, got, want)
			}
		}
	}
	for name, f := range map[string]ops.JobFilter{
		`the state "done" is not one of ["available"`: {States: []jobs.State{"done"}},
		`no job is in queue "*"`:                      {Queue: "*"},
		"the kind":                                    {Kind: "\x00"},
		"After is -1 and Before 0":                    {After: -1},
	} {
		_, err := s.List(t.Context(), f, 10)
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
		says(t, err, "ops: list the jobs: ", name)
	}
	for _, limit := range []int{0, 10_001} {
		_, err := s.List(t.Context(), ops.JobFilter{}, limit)
		says(t, err, fmt.Sprintf("limit is %d, allowed is 1 to 10000", limit))
		_, err = s.Operations(t.Context(), ops.OperationFilter{}, limit)
		says(t, err, fmt.Sprintf("limit is %d, allowed is 1 to 10000", limit))
	}
}

func TestOperationsOfJobs(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	for _, q := range []string{"a", "b", ops.AllQueues} {
		if err := errors.Join(s.PauseQueue(ctx, q, by), s.ResumeQueue(ctx, q, by)); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(t, `INSERT INTO jobs_operations (operation, operator, reason) VALUES ('cancel', 'hand', 'made')`) // optional columns are NULL
	for _, c := range []struct {
		f     ops.OperationFilter
		limit int
		want  string
	}{
		{ops.OperationFilter{}, 3, "7: cancel  6: resume * 5: pause *"},
		{ops.OperationFilter{Before: 5}, 2, "4: resume b 3: pause b"},
		{ops.OperationFilter{Queue: "a"}, 10, "2: resume a 1: pause a"},
		{ops.OperationFilter{Queue: ops.AllQueues}, 1, "6: resume *"},
		{ops.OperationFilter{Job: 7}, 1, ""},
	} {
		all, err := s.Operations(ctx, c.f, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, op := range all {
			got = append(got, fmt.Sprintf("%d: %s %s", op.ID, op.Kind, op.Queue))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q, want %q", c.f, got, c.want)
		}
	}
}

// Among 100,000 jobs, lists read little more than they return. This holds for jobs of a rare
// state also with the statistics of empty tables.
func TestPlansOfLists(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	for _, table := range []string{"jobs", "jobs_history"} {
		s.Exec(t, `ALTER TABLE `+table+` SET (autovacuum_enabled = false)`)
		s.Exec(t, `ANALYZE `+table)
	}
	s.Exec(t, `INSERT INTO jobs (kind, queue, priority, state, claim, claimed_by)
		SELECT 'k' || i % 7, 'q' || i % 5, 1 + i % 9, CASE WHEN i <= 200 THEN 'running' ELSE 'available' END,
			CASE WHEN i <= 200 THEN i END, CASE WHEN i <= 200 THEN gen_random_uuid() END FROM generate_series(1, 100000) AS i`)
	s.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_attempts, max_resets, state)
		SELECT -i, 'k' || i % 7, 'q' || i % 5, 5, now(), '{}', now(), 1, 0, 0, 15, 5,
			CASE WHEN i > 99900 THEN 'expired' WHEN i > 99700 THEN 'failed' ELSE 'completed' END FROM generate_series(1, 100000) AS i`)
	for _, statistics := range []string{"of empty tables", "of today"} {
		if statistics == "of today" {
			s.Exec(t, `ANALYZE jobs, jobs_history`)
		}
		for name, c := range map[string]struct {
			f    ops.JobFilter
			most float64
			rare bool
		}{
			"all":               {ops.JobFilter{}, 250, true},
			"a page":            {ops.JobFilter{Before: 50_000}, 250, true},
			"ids":               {ops.JobFilter{After: 500, Before: 700}, 450, true},
			"available":         {ops.JobFilter{States: []jobs.State{jobs.StateAvailable}}, 250, false},
			"running":           {ops.JobFilter{States: []jobs.State{jobs.StateRunning}}, 500, true},
			"failed":            {ops.JobFilter{States: []jobs.State{jobs.StateFailed}}, 1000, true},
			"expired":           {ops.JobFilter{States: []jobs.State{jobs.StateExpired}}, 1000, true},
			"completed":         {ops.JobFilter{States: []jobs.State{jobs.StateCompleted}}, 500, false},
			"a queue":           {ops.JobFilter{Queue: "q1"}, 1500, false},
			"failed of a queue": {ops.JobFilter{Queue: "q1", States: []jobs.State{jobs.StateFailed}}, 250, true},
			"a kind":            {ops.JobFilter{Kind: "k1"}, 2000, false},
		} {
			if !c.rare && statistics == "of empty tables" {
				continue
			}
			query, args := s.ListSQL(c.f, 100)
			conn, err := s.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			values := make([]string, len(args))
			for i, a := range args {
				values[i] = fmt.Sprintf("'%v'", a)
			}
			plan, text := pgtest.Explain(t, conn, "auto", query, `(`+strings.Join(values, ", ")+`)`)
			if n := plan.Visited(); n > c.most {
				t.Errorf("with the statistics %s, %s reads %.0f rows, at most %.0f are expected:\n%s", statistics, name, n, c.most, text)
			}
			_ = conn.Close()
		}
		conn, err := s.DB.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		plan, text := pgtest.Explain(t, conn, "force_generic_plan", s.QueuesSQL(), ``)
		if n := plan.Visited(); n > 100_000 || seqScans(plan) {
			t.Errorf("with the statistics %s, the queues read %.0f rows:\n%s", statistics, n, text)
		}
		_ = conn.Close()
	}
}

// Operations finds the operations on one job, and the retry that created it, through indexes.
func TestPlansOfOperations(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.Exec(t, `ALTER TABLE jobs_operations SET (autovacuum_enabled = false)`)
	s.Exec(t, `ANALYZE jobs_operations`)
	s.Exec(t, `INSERT INTO jobs_operations (job_id, operation, detail, operator, reason)
		SELECT i, CASE WHEN i % 2 = 0 THEN 'retry' ELSE 'cancel' END, CASE WHEN i % 2 = 0 THEN jsonb_build_object('new_job', 1000000 + i) ELSE '{}' END, 'ann', 'r' FROM generate_series(1, $1::int) AS i`, tier.Amount(20_000, 100_000))
	all, err := s.Operations(t.Context(), ops.OperationFilter{Job: 1_000_002}, 10)
	if err != nil || len(all) != 1 || all[0].Job != 2 {
		t.Errorf("the retry that has made job 1000002: %+v, %v", all, err)
	}
	query, _ := s.OperationsSQL(ops.OperationFilter{Job: 1}, 10)
	for _, statistics := range []string{"of empty tables", "of today"} {
		if statistics == "of today" {
			s.Exec(t, `ANALYZE jobs_operations`)
		}
		for _, job := range []string{"2", "1000002", "0"} {
			conn, err := s.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			plan, text := pgtest.Explain(t, conn, "force_generic_plan", query, `(9223372036854775807, `+job+`, 10)`)
			if n := plan.Visited(); n > 20 {
				t.Errorf("with the statistics %s, the operations on job %s read %.0f rows:\n%s", statistics, job, n, text)
			}
			_ = conn.Close()
		}
	}
}

// seqScans reports whether a plan scans a large table sequentially.
func seqScans(plan pgtest.Plan) (found bool) {
	plan.Walk(func(p pgtest.Plan) {
		found = found || p.Type == "Seq Scan" && p.Rows+p.Removed > 1000
	})
	return found
}
