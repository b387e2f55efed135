package e2e

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/subprocess"
)

// process is a worker process of a test.
type process struct {
	*subprocess.Process
	name string
	out  pgtest.Lines
}

// startProcess starts this program as a worker process. It ends with the test,
// also if the test is killed.
func startProcess(t *testing.T, d *pgtest.Database, r role) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, program, d, r)
}

// startProgram starts the test program of this commit or of another one.
func startProgram(t *testing.T, program string, d *pgtest.Database, r role) *process {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal("the connection string is no URL")
	}
	query := u.Query()
	query.Set("application_name", r.Name)
	u.RawQuery = query.Encode()
	r.URL = u.String()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{name: r.Name}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if p.Process, err = subprocess.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.name, &p.out)
		}
	})
	return p
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatalf("%s cannot be sent %v: %v", p.name, s, err)
	}
}

// ended waits for the end of the process.
func (p *process) ended(t *testing.T) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(pgtest.Patience):
		t.Fatalf("%s does not end", p.name)
	}
}

// pair is two worker processes that share four consumers, caught in the middle
// of batches.
type pair struct {
	*pgtest.Database
	gate       *sql.Conn // holds the gate until open
	led, other *process
	want       int // events so far
}

const consumersOfPair = 4

// catch starts the two processes, has them handle some events, closes the gate
// and appends more, until all consumers have stopped in the middle of a batch.
func catch(t *testing.T, r role) *pair {
	t.Helper()
	p := &pair{Database: newLog(t)}
	p.Exec(t, `CREATE TABLE signed (id BIGSERIAL, consumer TEXT, position BIGINT, aggregate TEXT, version BIGINT, process TEXT)`)
	r.Consumers = consumersOfPair
	r.Name = "process-one"
	processes := map[string]*process{r.Name: startProcess(t, p.Database, r)}
	r.Name = "process-two"
	processes[r.Name] = startProcess(t, p.Database, r)
	p.awaitOwners(t, 2, 2)
	p.append(t, 30)
	p.awaitAll(t)
	await(t, "a heartbeat of each worker in a life of the server that has a token", func() bool {
		return one[bool](t, p.DB, `SELECT bool_and(age(n.xmin) < age(t.xmin)) FROM worker_nodes AS n, consumer_checkpoints_token AS t`)
	})

	leader := p.leader(t)
	p.led = processes[leader]
	delete(processes, leader)
	for _, other := range processes {
		p.other = other
	}
	if p.led == nil || p.other == nil {
		t.Fatalf("%q leads, which is no process of ours", leader)
	}
	p.close(t)
	p.append(t, 30)
	await(t, "all consumers to be in the middle of a batch", func() bool {
		return one[int](t, p.DB, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, gate) == consumersOfPair
	})
	return p
}

