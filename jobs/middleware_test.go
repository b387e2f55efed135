package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

var errRefused = errors.New("refused")

type next = func(context.Context) error

// Middleware that breaks its rules does not complete a job whose handler has failed or was not
// called. It does not call a handler twice.
func TestMiddlewareThatBreaksRules(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		m     func(ctx context.Context, next next) error
		fails bool // whether the handler fails
		want  string
		calls int
	}{
		"nothing odd":               {func(ctx context.Context, next next) error { return next(ctx) }, false, "completed ", 1},
		"adds to the error":         {func(ctx context.Context, next next) error { return jobs.Fail(fmt.Errorf("around: %w", next(ctx))) }, true, "failed around: refused", 1},
		"does not call":             {func(context.Context, next) error { return nil }, false, "failed did not call next", 0},
		"discards without a call":   {func(context.Context, next) error { return jobs.Discard(errRefused) }, false, "cancelled refused", 0},
		"calls twice":               {func(ctx context.Context, next next) error { _ = next(ctx); return next(ctx) }, false, "failed called next already", 1},
		"calls twice, tells of one": {func(ctx context.Context, next next) error { err := next(ctx); _ = next(ctx); return err }, false, "completed ", 1},
		"nil context":               {func(_ context.Context, next next) error { return next(nil) }, false, "failed nil context", 0}, //nolint:staticcheck // that is the test
		"swallows the error":        {func(ctx context.Context, next next) error { _ = next(ctx); return nil }, true, "failed refused", 1},
		"fails afterwards":          {func(ctx context.Context, next next) error { _ = next(ctx); return errRefused }, false, "failed refused", 1},
		"panics before":             {func(context.Context, next) error { panic("boom") }, false, "failed boom", 0},
		"panics afterwards":         {func(ctx context.Context, next next) error { _ = next(ctx); panic("boom") }, false, "failed boom", 1},
		"exits":                     {func(ctx context.Context, next next) error { runtime.Goexit(); return nil }, false, "failed runtime.Goexit", 0},
		"exits afterwards":          {func(ctx context.Context, next next) error { _ = next(ctx); runtime.Goexit(); return nil }, false, "failed runtime.Goexit", 1},
	}
	names := slices.Sorted(maps.Keys(tests))
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE effects (n int)`)
	type around struct{}                                                // context key of the job that the middleware got
	handle := func(ctx context.Context, on jobs.Querier, n int) error { // n is even in a transaction
		s.note("called %d", n)
		if of := ctx.Value(around{}); of != n {
			t.Errorf("the handler of job %d is inside the middleware of job %v", n, of)
		}
		_, err := on.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, n)
		if tests[names[n/2]].fails {
			return errRefused
		}
		return err
	}
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txJob]) error { return handle(ctx, tx, j.Args.N) }, jobs.MaxAttempts(1))
	jobs.Register(s.Handlers, func(ctx context.Context, j *jobs.Job[task]) error { return handle(ctx, s.d.DB, j.Args.N) }, jobs.MaxAttempts(1))
	var ids []int64
	numbers := map[int64]int{}
	for n := range 2 * len(names) {
		var args jobs.Args = txJob{n}
		if n%2 > 0 {
			args = task{n}
		}
		ids = append(ids, s.add(args))
		numbers[ids[n]] = n
	}
	s.run(jobs.WithMiddleware(func(ctx context.Context, all []jobs.Header, next func(context.Context) error) error {
		n, ok := numbers[all[0].ID]
		if len(all) != 1 || !ok {
			t.Errorf("the middleware is given %+v", all)
			return errRefused
		}
		s.note("around %d", n)
		return tests[names[n/2]].m(context.WithValue(ctx, around{}, n), next)
	}, func(ctx context.Context, _ []jobs.Header, next func(context.Context) error) error { return next(ctx) }))
	for n, id := range ids {
		name, tx := names[n/2], n%2 == 0
		test := tests[name]
		t.Run(name+" "+map[bool]string{true: "transaction", false: "plain"}[tx], func(t *testing.T) {
			on := s.with(t)
			i := on.ended(id)
			state, text, _ := strings.Cut(test.want, " ")
			if string(i.State) != state || !strings.Contains(i.Error, text) {
				t.Errorf("the job is %s: %s; want %s", i.State, i.Error, test.want)
			}
			if around, calls := s.noted("around %d", n), s.noted("called %d", n); around != 1 || calls != test.calls {
				t.Errorf("the middleware was called %d times, the handler %d times", around, calls)
			}
			if effects := on.effectsOf(n); tx && (effects == 1) != (state == "completed") {
				t.Errorf("a job that is %s has %d effects", i.State, effects)
			}
		})
	}
}

// Hooks that panic or end their goroutine are reported once, and count as no answer.
func TestHooksThatBreak(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a\x00b") }, "exit": runtime.Goexit} {
		for _, hook := range []string{"BeforeClaim", "BeforeHandle", "AfterHandle"} {
			t.Run(hook+" "+how, func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
				jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[txJob]) error { return nil })
				jobs.RegisterBatchTx(s.Handlers, func(context.Context, *sql.Tx, []*jobs.Job[batchTxJob]) error { return nil })
				var reported, called atomic.Int64
				breaks := func(name string) {
					if name == hook && called.Add(1) <= 20 {
						end()
					}
				}
				var ids []int64
				for n := range 10 {
					ids = append(ids, s.add(task{n}), s.add(txJob{n}), s.add(batchTxJob{n}))
				}
				_, stop := s.runOn(s.d.DB, jobs.WithHooks(jobs.Hooks{
					BeforeClaim:  func(context.Context, string) jobs.ClaimFilter { breaks("BeforeClaim"); return jobs.ClaimFilter{} },
					BeforeHandle: func(context.Context, jobs.Header) { breaks("BeforeHandle") },
					AfterHandle:  func(context.Context, jobs.Header, error) { breaks("AfterHandle") },
				}), jobs.WithObserver(observe.On(func(p observe.HookPanicked) {
					if p.Hook == hook {
						reported.Add(1)
					}
				})))
				for _, id := range ids {
					if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt != 1 {
						t.Errorf("the job is %s after %d attempts: %s", i.State, i.Attempt, i.Error)
					}
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if called.Load() < 20 || reported.Load() != 1 {
					t.Errorf("called %d times, reported %d times", called.Load(), reported.Load())
				}
			})
		}
	}
}

// Start refuses an invalid configuration, and names every problem.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	good := func() *jobs.Handlers {
		h := jobs.NewHandlers()
		jobs.Register(h, func(context.Context, *jobs.Job[task]) error { return nil })
		return h
	}
	with := func(opts ...jobs.HandlerOption) *jobs.Handlers {
		h := good()
		jobs.Register(h, func(context.Context, *jobs.Job[other]) error { return nil }, opts...)
		return h
	}
	zero, twice, missing, nilKind := &jobs.Handlers{}, good(), good(), good()
	jobs.Register(zero, func(context.Context, *jobs.Job[task]) error { return nil })
	jobs.Register(twice, func(context.Context, *jobs.Job[task]) error { return nil })
	jobs.Register[other](missing, nil)
	jobs.Register(nilKind, func(context.Context, *jobs.Job[*task]) error { return nil })
	few := s.d.OpenPQ(t)
	few.SetMaxOpenConns(3)
	for name, test := range map[string]struct {
		w    *jobs.Worker
		says string
	}{
		"nil db":              {jobs.NewWorker(nil, good()), "db is nil"},
		"few connections":     {jobs.NewWorker(few, good()), "SetMaxOpenConns"},
		"nil handlers":        {jobs.NewWorker(s.d.DB, nil), "no handlers"},
		"no handlers":         {jobs.NewWorker(s.d.DB, jobs.NewHandlers()), "no handlers"},
		"a kind twice":        {jobs.NewWorker(s.d.DB, twice), "two handlers"},
		"a nil handler":       {jobs.NewWorker(s.d.DB, missing), "is nil"},
		"a pointer":           {jobs.NewWorker(s.d.DB, nilKind), "zero value"},
		"endless attempts":    {jobs.NewWorker(s.d.DB, with(jobs.MaxAttempts(1<<40))), "MaxAttempts"},
		"no attempts":         {jobs.NewWorker(s.d.DB, with(jobs.MaxAttempts(0))), "MaxAttempts"},
		"negative time":       {jobs.NewWorker(s.d.DB, with(jobs.Timeout(-1))), "Timeout"},
		"no policy":           {jobs.NewWorker(s.d.DB, with(jobs.Retry(nil))), "Retry"},
		"a batch of one":      {jobs.NewWorker(s.d.DB, with(jobs.BatchSize(2))), "BatchSize"},
		"concurrency 0":       {jobs.NewWorker(s.d.DB, good(), jobs.WithQueue("q", 0)), "WithQueue"},
		"all queues":          {jobs.NewWorker(s.d.DB, good(), jobs.WithQueue("*", 1)), "WithQueue"},
		"queue with NUL":      {jobs.NewWorker(s.d.DB, good(), jobs.WithQueue("a\x00", 1)), "WithQueue"},
		"a queue twice":       {jobs.NewWorker(s.d.DB, good(), jobs.WithQueue("q", 1), jobs.WithQueue("q", 1)), "twice"},
		"negative prefetch":   {jobs.NewWorker(s.d.DB, good(), jobs.WithPrefetch(-1)), "WithPrefetch"},
		"a huge claim":        {jobs.NewWorker(s.d.DB, good(), jobs.WithClaimBatch(10_001)), "WithClaimBatch"},
		"priority 0":          {jobs.NewWorker(s.d.DB, good(), jobs.WithQueuePriority("default", 0)), "WithQueuePriority"},
		"priority of another": {jobs.NewWorker(s.d.DB, good(), jobs.WithQueue("q", 1), jobs.WithQueuePriority("default", 1)), "does not serve"},
		"priority twice":      {jobs.NewWorker(s.d.DB, good(), jobs.WithQueuePriority("default", 1), jobs.WithQueuePriority("default", 1)), "twice"},
		"no poll":             {jobs.NewWorker(s.d.DB, good(), jobs.WithPollInterval(0)), "WithPollInterval"},
		"a short max poll":    {jobs.NewWorker(s.d.DB, good(), jobs.WithMaxPollInterval(time.Millisecond)), "WithMaxPollInterval"},
		"short time-out":      {jobs.NewWorker(s.d.DB, good(), jobs.WithHeartbeatTimeout(time.Second)), "WithHeartbeatTimeout"},
		"nil middleware":      {jobs.NewWorker(s.d.DB, good(), jobs.WithMiddleware(nil)), "WithMiddleware"},
		"two values of hooks": {jobs.NewWorker(s.d.DB, good(), jobs.WithHooks(jobs.Hooks{}), jobs.WithHooks(jobs.Hooks{})), "WithHooks is given 2 times"},
		"unknown strategy":    {jobs.NewWorker(s.d.DB, good(), jobs.WithLeaderStrategy("x")), "WithLeaderStrategy"},
		"no connection":       {jobs.NewWorker(s.d.DB, good(), jobs.WithNotifyConnectionString("postgres://u:secret@h:port/")), "WithNotifyConnectionString"},
		"another pool":        {jobs.NewWorker(s.d.OpenLent(t, 4), good()), "pgxpool.Pool"},
		"table of four names": {jobs.NewWorker(s.d.DB, good(), jobs.WithNames(store.Names{Jobs: "a.b.c.d"})), "Names.Jobs"},
	} {
		err := test.w.Start(t.Context())
		if !errors.Is(err, jobs.ErrInvalidConfig) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: Start returned %v", name, err)
		}
		if err := test.w.Start(t.Context()); !errors.Is(err, jobs.ErrAlreadyStarted) {
			t.Errorf("%s: Start, again, returned %v", name, err)
		}
	}
	several := jobs.NewWorker(nil, missing, jobs.WithQueue("q", 0), jobs.WithPollInterval(0)).Start(t.Context())
	for _, says := range []string{"db is nil", `the handler of kind "other" is nil`, "WithQueue", "WithPollInterval"} {
		if several == nil || !strings.Contains(several.Error(), says) {
			t.Errorf("of several problems, %s is missing: %v", says, several)
		}
	}
	if err := jobs.NewWorker(s.d.DB, zero, jobs.WithStopAfter(time.Millisecond), nil).Start(t.Context()); err != nil {
		t.Errorf("with a zero Handlers: %v", err)
	}
	if err := jobs.NewWorker(s.d.DB, good(), jobs.WithNames(store.Names{Jobs: "missing"})).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("without tables: %v", err)
	}
}
