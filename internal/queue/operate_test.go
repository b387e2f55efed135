package queue

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// Operations notify as workers and clients do. They notify of an awaited end of a job, and of a
// due job if a worker asked.
func TestOperationsNotify(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	newJobs, ends, err := s.Channels(ctx, s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := pgx.Connect(ctx, s.d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close(context.Background()) }()
	for _, channel := range []string{newJobs, ends} {
		if _, err := listener.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
			t.Fatal(err)
		}
	}
	notified := func(channel, payload string) {
		t.Helper()
		if n, err := listener.WaitForNotification(ctx); err != nil || n.Channel != channel || n.Payload != payload {
			t.Errorf("told %+v, %v; want %s on %s", n, err, payload, channel)
		}
	}
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a", Delay: time.Hour.Microseconds()})
	s.d.Exec(t, `UPDATE jobs SET awaited = true WHERE id = $1`, ids[1])
	if err := s.CancelAll(ctx, s.d.DB, ids[:2]); err != nil {
		t.Fatal(err)
	}
	notified(ends, "2")
	if err := s.Want(ctx, s.d.DB, "default"); err != nil {
		t.Fatal(err)
	}
	if err := s.MakeDue(ctx, s.d.DB, ids[2]); err != nil {
		t.Fatal(err)
	}
	notified(newJobs, "default")
	if as, err := s.Reenqueue(ctx, s.d.DB, ids[0]); err != nil || as != 4 {
		t.Errorf("again as %d, %v", as, err)
	}
	notified(newJobs, "default")
	if err := s.MakeDue(ctx, s.d.DB, ids[0]); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a job that has finished: %v", err)
	}
	if _, err := s.Reenqueue(ctx, s.d.DB, ids[2]); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a job that has not finished: %v", err)
	}
}

// The retention of a queue takes precedence over that of all queues, and that over the
// worker's.
func TestRetentionPrecedence(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a", Queue: "own"})
	if err := s.CancelAll(t.Context(), s.d.DB, ids); err != nil {
		t.Fatal(err)
	}
	s.d.Exec(t, `UPDATE jobs_history SET finished_at = clock_timestamp() - interval '1 hour'`)
	retain := func(what string, keep time.Duration, want int) {
		t.Helper()
		queues, err := s.Retained(t.Context(), s.d.DB)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, name := range queues {
			ids, _, err := s.Retainable(t.Context(), s.d.DB, name, keep, Finished{}, nil, 1000)
			if err != nil {
				t.Fatal(err)
			}
			n, err := s.Remove(t.Context(), s.d.DB, ids)
			if err != nil || n != len(ids) {
				t.Fatalf("%d of %d were removed, %v", n, len(ids), err)
			}
			sum += n
		}
		if sum != want {
			t.Errorf("%s: %d are removed of %q, want %d", what, sum, queues, want)
		}
	}
	s.d.Exec(t, `INSERT INTO jobs_queues (name, retention) VALUES ('*', interval '1 day')`)
	retain("a day for all queues", time.Minute, 0)
	s.d.Exec(t, `INSERT INTO jobs_queues (name, retention) VALUES ('own', interval '1 minute')`)
	retain("a minute for one", 0, 1)
	s.d.Exec(t, `DELETE FROM jobs_queues`)
	retain("as the worker has it", time.Minute, 1)
}

