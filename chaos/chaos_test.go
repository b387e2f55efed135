//go:build unix

package chaos

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == WorkerArgument {
		os.Exit(Worker())
	}
	pgtest.Main(m)
}

// small is a run of some seconds.
func small(t *testing.T, faults Faults) Config {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Workers: 3, Writers: 4, Consumers: 3, Duration: 12 * time.Second, Seed: 1, Faults: faults, Program: []string{program, WorkerArgument}}
}

func TestRealRunHolds(t *testing.T) {
	t.Parallel()
	c := small(t, Faults{"kill": 1, "stop": 1, "server-kill": 1})
	c.Workers, c.Writers, c.Consumers, c.Duration = 2, 4, 3, 4*time.Second
	c.Seed = 1955 // all three faults come in the third second
	r := holds(t, c)
	seen := false
	kinds := map[history.Kind]bool{}
	for _, x := range r.Evidence.History.Records() {
		kinds[x.Kind] = true
		if b, ok := x.About.(history.Batch); ok {
			seen = seen || b.Events > 0
		}
	}
	for _, k := range []history.Kind{history.WorkerBegan, history.Owns, history.Leads, history.BatchEnded, history.FaultInjected, history.FaultOver, history.Committed} {
		if !kinds[k] {
			t.Errorf("the history has no %q", k)
		}
	}
	if !seen {
		t.Error("the history has no batch with events")
	}
}

// Processes that run jobs are killed and deployed, and the server is killed.
func TestRunOfJobsHolds(t *testing.T) {
	t.Parallel()
	c := small(t, Faults{"kill": 1, "deploy": 0.5, "server-kill": 1})
	c.Jobs, c.Workers, c.Writers, c.Duration = true, 2, 4, 4*time.Second
	c.Seed = 88 // all three faults come in the third second
	j := jobsHold(t, c)
	if len(j.Outages) == 0 || len(j.Claims) == 0 {
		t.Errorf("%d outages, %d claims of capped queues", len(j.Outages), len(j.Claims))
	}
	ids := map[string]bool{}
	for _, w := range j.Workers {
		ids[w.ID] = true
	}
	for _, x := range j.Runs {
		if !ids[x.Worker] || x.Name == "" {
			t.Fatalf("nobody knows the worker of %+v", x)
		}
	}
}

// Processes that were stopped come back while others run their jobs. A run may end, on a
// busy machine, before one that had jobs in flight has been stopped for long enough.
func TestZombiesWithJobsHold(t *testing.T) {
	tier.Long(t, "TestRunOfJobsHolds, whose processes are killed; package sim has zombies of jobs")
	c := small(t, Faults{"stop": 1})
	c.Jobs, c.Workers, c.Writers = true, 4, 10
	for c.Seed = 1; c.Seed <= 4; c.Seed++ {
		if j := jobsHold(t, c); len(j.Resets) > 0 || t.Failed() {
			return
		}
	}
	t.Error("no job was given to others")
}

// jobsHold runs jobs and returns the evidence.
func jobsHold(t *testing.T, c Config) *history.Jobs {
	t.Helper()
	r := holds(t, c)
	if r.Jobs.Completed == 0 {
		t.Error("no job completed")
	}
	return r.Evidence.Jobs
}