// close waits until no handler holds the gate, and keeps it.
func (p *pair) close(t *testing.T) {
	t.Helper()
	conn, err := p.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock($1::bigint)`, gate); err != nil {
		t.Fatal(err)
	}
	p.gate = conn
}

func (p *pair) open(t *testing.T) {
	t.Helper()
	if _, err := p.gate.ExecContext(t.Context(), `SELECT pg_advisory_unlock($1::bigint)`, gate); err != nil {
		t.Fatal(err)
	}
}

// append commits n events in small transactions, of three aggregates.
func (p *pair) append(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		appendN(t, p.DB, "Order", fmt.Sprint("order ", i%3), 1)
	}
	p.want += n
}

// leader is the process that holds the leader's lock.
func (p *pair) leader(t *testing.T) (name string) {
	t.Helper()
	await(t, "a leader", func() bool {
		name = one[string](t, p.DB, `SELECT coalesce(min(application_name), '') FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted AND datname = current_database()
				AND application_name LIKE 'process-%'`)
		return name != ""
	})
	return name
}

// awaitOwners waits until the consumers are assigned in such shares, the
// largest first.
func (p *pair) awaitOwners(t *testing.T, shares ...int) {
	t.Helper()
	await(t, fmt.Sprintf("shares of %v consumers", shares), func() bool {
		return one[string](t, p.DB, `SELECT coalesce(json_agg(n ORDER BY n DESC), '[]')::text
			FROM (SELECT count(*) AS n FROM consumer_assignments GROUP BY worker_id) AS s`) == strings.ReplaceAll(fmt.Sprint(shares), " ", ", ")
	})
}

// awaitAll waits until every consumer has handled everything, then checks that
// it did so once, and in order within each aggregate.
func (p *pair) awaitAll(t *testing.T) {
	t.Helper()
	await(t, fmt.Sprintf("every consumer to have handled %d events", p.want), func() bool {
		return one[int](t, p.DB, `SELECT count(*) FROM (SELECT FROM signed GROUP BY consumer HAVING count(DISTINCT position) = $1::bigint) AS s`, p.want) == consumersOfPair
	})
	if n := one[int](t, p.DB, `SELECT count(*) - count(DISTINCT (consumer, position)) FROM signed`); n != 0 {
		t.Errorf("%d events were handled again", n)
	}
	if n := one[int](t, p.DB, `SELECT count(*) FROM (
		SELECT version, row_number() OVER (PARTITION BY consumer, aggregate ORDER BY id) AS n FROM signed) AS s WHERE version <> n`); n != 0 {
		t.Errorf("%d events were handled out of their aggregate's order", n)
	}
}

// The other process notices by the lock, long before the leader's heartbeat is
// too old.
func TestProcessKilled(t *testing.T) {
	t.Parallel()
	p := catch(t, role{Heartbeat: 500 * time.Millisecond, HeartbeatTimeout: time.Hour})
	p.led.signal(t, syscall.SIGKILL)
	p.led.ended(t)
	p.open(t) // what the killed one was doing ends in the server, and is rolled back
	p.awaitOwners(t, consumersOfPair)
	p.awaitAll(t)
	p.append(t, 10)
	p.awaitAll(t)
}

// A process that is stopped past its heartbeat's time-out loses its consumers.
// Its batches, open for up to an hour, are ended for it; when it goes on, it
// takes part again.
func TestProcessStoppedAndWoken(t *testing.T) {
	t.Parallel()
	p := catch(t, role{Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: 3 * time.Second, BatchTimeout: time.Hour})
	p.led.signal(t, syscall.SIGSTOP)
	p.awaitOwners(t, consumersOfPair)
	p.open(t)
	p.awaitAll(t)
	if n := strings.Count(p.other.out.String(), "ended the batch of a dead worker"); n < 2 {
		t.Errorf("%d of the stopped process's 2 batches were ended", n)
	}
	p.led.signal(t, syscall.SIGCONT)
	p.awaitOwners(t, 2, 2)
	p.append(t, 30)
	p.awaitAll(t)
	if n := one[int](t, p.DB, `SELECT count(DISTINCT consumer) FROM signed WHERE position > 60 AND process = $1`, p.led.name); n == 0 {
		t.Error("the woken process handles nothing")
	}
}

// A process that is asked to end finishes the batches in flight, and hands its
// consumers over.
func TestProcessTerminated(t *testing.T) {
	t.Parallel()
	p := catch(t, role{Heartbeat: 500 * time.Millisecond, HeartbeatTimeout: time.Hour})
	p.led.signal(t, syscall.SIGTERM)
	await(t, "the process to hear the signal", func() bool { return strings.Contains(p.led.out.String(), terminating) })
	p.open(t)
	p.led.ended(t)
	if code := p.led.State().ExitCode(); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	p.awaitOwners(t, consumersOfPair)
	p.awaitAll(t)
	if n := one[int](t, p.DB, `SELECT count(DISTINCT consumer) FROM signed WHERE position = 31 AND process = $1`, p.led.name); n != 2 {
		t.Errorf("of 2 batches in hand %d were finished", n)
	}
	p.append(t, 10)
	p.awaitAll(t)
}
