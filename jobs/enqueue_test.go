package jobs_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
)

// A unique key is free once its job has ended. With UniqueUntilStart the key is free once the job
// runs.
func TestUnique(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
		s.note("runs")
		<-release
		return nil
	})
	enqueue := func(o jobs.EnqueueOption) jobs.Enqueued {
		t.Helper()
		e, err := s.Enqueue(t.Context(), nil, task{}, o)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	until, start := enqueue(jobs.Unique("a")), enqueue(jobs.UniqueUntilStart("b"))
	for _, c := range []struct {
		option jobs.EnqueueOption
		first  jobs.Enqueued
	}{{jobs.Unique("a"), until}, {jobs.UniqueUntilStart("b"), start}} {
		if again := enqueue(c.option); !again.Existing || again.ID != c.first.ID {
			t.Errorf("again it is %+v, first it was %+v", again, c.first)
		}
	}
	s.run()
	s.until("both to run", func() bool { return len(s.notes()) == 2 })
	if again := enqueue(jobs.Unique("a")); !again.Existing {
		t.Errorf("while it runs, the key is taken: %+v", again)
	}
	if again := enqueue(jobs.UniqueUntilStart("b")); again.Existing || again.ID == start.ID {
		t.Errorf("once it runs, the key is free: %+v", again)
	}
	close(release)
	s.ended(until.ID)
	if again := enqueue(jobs.Unique("a")); again.Existing {
		t.Errorf("after its end the key is free: %+v", again)
	}
	all, err := s.EnqueueMany(t.Context(), nil, []jobs.EnqueueParams{
		{Args: task{1}, Options: []jobs.EnqueueOption{jobs.Unique("c"), jobs.In(time.Hour)}}, {Args: task{2}}, {Args: task{3}, Options: []jobs.EnqueueOption{jobs.Unique("c")}},
	})
	if err != nil || all[0].Existing || all[1].Existing || !all[2].Existing || all[2].ID != all[0].ID {
		t.Errorf("of one list: %+v, %v", all, err)
	}
}

// many returns parameters under one key of Once. The first arguments name the key.
func many(all ...task) (entries []jobs.EnqueueParams) {
	for _, a := range all {
		entries = append(entries, jobs.EnqueueParams{Args: a, Options: []jobs.EnqueueOption{jobs.Once(fmt.Sprint("many ", all[0].N), 0)}})
	}
	return entries
}

// A key of Once has one job, whatever the outcome of the job. Other arguments are an error.
func TestOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	first := s.add(task{1}, jobs.Once("k", 0))
	s.run()
	s.ended(first)
	if e, err := s.Enqueue(t.Context(), nil, task{1}, jobs.Once("k", 0)); err != nil || !e.Existing || e.ID != first {
		t.Errorf("again: %+v, %v", e, err)
	}
	if _, err := s.Enqueue(t.Context(), nil, task{2}, jobs.Once("k", 0)); !errors.Is(err, jobs.ErrKeyReused) || !strings.Contains(err.Error(), fmt.Sprintf("job %d", first)) {
		t.Errorf("with other arguments: %v", err)
	}
	if all, err := s.EnqueueMany(t.Context(), nil, many(task{1}, task{1})); err != nil || all[0].Existing || !all[1].Existing || all[1].ID != all[0].ID {
		t.Errorf("twice in one call: %+v, %v", all, err)
	}
	// The job of the first entry would be rolled back, so the error must not name the job.
	if _, err := s.EnqueueMany(t.Context(), nil, many(task{3}, task{4})); !errors.Is(err, jobs.ErrKeyReused) || !strings.Contains(err.Error(), ": entries 0 and 1 of this call differ") {
		t.Errorf("with other arguments in one call: %v", err)
	}
	brief := s.add(task{1}, jobs.Once("brief", time.Microsecond))
	s.ended(brief)
	if e, err := s.Enqueue(t.Context(), nil, task{2}, jobs.Once("brief", time.Hour)); err != nil || e.Existing {
		t.Errorf("after its time the key is free: %+v, %v", e, err)
	}
}

// A job enqueued in a transaction exists after the commit. After a rollback the job never existed.
func TestEnqueueInTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, commit := range []bool{true, false} {
		tx, err := s.d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Enqueue(t.Context(), tx, task{})
		if err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		_, err = s.Get(t.Context(), e.ID)
		if commit && err != nil || !commit && !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("committed: %v; %v", commit, err)
		}
	}
	var none *sql.Tx
	if _, err := s.Enqueue(t.Context(), none, task{}); err == nil {
		t.Error("a nil transaction was taken for none")
	}
}

