package table_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// A hook that blocks is reported. A stop ends its context and waits for a while. Then Start returns
// and names the hook.
func TestHooksThatBlock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		block func(s *stage, wait func(ctx context.Context))
		says  string // the condition while the hook blocks
		row   string
		err   string // error of Start if the hook ignores the end of its context
	}{
		"PreDequeue": {func(s *stage, wait func(ctx context.Context)) {
			s.h.PreDequeue = func(ctx context.Context) (bool, table.Condition, error) {
				wait(ctx)
				return true, table.Condition{}, ctx.Err()
			}
		}, "PreDequeue has not returned for 200ms", "queued 0", "the hook PreDequeue"},
		"PreHandle": {func(s *stage, wait func(ctx context.Context)) {
			s.h.PreHandle = func(ctx context.Context, _ *table.Job[example]) { wait(ctx) }
			s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error { s.note("handled"); return ctx.Err() }
		}, "PreHandle of job 1 has not returned for 200ms", "queued 0", "of jobs [1]"},
		"PostHandle": {func(s *stage, wait func(ctx context.Context)) {
			s.h.PostHandle = func(ctx context.Context, _ *table.Job[example]) { wait(ctx) }
		}, "", "completed 0", "the hook PostHandle of 1 jobs"},
	} {
		for _, ignores := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " ignores it"}[ignores], func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				release := make(chan struct{})
				free := sync.OnceFunc(func() { close(release) })
				defer free()
				c.block(s, func(ctx context.Context) {
					s.note("blocks")
					select {
					case <-ctx.Done():
						if ignores {
							<-release
						}
					case <-release:
					}
					s.note("returned")
				})
				w := s.worker(s.d.DB, func(o *table.WorkerOptions) { o.NumHandlers, o.ShutdownTimeout = 2, 50*time.Millisecond })
				table.SetGrace(w, 200*time.Millisecond)
				id := s.add("")
				result := make(chan error, 1)
				go func() { result <- w.Start(t.Context()) }()
				s.until("the hook to block", func() bool { return len(s.notes()) == 1 })
				s.until("that to be reported", func() bool {
					err := w.Status().ClaimError
					return c.says == "" || err != nil && strings.Contains(err.Error(), c.says)
				})
				w.Stop()
				var err error
				select {
				case err = <-result:
				case <-time.After(patience):
					t.Fatalf("the worker does not stop: %+v", w.Status())
				}
				if ignores != errors.Is(err, table.ErrHandlerOverdue) || ignores && !strings.Contains(err.Error(), c.err) || !ignores && err != nil {
					t.Errorf("Start: %v", err)
				}
				s.want("the row", c.row, `SELECT state || ' ' || num_failures FROM example_jobs WHERE id = $1`, id)
				if n := s.notes(); ignores == slices.Contains(n, "returned") || ignores && slices.Contains(n, "handled") {
					t.Errorf("noted %q", n)
				}
				free()
				s.until("the hook to return", func() bool { return slices.Contains(s.notes(), "returned") })
				if ignores && slices.Contains(s.notes(), "handled") {
					t.Error("a job that was given up has been handled")
				}
			})
		}
	}
}

// A row whose Scan does not return has a failure, and keeps its slot. The other rows run.
func TestScanThatBlocks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	s.o.MaxNumRetries, s.o.RetryAfter = 0, 0
	s.o.Scan = func(row table.Row) (e example, err error) {
		e, err = scan(row)
		if e.ID == 3 {
			s.note("blocks")
			<-release
			s.note("returns %t", row.Scan(&e.ID) != nil)
		}
		return e, err
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 10) AS i`)
	w := s.worker(s.d.DB, func(o *table.WorkerOptions) {
		o.NumHandlers = 4
		o.Observers = []observe.Observer{observe.On(func(h observe.JobOverdue) { s.note("overdue %d", h.ID) })}
	})
	table.SetGrace(w, 100*time.Millisecond)
	result := make(chan error, 1)
	go func() { result <- w.Start(t.Context()) }()
	defer free()
	s.until("the others to complete", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed' AND num_failures + num_resets = 0`) == "9"
	})
	s.want("what blocks", "failed 1 job 3: Scan has not returned for 100ms", `SELECT state || ' ' || num_failures || ' ' || failure_message FROM example_jobs WHERE id = 3`)
	s.until("its slot alone to be taken", func() bool { return w.Status().Running == 1 })
	w.Stop()
	select {
	case err := <-result:
		if !errors.Is(err, table.ErrHandlerOverdue) || !strings.Contains(err.Error(), "of jobs [3]") {
			t.Errorf("Start: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("the worker does not stop: %+v", w.Status())
	}
	free()
	s.until("its slot", func() bool { return w.Status().Running == 0 })
	if n := s.notes(); !slices.Equal(n, []string{"blocks", "overdue 3", "returns true"}) {
		t.Errorf("noted %q", n)
	}
}

// A hook that allows a claim after the stop began has come too late.
func TestStopDuringPreDequeue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	asked := make(chan struct{})
	s.h.PreDequeue = func(ctx context.Context) (bool, table.Condition, error) {
		close(asked)
		<-ctx.Done()
		return true, table.Condition{}, nil
	}
	id := s.add("")
	w := s.worker(s.d.DB, func(*table.WorkerOptions) {})
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.WithoutCancel(t.Context())) }()
	<-asked
	w.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.want("the row", "queued", `SELECT state FROM example_jobs WHERE id = $1`, id)
}
