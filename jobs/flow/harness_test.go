package flow_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stage is a database with the tables of jobs, and the state of a test.
type stage struct {
	*flow.Client
	*jobs.Handlers
	jobs *jobs.Client
	t    testing.TB
	d    *pgtest.Database
}

func newStage(t testing.TB) *stage {
	t.Helper()
	d := pgtest.Jobs(t)
	d.DB.SetMaxIdleConns(20)
	client := jobs.NewClient(d.DB)
	return &stage{Client: flow.NewClient(client), Handlers: jobs.NewHandlers(), jobs: client, t: t, d: d}
}

// patience bounds every wait of a test.
const patience = pgtest.Patience

func (s *stage) until(what string, is func() bool) {
	s.t.Helper()
	if !pgtest.Poll(is) {
		s.t.Fatalf("waited in vain for %s", what)
	}
}

// quick returns options with short intervals.
func quick() []jobs.Option {
	return []jobs.Option{jobs.WithPollInterval(50 * time.Millisecond), jobs.WithHeartbeatInterval(200 * time.Millisecond),
		jobs.WithHeartbeatTimeout(30 * time.Second), jobs.WithRescueDelay(300 * time.Millisecond)}
}

// work runs a worker that advances flows until the test ends, or until stop is called.
func (s *stage) work(opts ...jobs.Option) (stop func()) {
	s.t.Helper()
	return s.workOn(s.d.DB, append([]jobs.Option{flow.Advance()}, opts...)...)
}

func (s *stage) workOn(db *sql.DB, opts ...jobs.Option) (stop func()) {
	s.t.Helper()
	w := jobs.NewWorker(db, s.Handlers, append(quick(), opts...)...)
	result := make(chan error, 1)
	go func() { result <- w.Start(context.WithoutCancel(s.t.Context())) }()
	stop = sync.OnceFunc(func() {
		w.Stop()
		select {
		case err := <-result:
			if err != nil {
				s.t.Errorf("the worker ended with: %v", err)
			}
		case <-time.After(patience):
			s.t.Errorf("the worker does not stop: %+v", w.Status())
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// ended waits for the end of a run, in any state.
func (s *stage) ended(run int64) flow.Run {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := s.Wait(ctx, run)
	if ctx.Err() != nil || r.ID == 0 {
		r, _ = s.Get(s.t.Context(), run)
		s.t.Fatalf("wait for run %d: %v: %s", run, err, states(r))
	}
	return r
}

// states returns a run as one line: its state, and the states of its steps.
func states(r flow.Run) string {
	text := string(r.State) + ":"
	for _, s := range r.Steps {
		text += fmt.Sprintf(" %s %s", s.Name, s.State)
	}
	return text
}

func (s *stage) want(what, want string, r flow.Run) {
	s.t.Helper()
	if got := states(r); got != want {
		s.t.Errorf("%s is\n%s, want\n%s", what, got, want)
	}
}

func (s *stage) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.d.DB.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// start starts a run of a flow.
func start[In any](s *stage, f *flow.Flow[In], in In, opts ...flow.StartOption) int64 {
	s.t.Helper()
	started, err := f.Start(s.t.Context(), s.Client, nil, in, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return started.Run
}