// Jobs that have not started by their GoodUntil do not run, claimed or not. Jobs that are due later
// run at their time.
func TestTimes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("%d", j.Args.N)
		return nil
	})
	late := s.add(task{1}, jobs.GoodUntil(time.Now().Add(-time.Second)))
	soon := s.add(task{2}, jobs.In(300*time.Millisecond))
	s.run(jobs.WithPollInterval(time.Hour))
	if i := s.ended(soon); i.StartedAt.Sub(i.RunAt) < 0 || i.State != jobs.StateCompleted {
		t.Errorf("started %v after it was due, %s", i.StartedAt.Sub(i.RunAt), i.State)
	}
	if i := s.ended(late); i.State != jobs.StateExpired {
		t.Errorf("the late one is %s", i.State)
	}
	if n := s.notes(); len(n) != 1 {
		t.Errorf("there ran %s", n)
	}
}

// Concurrent calls with the same key enqueue one job. This holds if the default isolation is
// stricter than read committed.
func TestKeysUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		c := jobs.NewClient(s.d.OpenSet(t, "default_transaction_isolation", level))
		for n := range tier.Amount(5, 20) {
			for name, option := range map[string]jobs.EnqueueOption{"unique": jobs.Unique(fmt.Sprint(level, n)), "once": jobs.Once(fmt.Sprint(level, n), time.Hour)} {
				var calls sync.WaitGroup
				var ids sync.Map
				for range 8 {
					calls.Go(func() {
						e, err := c.Enqueue(t.Context(), nil, task{1}, option, jobs.In(time.Hour))
						if err != nil {
							t.Errorf("%s, %s: %v", level, name, err)
						}
						ids.Store(e.ID, true)
					})
				}
				calls.Wait()
				different := 0
				ids.Range(func(any, any) bool { different++; return true })
				if different != 1 {
					t.Errorf("%s, %s: %d jobs under one key", level, name, different)
				}
			}
		}
	}
}

// EnqueueMany waits for the transaction that holds a key, and then finds its job, with a stricter
// isolation.
func TestKeysOfManyUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		c := jobs.NewClient(s.d.OpenSet(t, "default_transaction_isolation", level))
		tx, err := s.d.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		first, err := s.Enqueue(t.Context(), tx, task{1}, jobs.Unique(level), jobs.In(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		var all []jobs.Enqueued
		ended := make(chan error, 1)
		go func() {
			var err error
			all, err = c.EnqueueMany(t.Context(), nil, []jobs.EnqueueParams{{Args: task{1}, Options: []jobs.EnqueueOption{jobs.Unique(level)}}, {Args: task{2}}})
			ended <- err
		}()
		pgtest.AwaitBlocked(t, s.d.DB)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil || all[0].ID != first.ID || !all[0].Existing {
			t.Errorf("%s: %+v, %v, want job %d", level, all, err, first.ID)
		}
	}
}

// between is a Querier that calls ahead before each read of the owner of a key.
type between struct {
	jobs.Querier
	before func()
}

func (b between) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	b.before()
	return b.Querier.QueryRowContext(ctx, query, args...)
}

// A key of Once is free if it expires and is removed while Enqueue reads its owner.
func TestOnceExpiresMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.add(task{1}, jobs.Once("k", time.Hour))
	reads := 0
	on := between{s.d.DB, func() { reads++; s.d.Exec(t, `DELETE FROM jobs_once`) }}
	e, err := s.Enqueue(t.Context(), on, task{2}, jobs.Once("k", time.Hour))
	if err != nil || e.Existing || e.ID == 0 || reads != 1 {
		t.Fatalf("%+v after %d reads, %v", e, reads, err)
	}
	if i, err := s.Get(t.Context(), e.ID); err != nil || string(i.Args) != `{"N": 2}` {
		t.Errorf("the job is %+v, %v", i, err)
	}
}

// nothing has the JSON form null.
type nothing struct{}

func (*nothing) Kind() string                 { return "task" }
func (*nothing) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// Arguments that are JSON's null stay null, with a key and without.
func TestNullArguments(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	entries := []jobs.EnqueueParams{{Args: &nothing{}}}
	for _, o := range []jobs.EnqueueOption{jobs.Unique("a"), jobs.UniqueUntilStart("b"), jobs.Once("c", 0), jobs.Priority(1)} {
		entries = append(entries, jobs.EnqueueParams{Args: &nothing{}, Options: []jobs.EnqueueOption{o}})
	}
	for _, list := range [][]jobs.EnqueueParams{entries[:1], entries} {
		all, err := s.EnqueueMany(t.Context(), nil, list)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range all {
			var args string
			if err := s.d.DB.QueryRow(`SELECT args::text FROM jobs WHERE id = $1`, e.ID).Scan(&args); err != nil || args != "null" {
				t.Errorf("entry %d of %d has %s, %v", i, len(all), args, err)
			}
		}
	}
}

