package table_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/pgfrontier/worker/internal/lab/subprocess"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// processVariable is the environment variable with the role of a worker process.
const processVariable = "TABLE_PROCESS"

// role describes a worker process.
type role struct {
	Name     string // name of its sessions too, and before the slash of worker_hostname
	URL      string
	Handlers int
	Stalled  time.Duration
	Work     time.Duration // each handler takes up to this long
}

// beProcess runs a worker until SIGTERM. It records each run, and each run that was refused.
func beProcess() {
	var r role
	if err := json.Unmarshal([]byte(os.Getenv(processVariable)), &r); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := sql.Open("pgx", r.URL)
	if err != nil {
		panic(err)
	}
	db.SetMaxIdleConns(r.Handlers + 5)
	record := func(statement string, id int64) {
		if _, err := db.ExecContext(context.Background(), statement, id, r.Name); err != nil {
			fmt.Println(err)
		}
	}
	o := options()
	o.StalledMaxAge, o.MaxNumResets = r.Stalled, 1_000
	h := table.Handler[example]{Handle: func(ctx context.Context, j *table.Job[example]) error {
		record(`INSERT INTO runs VALUES ($1, $2)`, j.ID)
		time.Sleep(rand.N(r.Work))
		return nil
	}}
	w := table.NewWorker(table.NewStore(db, o), h, table.WorkerOptions{
		NumHandlers: r.Handlers, Interval: 50 * time.Millisecond, WorkerHostname: r.Name,
		Observers: []observe.Observer{observe.On(func(l observe.JobLost) { record(`INSERT INTO refused VALUES ($1, $2)`, l.ID) })},
	})
	if err := w.Start(ctx); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// records is a table of runs, and of the process that finished each row. The trigger rejects
// nothing.
const records = `
CREATE UNLOGGED TABLE runs (job bigint, process text);
CREATE UNLOGGED TABLE refused (job bigint, process text);
CREATE UNLOGGED TABLE finished (job bigint, state text, claimed_by text, claimed_at timestamptz, finished_by text);
CREATE FUNCTION record_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO finished VALUES (OLD.id, NEW.state, split_part(OLD.worker_hostname, '/', 1), OLD.started_at, current_setting('application_name'));
	RETURN NULL;
END $$;
CREATE TRIGGER record_end AFTER UPDATE ON example_jobs FOR EACH ROW
	WHEN (NEW.state NOT IN ('queued', 'processing')) EXECUTE FUNCTION record_end();`

// process is a worker process of a test.
type process struct {
	*subprocess.Process
	name string
}

// startProcess starts this program as a worker process. The process ends with the test, also if the
// test is killed.
func (s *stage) startProcess(r role) *process {
	s.t.Helper()
	u, err := url.Parse(s.d.URL)
	if err != nil {
		s.t.Fatal("the connection string is no URL")
	}
	query := u.Query()
	query.Set("application_name", r.Name)
	u.RawQuery = query.Encode()
	r.URL = u.String()
	text, err := json.Marshal(r)
	if err != nil {
		s.t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), processVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	p := &process{name: r.Name}
	if p.Process, err = subprocess.Start(cmd, nil); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Kill)
	return p
}

// holds reports whether a process has rows in processing.
func (s *stage) holds(p *process) bool {
	s.t.Helper()
	return s.text(`SELECT EXISTS (SELECT FROM example_jobs WHERE state = 'processing' AND split_part(worker_hostname, '/', 1) = $1)::text`, p.name) == "true"
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatalf("%s cannot be sent %v: %v", p.name, sig, err)
	}
}
