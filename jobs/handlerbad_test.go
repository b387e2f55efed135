package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// badError is an error whose methods panic, block or exit.
type badError struct {
	text, code func() string
	unwrap     func() error
}

func (e *badError) Error() string { return e.text() }
func (e *badError) Code() string  { return e.code() }
func (e *badError) Unwrap() error { return e.unwrap() }

func says(text string) func() string { return func() string { return text } }

func panics() string { panic("a method of the error") }

func noError() error { return nil }

// Whatever a handler returns, panics with or sets as its result, the job ends as documented. The
// stored text is readable, and the worker goes on.
func TestHandlerErrorsAndPanics(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 10<<20)
	tests := map[string]struct {
		handle func(j *jobs.Job[task]) error
		code   string
		says   string
	}{
		"NUL in an error":      {func(*jobs.Job[task]) error { return errors.New("a\x00b") }, "", `a\0b`},
		"no UTF-8 in an error": {func(*jobs.Job[task]) error { return errors.New("a\xffb") }, "", "a\uFFFDb"},
		"10 MB of error":       {func(*jobs.Job[task]) error { return errors.New(huge) }, "", "(10485760 bytes)"},
		"several lines":        {func(*jobs.Job[task]) error { return errors.New("a\nb\r\n") }, "", "a; b"},
		"NUL in a panic":       {func(*jobs.Job[task]) error { panic("a\x00b\xff") }, jobs.CodePanic, `a\0b`},
		"10 MB of panic":       {func(*jobs.Job[task]) error { panic(huge) }, jobs.CodePanic, "bytes)"},
		"panic with nil":       {func(*jobs.Job[task]) error { panic(nil) }, jobs.CodePanic, "nil"}, //nolint:govet // that is the test
		"panic with an error":  {func(*jobs.Job[task]) error { panic(&badError{panics, panics, noError}) }, jobs.CodePanic, "PANIC"},
		"Goexit":               {func(*jobs.Job[task]) error { runtime.Goexit(); return nil }, jobs.CodePanic, "runtime.Goexit"},
		"Error panics":         {func(*jobs.Job[task]) error { return &badError{panics, says(""), noError} }, "", "PANIC"},
		"Code panics":          {func(*jobs.Job[task]) error { return &badError{says("text"), panics, noError} }, "", "text"},
		"Code exits": {func(*jobs.Job[task]) error {
			return &badError{says("text"), func() string { runtime.Goexit(); return "" }, noError}
		}, "", "text"},
		"Unwrap panics":          {func(*jobs.Job[task]) error { return &badError{says("text"), says("C"), func() error { panic("no") }} }, "", "text"},
		"Code has NUL":           {func(*jobs.Job[task]) error { return &badError{says("text"), says("a\x00b\xff"), noError} }, "a\uFFFDb\uFFFD", "text"},
		"Code is long":           {func(*jobs.Job[task]) error { return &badError{says("text"), says(huge), noError} }, "*", "text"},
		"a nil pointer":          {func(*jobs.Job[task]) error { var e *badError; return e }, "", "nil"},
		"Fail(nil)":              {func(*jobs.Job[task]) error { return jobs.Fail(nil) }, "", "failed"},
		"result of a channel":    {func(j *jobs.Job[task]) error { return j.SetResult(make(chan int)) }, "", "no JSON"},
		"10 MB of result":        {func(j *jobs.Job[task]) error { return j.SetResult(huge) }, "", "MaxArgs"},
		"NUL in a result":        {func(j *jobs.Job[task]) error { return j.SetResult("\x00") }, "", "NUL"},
		"a half in a result":     {func(j *jobs.Job[task]) error { return j.SetResult(ofJSON(`"\udfff"`)) }, "", "surrogate"},
		"a number in a result":   {func(j *jobs.Job[task]) error { return j.SetResult(ofJSON(`1e999999`)) }, "", "digits"},
		"a deep result":          {func(j *jobs.Job[task]) error { return j.SetResult(ofJSON(nested(9_999))) }, "", "nested"},
		"a result that panics":   {func(j *jobs.Job[task]) error { return j.SetResult(&badError{}) }, "*", ""},
		"a log of a channel":     {func(j *jobs.Job[task]) error { return j.Log(context.Background(), make(chan int)) }, "", "no JSON"},
		"negative RetryAfter":    {func(*jobs.Job[task]) error { return jobs.RetryAfter(-time.Hour, errors.New("text")) }, "", "text"},
		"endless RetryAfter":     {func(*jobs.Job[task]) error { return jobs.RetryAfter(math.MaxInt64, errors.New("text")) }, "", "text"},
		"a verdict in a verdict": {func(*jobs.Job[task]) error { return jobs.Fail(jobs.Snooze(time.Hour)) }, "", "snoozed"},
	}
	names := slices.Sorted(maps.Keys(tests))
	all := newStage(t)
	jobs.Register(all.Handlers, func(_ context.Context, j *jobs.Job[task]) error { return tests[names[j.Args.N]].handle(j) }, jobs.MaxAttempts(1))
	jobs.Register(all.Handlers, func(context.Context, *jobs.Job[other]) error { return nil })
	all.run()
	for n, name := range names {
		test := tests[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := all.with(t)
			i := s.ended(s.add(task{n}))
			if name == "a result that panics" {
				if i.State == jobs.StateAvailable {
					t.Errorf("the job is %s", i.State)
				}
				return
			}
			if i.State != jobs.StateFailed || i.Code != test.code && test.code != "*" || !strings.Contains(i.Error, test.says) {
				t.Errorf("the job is %s, code %.300q, error %.300q", i.State, i.Code, i.Error)
			}
			if len(i.Error) > 5_000 || len(i.Code) > 200 || strings.ContainsAny(i.Error, "\x00\n") {
				t.Errorf("code %d bytes, error %d bytes: %.300q", len(i.Code), len(i.Error), i.Error)
			}
			if i := s.ended(s.add(other{})); i.State != jobs.StateCompleted {
				t.Errorf("the next job is %s", i.State)
			}
		})
	}
}