// EnqueueMany with a *sql.DB enqueues all jobs or none.
func TestEnqueueManyOnPool(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.add(task{1}, jobs.Once("k", 0))
	_, err := s.EnqueueMany(t.Context(), s.d.DB, []jobs.EnqueueParams{{Args: task{1}}, {Args: task{2}, Options: []jobs.EnqueueOption{jobs.Once("k", 0)}}, {Args: task{3}}})
	if !errors.Is(err, jobs.ErrKeyReused) {
		t.Fatal(err)
	}
	_, err = s.EnqueueMany(t.Context(), s.d.DB, []jobs.EnqueueParams{{Args: task{1}}, {Args: task{2}, Options: []jobs.EnqueueOption{jobs.Priority(99)}}})
	if !errors.Is(err, jobs.ErrInvalid) || !strings.Contains(err.Error(), "(entry 1 of this call, from 0)") {
		t.Errorf("an invalid entry: %v", err)
	}
	var n int
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d jobs, %v, want the one from before", n, err)
	}
}

// counting counts the statements that are sent through it.
type counting struct {
	*sql.DB
	statements int
}

func (c *counting) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	c.statements++
	return c.DB.QueryContext(ctx, query, args...)
}

// A statement has a bounded number of bytes of arguments and Meta.
func TestEnqueueManyIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var entries []jobs.EnqueueParams
	for n := range 40 {
		entries = append(entries, jobs.EnqueueParams{Args: task{n}, Options: []jobs.EnqueueOption{jobs.Meta(strings.Repeat("m", 1_000_000))}})
	}
	on := &counting{DB: s.d.DB}
	if _, err := s.EnqueueMany(t.Context(), on, entries); err != nil {
		t.Fatal(err)
	}
	if on.statements < 4 {
		t.Errorf("40 MB are sent in %d statements", on.statements)
	}
}

// The IDs of jobs are in the order of the parameters, with equal and with different options.
func TestEnqueueManyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, priorities := range []int{1, 2} {
		var entries []jobs.EnqueueParams
		for n := range 5_000 {
			entries = append(entries, jobs.EnqueueParams{Args: task{n}, Options: []jobs.EnqueueOption{jobs.Priority(1 + n%priorities)}})
		}
		enqueued, err := s.EnqueueMany(t.Context(), nil, entries)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(enqueued, func(a, b jobs.Enqueued) int { return cmp.Compare(a.ID, b.ID) }) {
			t.Error("the ids are not in order")
		}
		var n int
		if err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs WHERE (args->>'N')::int = id - $1::bigint AND id >= $1::bigint`, enqueued[0].ID).Scan(&n); err != nil || n != len(entries) {
			t.Errorf("%d jobs have their arguments, %v", n, err)
		}
	}
}

// Calls with the same keys in opposite orders do not deadlock, though each takes several
// statements. The results are in the order of the parameters.
func TestEnqueueManyOfTheSameKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n   int
		key func(key string) jobs.EnqueueOption
	}{"Unique": {2500, jobs.Unique}, "Unique, in one statement": {900, jobs.Unique}, "Once": {60, func(key string) jobs.EnqueueOption { return jobs.Once(key, 0) }}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			for round := range 4 {
				var up []jobs.EnqueueParams
				for n := range c.n {
					up = append(up, jobs.EnqueueParams{Args: task{n}, Options: []jobs.EnqueueOption{c.key(fmt.Sprintf("%d %c%d", round, 'A'+n%2*32, n))}})
				}
				down := slices.Clone(up)
				slices.Reverse(down)
				var wg sync.WaitGroup
				var ids [2][]jobs.Enqueued
				var errs [2]error
				for i, list := range [][]jobs.EnqueueParams{up, down} {
					wg.Go(func() { ids[i], errs[i] = s.EnqueueMany(t.Context(), nil, list) })
				}
				wg.Wait()
				if err := errors.Join(errs[:]...); err != nil {
					t.Fatal(err)
				}
				for i := range ids[0] {
					if a, b := ids[0][i], ids[1][c.n-1-i]; a.ID != b.ID || a.Existing == b.Existing {
						t.Fatalf("key %d: %+v and %+v", i, a, b)
					}
				}
			}
		})
	}
}