// Each call continues after the last one. There are more jobs than one call removes, and many
// finished at the same time.
func TestRetainableContinues(t *testing.T) {
	s := newStage(t)
	s.d.Exec(t, `
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, finished_at)
SELECT i, 'a', 'q' || i % 2, 5, at, '{}', at, 1, 0, 0, 5, 'completed', at
FROM (SELECT i, now() - interval '1 hour' + i / 700 * interval '1 minute' AS at FROM generate_series(1, 5000) AS i) AS one`)
	s.d.Exec(t, `UPDATE jobs_history SET finished_at = now() WHERE id > 4990`)
	s.d.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) SELECT id, 1, 'error' FROM jobs_history`)
	queues, err := s.Retained(t.Context(), s.d.DB)
	if err != nil || !slices.Equal(queues, []string{"q0", "q1"}) {
		t.Fatalf("the queues are %q, %v", queues, err)
	}
	for _, name := range queues {
		sum, after := 0, Finished{}
		for {
			ids, last, err := s.Retainable(t.Context(), s.d.DB, name, time.Minute, after, nil, 1000)
			if err != nil || last.At.Before(after.At) {
				t.Fatalf("%d were found up to %v after %v, %v", len(ids), last, after, err)
			}
			if len(ids) == 0 {
				break
			}
			n, err := s.Remove(t.Context(), s.d.DB, ids)
			if err != nil || n != len(ids) {
				t.Fatalf("%d of %d were removed, %v", n, len(ids), err)
			}
			sum, after = sum+n, last
		}
		if sum != 2495 {
			t.Errorf("%d jobs of %s are removed, want 2495", sum, name)
		}
	}
	s.want("what is left", "10 10", `SELECT (SELECT count(*) FROM jobs_history WHERE id > 4990) || ' ' || (SELECT count(*) FROM jobs_attempts)`)
}

// Peek reads no later than asked, and begins after a job, or after a moment if that is later.
func TestPeekInLanes(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a", Priority: 9, Delay: time.Hour.Microseconds()})
	s.d.Exec(t, `UPDATE jobs SET run_at = run_at - interval '10 seconds' WHERE id = $1`, ids[0])
	at, hour, moment := time.Now().Add(-time.Hour), time.Hour.Microseconds(), time.Second.Microseconds()
	for name, test := range map[string]struct {
		first Lane
		ahead time.Duration
		due   bool
		none  bool
	}{
		"from the bottom":               {Lane{Priority: 5}, time.Second, true, false},
		"behind a job before it":        {Lane{Priority: 5, At: &at, ID: 1}, time.Second, true, false},
		"behind a moment before it":     {Lane{Priority: 5, Ago: &hour}, time.Second, true, false},
		"behind a moment after it":      {Lane{Priority: 5, Ago: &moment}, time.Second, false, true},
		"the later one counts":          {Lane{Priority: 5, At: &at, ID: 1, Ago: &moment}, time.Second, false, true},
		"what is due later":             {Lane{Priority: 5, Ago: &moment}, 2 * time.Hour, false, false},
		"only the lanes that are named": {Lane{Priority: 4}, time.Second, false, true},
	} {
		p, err := s.Peek(t.Context(), s.d.DB, "default", []Lane{test.first, {Priority: 9}}, []string{"a"}, test.ahead)
		if err != nil || p.None != test.none || (!p.None && p.Due <= 0) != test.due {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	d := s.demand(1, "a")
	d.Lanes = []Lane{{Priority: 5, At: &at, ID: 1, Ago: &moment}}
	if jobs := s.claim(d); len(jobs) != 0 {
		t.Errorf("a claim behind a moment after it takes %v", idsOf(jobs))
	}
	d = s.demand(1, "a")
	d.Lanes = []Lane{{Priority: 5, At: &at, ID: 1, Ago: &hour}}
	if jobs := s.claim(d); !slices.Equal(idsOf(jobs), ids[:1]) {
		t.Errorf("a claim behind a moment before it takes %v", idsOf(jobs))
	}
}

// A job that is due since '-infinity' is due, and found like other jobs.
func TestPeekOfFarTimes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, at := range []string{"-infinity", "4000-01-01 BC"} {
		s.add(NewJob{Kind: "a"})
		s.d.Exec(t, `UPDATE jobs SET run_at = $1`, at)
		p, err := s.Peek(t.Context(), s.d.DB, "default", []Lane{{Priority: 5}}, []string{"a"}, time.Minute)
		if err != nil || p.None || p.Due > 0 {
			t.Errorf("%s: %+v, %v", at, p, err)
		}
	}
}