// A handler that deletes the row of its own job harms no other job. In its transaction, which is
// rolled back, the deletion counts as a failure. In another transaction, the job is gone.
func TestHandlerThatDeletesItsJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txJob]) error {
		s.note("ran %d", j.Attempt)
		return statements(`INSERT INTO effects VALUES (1)`, fmt.Sprintf(`DELETE FROM jobs WHERE id = %d`, j.ID))(ctx, tx)
	}, jobs.MaxAttempts(2), jobs.Retry(jobs.Fixed(0)))
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error {
		_, err := s.d.DB.ExecContext(ctx, `DELETE FROM jobs WHERE id = $1`, j.ID)
		return err
	})
	inTx, elsewhere := s.add(txJob{}), s.add(task{})
	s.run(jobs.WithObserver(observe.On(func(h observe.JobLost) { s.note("lost %d", h.ID) })))
	if i := s.ended(inTx); i.State != jobs.StateFailed || i.Failures != 2 || !strings.Contains(i.Error, "must leave its row alone") {
		t.Errorf("the job is %s after %d failures: %s", i.State, i.Failures, i.Error)
	}
	s.until("the deleted job to be reported", func() bool { return slices.Contains(s.notes(), fmt.Sprintf("lost %d", elsewhere)) })
	if _, err := s.Get(t.Context(), elsewhere); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("the deleted job: %v", err)
	}
	if !slices.Contains(s.notes(), "ran 2") || slices.Contains(s.notes(), "ran 3") || slices.Contains(s.notes(), fmt.Sprintf("lost %d", inTx)) {
		t.Errorf("noted: %q", s.notes())
	}
	var n int
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM effects`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d effects, %v", n, err)
	}
}

// A job that Settle has completed has not completed if the transaction with its effects was rolled
// back.
func TestSettledInATransactionThatFails(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	jobs.RegisterBatchTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[task]) error {
		for _, j := range all {
			j.Settle(nil)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (1)`); err != nil || all[0].Attempt > 1 {
			return err
		}
		return errors.New("no")
	}, jobs.BatchSize(1), jobs.Retry(jobs.Fixed(0)))
	id := s.add(task{})
	s.run()
	i := s.ended(id)
	var n int
	if err := s.d.DB.QueryRow(`SELECT count(*) FROM effects`).Scan(&n); err != nil || n != 1 || i.State != jobs.StateCompleted || i.Failures != 1 {
		t.Errorf("the job is %s after %d failures, with %d effects, %v", i.State, i.Failures, n, err)
	}
}

// undecodable panics, or ends its goroutine, when it is decoded.
type undecodable struct{ How string }

func (undecodable) Kind() string { return "undecodable" }

func (u *undecodable) UnmarshalJSON(text []byte) error {
	switch {
	case strings.Contains(string(text), "panic"):
		panic("a\x00b")
	case strings.Contains(string(text), "exit"):
		runtime.Goexit()
	}
	return nil
}

