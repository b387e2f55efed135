package table_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
)

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		beProcess()
		return
	}
	pgtest.Main(m)
}

// schema is the table of the manual, and the tables of its view.
const schema = `
CREATE TABLE repo (id serial PRIMARY KEY, name text NOT NULL);
INSERT INTO repo (name) SELECT 'repo ' || i FROM generate_series(1, 20) AS i;

CREATE TABLE example_jobs (
	id                serial PRIMARY KEY,
	state             text NOT NULL DEFAULT 'queued',
	failure_message   text,
	queued_at         timestamptz DEFAULT now(),
	started_at        timestamptz,
	last_heartbeat_at timestamptz,
	finished_at       timestamptz,
	process_after     timestamptz,
	num_resets        integer NOT NULL DEFAULT 0,
	num_failures      integer NOT NULL DEFAULT 0,
	execution_logs    json[],
	worker_hostname   text NOT NULL DEFAULT '',
	cancel            boolean NOT NULL DEFAULT false,

	repository_id     integer NOT NULL DEFAULT 1
);
CREATE INDEX example_jobs_due ON example_jobs (repository_id, id) WHERE state IN ('queued', 'errored');
CREATE INDEX example_jobs_processing ON example_jobs (id) WHERE state = 'processing';

CREATE VIEW example_jobs_with_repository_name AS
	SELECT ej.*, r.name AS repository_name FROM example_jobs AS ej JOIN repo AS r ON r.id = ej.repository_id;`

// example is the record of a row.
type example struct {
	ID         int
	State      string
	Started    *time.Time
	Hostname   string
	Logs       *string
	Failure    *string
	Repository string
}

func options() table.Options[example] {
	return table.Options[example]{
		TableName: "example_jobs j",
		ViewName:  "example_jobs_with_repository_name j",
		ColumnExpressions: []string{"j.id", "upper(j.state)", "j.started_at", "split_part(j.worker_hostname, '/', 1)",
			"j.execution_logs::text", "j.failure_message", "j.repository_name"},
		Scan:              scan,
		OrderByExpression: "j.repository_id, j.id",
		MaxNumRetries:     3,
		RetryAfter:        time.Millisecond,
		StalledMaxAge:     10 * time.Second, // long enough for a busy machine
	}
}

func scan(row table.Row) (e example, err error) {
	return e, errors.Join(row.Scan(&e.ID, &e.State, &e.Started, &e.Hostname, &e.Logs, &e.Failure, &e.Repository))
}

// stage is a database with a table of jobs.
type stage struct {
	t *testing.T
	d *pgtest.Database
	o table.Options[example]
	h table.Handler[example]

	mu   sync.Mutex
	seen []string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, d: pgtest.Empty(t), o: options()}
	if _, err := s.d.OpenPQ(t).ExecContext(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	s.d.DB.SetMaxIdleConns(20)
	s.h.Handle = func(context.Context, *table.Job[example]) error { return nil }
	return s
}

// openHole opens a pool whose statements or answers can be swallowed. It sends a statement and its
// values in one message, so a statement whose answer is lost was executed.
func (s *stage) openHole() (*sql.DB, *pgtest.Hole) {
	s.t.Helper()
	db, hole := s.d.InMode(pgx.QueryExecModeExec).OpenHole(s.t)
	hole.GivesUp = true
	return db, hole
}

// note records an event of the test.
func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// notes returns the recorded events so far.
func (s *stage) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// patience bounds every wait of a test.
const patience = pgtest.Patience

// until waits for a condition.
func (s *stage) until(what string, is func() bool) {
	s.t.Helper()
	if !pgtest.Poll(is) {
		s.t.Fatalf("waited in vain for %s; noted: %q; the rows: %s", what, s.notes(),
			s.text(`SELECT coalesce(string_agg(j::text, E'\n'), '') FROM (SELECT * FROM example_jobs ORDER BY id LIMIT 20) AS j`))
	}
}

// add inserts a row, and returns its ID.
func (s *stage) add(columns string) (id int64) {
	s.t.Helper()
	if columns == "" {
		columns = `DEFAULT VALUES`
	}
	if err := s.d.DB.QueryRowContext(s.t.Context(), `INSERT INTO example_jobs `+columns+` RETURNING id`).Scan(&id); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// text returns the answer of a query.
func (s *stage) text(query string, args ...any) (text string) {
	s.t.Helper()
	if err := s.d.DB.QueryRowContext(s.t.Context(), query, args...).Scan(&text); err != nil {
		s.t.Fatalf("%v, in\n%s", err, query)
	}
	return text
}

func (s *stage) want(about, want, query string, args ...any) {
	s.t.Helper()
	if got := s.text(query, args...); got != want {
		s.t.Errorf("%s: %s, want %s", about, got, want)
	}
}

func (s *stage) state(id int64) string {
	s.t.Helper()
	return s.text(`SELECT state::text FROM example_jobs WHERE id = $1`, id)
}

// becomes waits until a job is in a state.
func (s *stage) becomes(id int64, state table.State) {
	s.t.Helper()
	s.until(fmt.Sprintf("job %d to be %s", id, state), func() bool { return s.state(id) == string(state) })
}

// quick returns options with short intervals.
func quick() table.WorkerOptions {
	return table.WorkerOptions{Interval: 20 * time.Millisecond, HeartbeatInterval: 50 * time.Millisecond, WorkerHostname: "here"}
}

// worker makes a worker that is not started.
func (s *stage) worker(db *sql.DB, change func(*table.WorkerOptions)) *table.Worker {
	o := quick()
	if change != nil {
		change(&o)
	}
	return table.NewWorker(table.NewStore(db, s.o), s.h, o)
}

// run starts a worker, which ends with the test, and returns the worker.
func (s *stage) run(change func(*table.WorkerOptions)) *table.Worker {
	s.t.Helper()
	w := s.worker(s.d.DB, change)
	s.start(w)
	return w
}

// start starts a worker. stop ends the worker and returns the error of Start.
func (s *stage) start(w *table.Worker) (stop func() error) {
	s.t.Helper()
	result := make(chan error, 1)
	go func() { result <- w.Start(context.WithoutCancel(s.t.Context())) }()
	stop = sync.OnceValue(func() error {
		w.Stop()
		select {
		case err := <-result:
			return err
		case <-time.After(patience):
			return fmt.Errorf("the worker does not stop: %+v", w.Status())
		}
	})
	s.t.Cleanup(func() {
		if err := stop(); err != nil {
			s.t.Errorf("the worker ended with: %v", err)
		}
	})
	return stop
}