// judged makes a run. If a busy machine leaves it not judged it makes others, three at
// most, each with another seed.
func judged(t *testing.T, c *Config) *oracle.Report {
	t.Helper()
	for range 3 {
		r, err := sim.Judged(func(patience float64) (*oracle.Report, error) {
			c.Patience = patience
			return Run(t.Context(), *c)
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Outcome != oracle.NotJudged {
			return r
		}
		t.Logf("seed %d: %s", c.Seed, r.Verdict)
		c.Seed++
	}
	t.Fatal("none of three runs was judged")
	return nil
}

// holds runs what must hold, and in which each fault that is on happens. On a busy machine
// a run may be over before one of them has come: then it takes another, twice as long.
func holds(t *testing.T, c Config) *oracle.Report {
	t.Helper()
	const most = 3
	for n := 1; ; n, c.Seed, c.Duration = n+1, c.Seed+1, 2*c.Duration {
		r := judged(t, &c)
		if !r.Held {
			t.Errorf("%s\n%+v", r.Verdict, r.Invariants)
		}
		missing := 0
		for _, f := range r.Faults {
			if c.Faults[f.Name] == 0 {
				t.Errorf("%s happened %d times, and was off", f.Name, f.Count)
			}
			if f.Count == 0 {
				t.Logf("seed %d: no %s", c.Seed, f.Name)
				missing++
			}
		}
		if missing == 0 || t.Failed() {
			return r
		}
		if n == most {
			t.Fatal("none of three runs had all faults")
		}
	}
}

// Workers whose connections die in silence go on with others.
func TestSilentDeathsHold(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; package sim has connections that die in silence")
	if r := holds(t, small(t, Faults{"hole": 1})); len(r.Faults) != 1 {
		t.Errorf("the faults that happened: %v", r.Faults)
	}
}

// Workers that are led to a lagging replica find out.
func TestMisledWorkersHold(t *testing.T) {
	tier.Long(t, "TestServerFaults, which leads a client to a standby")
	c := small(t, Faults{"standby": 1})
	r := judged(t, &c)
	if !r.Held {
		t.Errorf("%s\n%+v", r.Verdict, r.Invariants)
	}
	for _, l := range r.Knobs {
		if l.Name == "not standby" {
			t.Skip(l.Value)
		}
	}
	if len(r.Faults) != 1 || r.Faults[0].Count == 0 {
		t.Errorf("the faults that happened: %v", r.Faults)
	}
}

// Worker processes whose handlers end their transaction end with the error that
// says so, and others find the consumers repaired.
func TestBrokenRulesHold(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; package sim has handlers that end their transaction")
	r := holds(t, small(t, Faults{"contract": 1}))
	if len(r.Faults) != 1 {
		t.Errorf("the faults that happened: %v", r.Faults)
	}
	var ended, broke int
	for _, b := range r.Evidence.Breaches {
		ended += one(b.Ended)
	}
	for _, x := range r.Evidence.Exits {
		broke += one(x.Asked == history.ExitBroke)
	}
	if ended == 0 || broke < ended {
		t.Errorf("handlers ended %d transactions, and %d workers ended with the error for that", ended, broke)
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// An operator changes the number of partitions, and processes are killed in the middle of
// splits and merges. A run may end, on a busy machine, before there is one of all.
func TestRescaledRunHolds(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; internal/e2e has TestRescalingIsCutOffAnywhere")
	c := small(t, Faults{rescale: 3, "kill": 0.5})
	happened := map[string]int64{"units split": 0, "units merged": 0, string(killedHalfway): 0}
	for c.Seed = 1; c.Seed <= 10; c.Seed++ {
		r := holds(t, c)
		for _, s := range r.Reached {
			if _, awaited := happened[s.Name]; awaited {
				happened[s.Name] += s.Count
			}
		}
		happened[string(killedHalfway)] += r.Count(killedHalfway)
		least := slices.Min(slices.Collect(maps.Values(happened)))
		if t.Logf("happened: %v", happened); least > 0 || t.Failed() {
			return
		}
	}
	t.Errorf("something never happened: %v", happened)
}

// Workers go on from a copy of the server that was put back under them.
func TestRestoredRunHolds(t *testing.T) {
	tier.Long(t, "TestServerFaults, which puts a copy back")
	r := holds(t, small(t, Faults{"restore": 1}))
	if len(r.Faults) != 1 || int64(len(r.Evidence.Restores)) != r.Faults[0].Count {
		t.Errorf("the faults that happened: %v, those that the oracle knows of: %v", r.Faults, r.Evidence.Restores)
	}
}

// Every fault of the server happens, and what was acknowledged before is there
// after it; what was acknowledged since a copy was made is not, once that is put
// back.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	s, cannot, err := startCluster(t.Context(), 40, AllFaults(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 && cannot["full-disk"] != nil {
		t.Errorf("the disk cannot be filled: %v", cannot["full-disk"])
	}
	if err := s.exec(t.Context(), `CREATE TABLE kept (fault TEXT)`); err != nil {
		t.Fatal(err)
	}
	rows := append(eventFaults.ofServer(), terminateRows...)
	happened := map[history.Fault]int{}
	f := &serverFaults{cluster: s, dice: rand.New(rand.NewPCG(1, 2)), copying: &sync.RWMutex{}, hurry: 4, count: func(f history.Fault, _ string) { happened[f]++ }}
	if cannot["standby"] == nil {
		f.links = linked(t, s)
	}
	f.env.Save = func(ctx context.Context, change func(context.Context) error) (bool, error) { return true, change(ctx) }
	f.env.PutBack = func(ctx context.Context, change func(context.Context) error) (bool, error) {
		return true, errors.Join(s.exec(ctx, `INSERT INTO kept VALUES ('since the copy')`), change(ctx))
	}
	var want []string
	for _, name := range []string{"promote", "server-kill", "server-kill", "backend-kill", "connection-limit", "full-disk", "standby", "terminate", "restore", "full-disk", "promote"} {
		if cannot[name] != nil {
			continue
		}
		victim := connect(t, s, "sim worker 1.1")
		if _, err := victim.Exec(t.Context(), `INSERT INTO kept VALUES ($1::text)`, name); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
		row := rows[slices.IndexFunc(rows, func(r faultRow) bool { return r.Name == name })]
		// In a short pause a busy machine may make no connection that is led astray.
		for again := true; again; again = name == "standby" && happened[lags] == 0 {
			if err := row.server(f, t.Context()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if name != "full-disk" && name != "standby" && victim.Ping(t.Context()) == nil {
			t.Errorf("%s: a session has outlasted it", name)
		}
		var kept []string
		after := connect(t, s, "after")
		if err := after.QueryRow(t.Context(), `SELECT array_agg(fault) FROM kept`).Scan(&kept); err != nil {
			t.Fatal(err)
		}
		slices.Sort(kept)
		if sorted := slices.Sorted(slices.Values(want)); !slices.Equal(kept, sorted) {
			t.Fatalf("after %s: kept %v, want %v", name, kept, sorted)
		}
	}
	// The postmaster is about to go when somebody asks whether it is there.
	if err := syscall.Kill(s.primary.PID(), syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := s.well(t.Context()); err != nil {
		t.Errorf("after an end nobody waited for: %v", err)
	}
	for _, r := range rows {
		if cannot[r.Name] == nil && happened[r.Counts[0]] == 0 {
			t.Errorf("%s was not counted", r.Name)
		}
	}
	if cannot["full-disk"] == nil && (happened[fullDisks] != 2 || happened[fullDiskEnds] == 0) {
		t.Errorf("%d of 2 disks were full, and ended %d servers", happened[fullDisks], happened[fullDiskEnds])
	}
}

// linked is a link to the primary that somebody connects through all the time.
func linked(t *testing.T, s *cluster) func() []*network.Link {
	t.Helper()
	l, err := s.linkToPrimary(1, "worker 1.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	ctx, cancel := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() {
		for backoff.Sleep(ctx, 20*time.Millisecond) {
			if c, err := pgx.Connect(ctx, s.urlThrough("postgres", l.Ports())); err == nil {
				_ = c.Close(ctx)
			}
		}
	})
	t.Cleanup(client.Wait)
	t.Cleanup(cancel)
	return func() []*network.Link { return []*network.Link{l} }
}

// connect opens a session as the workers do.
func connect(t *testing.T, s *cluster, name string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.url("postgres")+" application_name='"+name+"'")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// Of a deck every card comes up as often as it is in it, and only those of the
// actor.
func TestDeck(t *testing.T) {
	d := Faults{"kill": 1, "stop": 0.5, "promote": 1}.deck(rand.New(rand.NewPCG(1, 2)), eventFaults.ofProcesses())
	n := map[string]int{}
	for range 30 {
		row, _ := d.Deal()
		n[row.Name]++
	}
	if want := map[string]int{"kill": 20, "stop": 10}; !maps.Equal(n, want) {
		t.Errorf("dealt %v, want %v", n, want)
	}
	none := Faults{"promote": 1}.deck(rand.New(rand.NewPCG(1, 2)), eventFaults.ofProcesses())
	if row, ok := none.Deal(); ok {
		t.Errorf("dealt %q from an empty deck", row.Name)
	}
}