// Arguments that do not decode fail their job, and no other job of the claim.
func TestArgumentsThatDoNotDecode(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.RegisterBatch(s.Handlers, func(_ context.Context, all []*jobs.Job[task]) error {
		s.note("%d", len(all))
		return nil
	})
	jobs.RegisterBatch(s.Handlers, func(context.Context, []*jobs.Job[undecodable]) error { return nil })
	good, bad := []int64{s.add(task{1})}, []int64{s.add(ofJSON(`[1]`)), s.add(ofJSON(`{"N": "x"}`)), s.add(ofJSON(`{"N": 1e400}`))}
	good = append(good, s.add(task{2}), s.add(ofJSON(`null`)), s.add(ofJSON(`{"M": 1}`)), s.add(undecodable{"well"}))
	bad = append(bad, s.add(undecodable{"panic"}))
	good = append(good, s.add(undecodable{"well"}))
	_, stop := s.runOn(s.d.DB)
	for _, id := range good {
		if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt != 1 {
			t.Errorf("job %d is %s after %d attempts: %s", id, i.State, i.Attempt, i.Error)
		}
	}
	for _, id := range bad {
		if i := s.ended(id); i.State != jobs.StateFailed || i.Code != jobs.CodeArgs || i.Attempt != 1 || !strings.Contains(i.Error, "arguments") {
			t.Errorf("job %d is %s, %s after %d attempts: %s", id, i.State, i.Code, i.Attempt, i.Error)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A type that ends the goroutine which decodes it costs its job an attempt. The worker goes on.
func TestDecodingThatExits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[undecodable]) error { return nil }, jobs.MaxAttempts(1))
	id := s.add(undecodable{"exit"})
	w, stop := s.runOn(s.d.DB)
	if i := s.ended(id); i.State != jobs.StateFailed || i.Code != jobs.CodePanic {
		t.Errorf("the job is %s, %s: %s", i.State, i.Code, i.Error)
	}
	s.until("the slot to be free", func() bool { return w.Status().Queues[0].Running == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A retry policy may panic, exit or return any delay.
func TestRetryPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy jobs.RetryPolicy
		again  bool // the retry comes soon
	}{
		"panics":   {func(int, error) time.Duration { panic("policy") }, false},
		"exits":    {func(int, error) time.Duration { runtime.Goexit(); return 0 }, false},
		"negative": {func(int, error) time.Duration { return math.MinInt64 }, true},
		"huge":     {func(int, error) time.Duration { return math.MaxInt64 }, false},
		"no steps": {jobs.Steps(), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
				s.note("%d", j.Attempt)
				return errors.New("no")
			}, jobs.MaxAttempts(2), jobs.Retry(test.policy))
			id := s.add(task{})
			_, stop := s.runOn(s.d.DB)
			if test.again {
				if i := s.ended(id); i.State != jobs.StateFailed || i.Attempt != 2 {
					t.Errorf("the job is %s after %d attempts", i.State, i.Attempt)
				}
				return
			}
			s.until("the failure to be stored", func() bool {
				i, err := s.Get(t.Context(), id)
				return err == nil && i.State == jobs.StateAvailable && i.Failures == 1 && time.Until(i.RunAt) > time.Second
			})
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A batch handler that ends its goroutine for one job fails only this job.
func TestBatchThatExits(t *testing.T) {
	for how, end := range map[string]func(){"exits": runtime.Goexit, "panics": func() { panic("no") }} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.RegisterBatch(s.Handlers, func(_ context.Context, all []*jobs.Job[task]) error {
				if slices.ContainsFunc(all, func(j *jobs.Job[task]) bool { return j.Args.N == 5 || j.Args.N == 1 }) {
					end()
				}
				return nil
			}, jobs.MaxAttempts(1))
			var ids []int64
			for n := range 16 {
				ids = append(ids, s.add(task{n}))
			}
			w, stop := s.runOn(s.d.DB, jobs.WithQueue("default", 16))
			for n, id := range ids {
				want := "completed 0 "
				if n == 5 || n == 1 {
					want = "failed 1 PANIC"
				}
				if i := s.ended(id); fmt.Sprint(i.State, " ", i.Failures, " ", i.Code) != want {
					t.Errorf("job %d is %s, %d failures, %s: %s", n, i.State, i.Failures, i.Code, i.Error)
				}
			}
			s.until("the slots to be free", func() bool { return w.Status().Queues[0].Running == 0 })
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Calls on a job after its handler has returned have no effect.
func TestJobThatOutlivesItsHandler(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	kept := make(chan *jobs.Job[task], 10)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		kept <- j
		return j.SetResult("in time")
	})
	id := s.add(task{})
	s.run()
	if i := s.ended(id); string(i.Result) != `"in time"` {
		t.Errorf("the result is %s", i.Result)
	}
	j := <-kept
	j.Settle(errors.New("late"))
	if err := j.SetResult("late"); err != nil {
		t.Error(err)
	}
	tx, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := j.CompleteTx(t.Context(), tx); !errors.Is(err, jobs.ErrClaimLost) {
		t.Errorf("CompleteTx: %v", err)
	}
	if i := s.ended(id); i.State != jobs.StateCompleted || string(i.Result) != `"in time"` {
		t.Errorf("the job is %s with %s", i.State, i.Result)
	}
}
