package sim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/events"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

// small is a run of a few seconds, too short for more kinds of faults.
func small(t *testing.T) Config {
	faults := Faults(false).All()
	faults["crash"] = 6
	for _, k := range slices.Concat(serverSide, operators, crashingServer, listeners, shifting) {
		delete(faults, k)
	}
	return Config{URL: pgtest.Server(t).URL(""), Workers: 3, Writers: 6, Consumers: 3, Duration: 4 * time.Second, Seed: 1, Faults: faults, made: new([]string)}
}

// holds makes runs that must hold, five at most, each with another seed and twice as long as
// the one before. It ends when seen returns "": all that the test is about has happened. A
// busy machine may have no time for what is rare in a short run, and none to judge one.
func holds(t *testing.T, c Config, seen func(*oracle.Report) (missing string)) {
	t.Helper()
	missing := "a run that was judged"
	for last := c.Seed + 5; c.Seed < last && missing != ""; c.Seed, c.Duration = c.Seed+1, 2*c.Duration {
		r, err := Judged(func(patience float64) (*oracle.Report, error) {
			c.Patience = patience
			return Run(t.Context(), c)
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Outcome == oracle.NotJudged {
			t.Logf("seed %d: %s", c.Seed, r.Verdict)
			continue
		}
		if !r.Held {
			t.Fatalf("seed %d: %s\n%+v", c.Seed, r.Verdict, r.Invariants)
		}
		missing = seen(r)
	}
	if missing != "" {
		t.Errorf("never happened: %s", missing)
	}
}

// each is what holds checks if each of the faults has to happen in one of the runs.
func each(faults ...history.Fault) func(*oracle.Report) string {
	return func(r *oracle.Report) string {
		faults = slices.DeleteFunc(faults, func(f history.Fault) bool { return r.Count(f) > 0 })
		return list(faults)
	}
}

// anyOf is what holds checks if one of the faults has to happen.
func anyOf(faults ...history.Fault) func(*oracle.Report) string {
	return func(r *oracle.Report) string {
		if slices.ContainsFunc(faults, func(f history.Fault) bool { return r.Count(f) > 0 }) {
			return ""
		}
		return list(faults)
	}
}

// counts are what the faults of these names are counted as.
func counts(all fault.Table, names ...string) (counted []history.Fault) {
	for _, r := range all {
		if slices.Contains(names, r.Name) {
			counted = append(counted, r.Counts...)
		}
	}
	return counted
}

// unseen lists what was not seen, in order.
func unseen(seen map[string]bool) (missing []string) {
	for what, is := range seen {
		if !is {
			missing = append(missing, what)
		}
	}
	slices.Sort(missing)
	return missing
}

func list(faults []history.Fault) string {
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}

func TestRealRunHolds(t *testing.T) {
	t.Parallel()
	c := small(t)
	happened := each(append(counts(events.Faults, "rollback", "delay", "redraw", "idle", "savepoint", "stale", "prepare", "lose"), "transactions committed", "transactions over several aggregates")...)
	shown := 0
	c.Progress = func(stage.Progress) { shown++ }
	seen := map[string]bool{} // in one of the runs
	holds(t, c, func(r *oracle.Report) string {
		for what, is := range map[string]bool{"a crash": r.Crashes() > 0, "a void position": r.Void > 0, "an event handled by each consumer": r.Fewest().Events > 0} {
			seen[what] = seen[what] || is
		}
		if shown == 0 {
			t.Error("no progress was seen")
		}
		historyHolds(t, r, seen)
		return strings.TrimSpace(strings.Join(append(unseen(seen), happened(r)), " "))
	})
	nothingLeft(t, c)
}

// serverSide are the faults that come from the server, handlers and operators.
var serverSide = []string{"kill-batch", "kill-lock", "kill-scan", "unregister", "error", "panic", "pause"}

// operators are those of operators who move consumers.
var operators = []string{"reset", "forward", "skip"}

func TestRunHoldsWhenOperatorsMoveConsumers(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; package ops has each operation beside a worker")
	c := small(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1, "delay": 2, "crash": 1}
	for _, k := range operators {
		c.Faults[k] = 2
	}
	moving := counts(events.Faults, operators...)
	moves := anyOf(moving...)
	holds(t, c, func(r *oracle.Report) string {
		// One of a consumer that is split is one of each unit.
		moved := int64(0)
		for _, f := range moving {
			moved += r.Count(f)
		}
		if int64(len(r.Evidence.Operations)) < moved {
			t.Errorf("%d operations in the database, %d counted: they are to be as many, or more", len(r.Evidence.Operations), moved)
		}
		return moves(r)
	})
	nothingLeft(t, c)
}

func TestRunHoldsWhenTheServerEndsBackendsAndHandlersFail(t *testing.T) {
	tier.Long(t, "TestRealRunHolds and TestRunHoldsWhenTheServerCrashes")
	c := small(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1}
	for _, k := range serverSide {
		c.Faults[k] = 2
	}
	fromOutside := anyOf(counts(events.Faults, "kill-batch", "kill-lock", "kill-scan", "unregister", "pause")...)
	failures := anyOf(counts(events.Faults, "error", "panic")...)
	holds(t, c, func(r *oracle.Report) string {
		if r.Crashes() > 0 || r.Count(counts(events.Faults, "delay")[0]) > 0 || r.Count(history.Cuts) > 0 {
			t.Errorf("what was not on happened: %+v", r.Counts)
		}
		return cmp.Or(fromOutside(r), failures(r))
	})
	nothingLeft(t, c)
}

// crashingServer are the faults of a server that crashes and loses what is not safe.
var crashingServer = []string{"server-crash", "backend-crash", "async-writers", "async-workers"}

// mortal is a small run on a server of its own, which may be killed.
func mortal(t *testing.T) Config { return mortalWith(t, nil) }

func mortalWith(t *testing.T, settings map[string]string) Config {
	c := small(t)
	server := pgtest.OwnServer(t, settings)
	c.URL, c.Server = server.URL(""), server
	return c
}

func TestRunHoldsWhenTheServerCrashes(t *testing.T) {
	t.Parallel()
	c := mortal(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1, "delay": 1, "prepare": 1, "lose": 1, "server-crash": 4, "backend-crash": 4, "async-writers": 1, "async-workers": 1}
	crashes, brokenOff, unsure := anyOf(history.ServerCrashes, stage.BackendCrashes), each(stage.TransactionsBrokenOff), 0
	holds(t, c, func(r *oracle.Report) string {
		missing := cmp.Or(crashes(r), brokenOff(r))
		if unsure += len(r.Evidence.Unsure); missing == "" && unsure == 0 {
			return "a transaction committed asynchronously before a crash"
		}
		return missing
	})
}

// shifting are the faults in which what a worker stands on is no longer what it
// was.
var shifting = []string{"hole", "contract", "restore", "standby", "split"}

func TestRunHoldsWhenConnectionsDieInSilence(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; sim/network has TestSwallowedConnectionIsSilent, internal/e2e TestAllConnectionsDieInSilence")
	runHoldsWith(t, "hole", 10, history.Swallowed)
}

// A worker breaks the rules once in its life: often enough that some do, however
// few events a busy machine manages.
func TestRunHoldsWhenHandlersBreakTheRules(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; internal/e2e has TestHandlerThatEndsItsTransactionAndFailsLater")
	runHoldsWith(t, "contract", 30, history.Breaches)
}

// runHoldsWith makes a run with one fault, which must happen.
func runHoldsWith(t *testing.T, fault string, intensity float64, counted history.Fault) {
	t.Helper()
	c := small(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1, fault: intensity}
	holds(t, c, each(counted))
	nothingLeft(t, c)
}

func TestRunHoldsWhenAnotherServerAnswersAndACopyIsPutBack(t *testing.T) {
	tier.Long(t, "TestRunIsNotJudgedWhenTheCopyTakesTooLong; sim/events has TestCopyThatForgets, internal/e2e TestAPoolThatStillLeadsToTheAbandonedPrimary")
	c := small(t)
	server := pgtest.OwnServer(t, map[string]string{"wal_level": "replica", "max_wal_senders": "8", "wal_retrieve_retry_interval": "200ms"})
	c.URL, c.Server, c.Duration = server.URL(""), server, 6*time.Second
	c.Faults = Intensities{"rollback": 1, "stale": 1, "prepare": 1, "restore": 3, "standby": 3, "split": 3}
	holds(t, c, anyOf(append(counts(events.Faults, "standby", "split"), "servers stopped for a cold copy")...))
	nothingLeft(t, c)
}

// listeners are the faults of those that listen.
var listeners = []string{"kill-listener", "notify-lost", "notify-late"}

func TestRunHoldsWhenNotificationsAreLost(t *testing.T) {
	tier.Long(t, "TestRealRunHolds; sim/network has TestFilterDropsAndHoldsNotifications, whose filter loses them")
	c := small(t)
	c.Faults = Intensities{"rollback": 1, "stale": 1}
	for _, k := range listeners {
		c.Faults[k] = 3
	}
	holds(t, c, anyOf(counts(events.Faults, listeners...)...))
	nothingLeft(t, c)
}

func TestOnlyAnOwnServerIsCrashed(t *testing.T) {
	t.Parallel()
	c := small(t)
	c.Workers, c.Writers, c.Consumers, c.Duration = 1, 2, 1, time.Second
	for _, name := range crashingServer {
		c.Faults[name] = 5
	}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []history.Fault{history.ServerCrashes, stage.BackendCrashes, stage.AsyncCommits, stage.AsyncWorkers} {
		if r.Count(f) > 0 {
			t.Errorf("%s: %d, on a server that is not the run's own", f, r.Count(f))
		}
	}
	if !slices.ContainsFunc(r.Knobs, func(l oracle.Line) bool { return l.Name == "not crashed" }) {
		t.Errorf("the report does not say that the server is not crashed: %+v", r.Knobs)
	}
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	c := small(t)
	c.Workers, c.Writers, c.Consumers, c.Duration = 1, 1, 1, time.Minute
	c.Progress = func(p stage.Progress) {
		if p.Crashes > 0 {
			interrupt() // in the middle of it
		}
	}
	r, err := Run(ctx, c)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run returned %v, want context.Canceled", err)
	}
	if r == nil || !r.Interrupted || r.Held || r.Events == 0 || r.Crashes() == 0 {
		t.Errorf("the partial report: %+v", r)
	}
	nothingLeft(t, c)
}

// nothingLeft searches for what the runs of c leave on the server.
func nothingLeft(t *testing.T, c Config) {
	t.Helper()
	if len(*c.made) == 0 {
		t.Error("no run has made a database")
	}
	conn, err := pgx.Connect(t.Context(), pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	eventually(t, "databases, sessions and prepared transactions of the run to be gone", func() bool {
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_database WHERE datname = ANY ($1::text[]))
			+ (SELECT count(*) FROM pg_stat_activity WHERE datname = ANY ($1::text[])) + (SELECT count(*) FROM pg_prepared_xacts WHERE database = ANY ($1::text[]))`,
			*c.made).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no workers":            {func(c *Config) { c.Workers = 0 }, "-workers 0 is out of range"},
		"too many writers":      {func(c *Config) { c.Writers = 201 }, "-writers 201 is out of range"},
		"no consumers":          {func(c *Config) { c.Consumers = -1 }, "-consumers -1 is out of range"},
		"too short":             {func(c *Config) { c.Duration = time.Millisecond }, "-duration 1ms is out of range"},
		"no connection string":  {func(c *Config) { c.URL = "postgres://user:hunter2@host:port/" }, "connection string"},
		"no room on the server": {func(c *Config) { c.Workers, c.Writers = 50, 200 }, "raise its max_connections"},
	} {
		t.Run(name, func(t *testing.T) {
			config := small(t)
			c.change(&config)
			r, err := Run(t.Context(), config)
			if err == nil || r != nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error gives away the password: %v", err)
			}
		})
	}
}

func TestCommandRepeatsTheRun(t *testing.T) {
	c := DefaultConfig()
	c.Seed = 7
	if got, want := c.command(), "go run ./cmd/sim -seed 7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c.Workers, c.Writers, c.Consumers, c.Duration = 1, 2, 3, 90*time.Second
	c.Faults = Intensities{"cut": 0.5, "crash": 2, "move": 0}
	if got, want := c.command(), "go run ./cmd/sim -workers 1 -writers 2 -consumers 3 -duration 1m30s -faults crash=2,cut=0.5 -seed 7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
