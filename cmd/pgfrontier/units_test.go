package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// divided is the consumer "c" in two units.
type divided struct{ counter }

func (divided) Partitions() consumer.Partitions { return consumer.Partitions{Count: 2} }

// wishing is the consumer "c" in some units.
type wishing struct {
	counter
	count int
}

func (w wishing) Partitions() consumer.Partitions { return consumer.Partitions{Count: w.count} }

// Two builds that demand different numbers keep the units as they are, and every report explains it.
func TestWorkersDisagreeOnPartitions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	finds := func(level string, says ...string) func() bool {
		return func() bool {
			f := s.found(t, "partitions")
			return f.Level == level && !slices.ContainsFunc(says, func(text string) bool { return !strings.Contains(f.Says, text) })
		}
	}
	if f := s.found(t, "partitions"); f.Level != levelOK || f.Says != "no consumer is in partitions" {
		t.Errorf("of nothing: %+v", f)
	}
	s.append(t, 3)
	s.workWith(t, divided{})
	await(t, "two units", finds(levelOK, "c is in 2"))
	s.expect(t, exitDone, words("consumer c -o json"), `"partitions_disagreement":null`)
	s.expect(t, exitDone, words("workers -o json"), `"wishes":{"c":{"key":"","partitions":2}}`)

	s.workWith(t, wishing{count: 3})
	await(t, "the disagreement", finds(levelWarn, "c: it stays at 2 partitions, since the workers' builds ask for different counts: ", "asks for 3; ", "asks for 2"))
	s.expectFound(t, "partitions", levelWarn, fmt.Sprintf("/%d asks for 3", os.Getpid()), "pgfrontier partition NAME N")
	s.expect(t, exitDone, words("consumer c"), "demand       it stays at 2 partitions", "asks for 3")
	s.expect(t, exitDone, words("consumer c -o json"), `"partitions_disagreement":"it stays at 2 partitions`)

	s.expect(t, exitDone, words("partition c 3 --reason r"))
	await(t, "three units", finds(levelOK, "c is in 3"))
	if out := s.run(t, "consumer", "c").out; strings.Contains(out, "stays") {
		t.Errorf("a number is fixed:\n%s", out)
	}
	s.expect(t, exitDone, words("partition c 0 --reason r"))
	await(t, "the disagreement again", finds(levelWarn, "c: it stays at ")) // 3, or 2 if a worker was away for a moment
}

// A build without partition support makes a consumer whole again, and every report explains it.
func TestOldWorkerKeepsAConsumerWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.workWith(t, divided{})
	await(t, "two units", func() bool { return s.found(t, "partitions").Says == "c is in 2" })
	s.oldWorker(t)
	s.expectFound(t, "partitions", levelWarn, "c: 1 partition is wanted while a build without partition support runs: ", "pgfrontier partition NAME N")
	s.expectFound(t, "partitions", levelWarn, fmt.Sprintf("/%d asks for 2; old/", os.Getpid()), "deploy")
	s.expect(t, exitDone, words("consumer c"), "has no partition support")
	s.expect(t, exitDone, words("workers -o json"), `"wishes":null`)
	s.expect(t, exitDone, words("partition c 2 --reason r"))
	if f := s.found(t, "partitions"); f.Level != levelOK {
		t.Errorf("a number is fixed: %+v", f)
	}
}

// oldWorker registers a worker that has code for "c" and no partition support.
func (s site) oldWorker(t *testing.T) {
	t.Helper()
	names, err := tables.Parse(store.Names{})
	if err != nil {
		t.Fatal(err)
	}
	session, err := liveness.New(liveness.Config{
		DB: pgdriver.Pool{DB: s.DB}, ID: uuid.New(), Nodes: names.Nodes, Stopped: names.Stopped, Token: names.Token, Column: "consumers", Names: []string{"c"}, Hostname: "old",
		HeartbeatInterval: 100 * time.Millisecond, HeartbeatTimeout: time.Minute, Lock: true,
	}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	if err := session.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A consumer in partitions is shown whole and by its units, and is operated as either.
func TestUnits(t *testing.T) {
	s := newSite(t)
	for i := range 40 {
		if err := s.begin(t, fmt.Sprint("order ", i), 1).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.workWith(t, divided{}, worker.WithFailurePolicy(worker.FailPause))
	await(t, "two units to have handled all", func() bool {
		out := s.run(t, "status").out
		return strings.Contains(out, "2 units") && strings.Contains(out, "c               40       0")
	})
	c := s.expect(t, exitDone, words("status -o json")).data(t)["consumers"].([]any)[0].(map[string]any)
	units := c["units"].([]any)
	if len(units) != 2 || c["state"] != "runs" || c["partitions_wanted"] != 2.0 {
		t.Fatalf("printed %v", c)
	}
	unit := units[1].(map[string]any)["name"].(string)
	if u := units[1].(map[string]any); u["position"] != 40.0 || u["state"] != "runs" || u["worker"] == nil || u["partition"] == "" {
		t.Errorf("printed %v", u)
	}
	s.expect(t, exitDone, words("consumer c"), "UNIT", "NEXT OF", unit, "2 wanted, 0 fixed")
	s.expect(t, exitDone, []string{"consumer", unit}, "UNIT")
	s.expect(t, exitDone, words("wait c 40"))

	s.expect(t, exitDone, []string{"pause", unit, "--reason", "half"})
	s.expect(t, exitDone, words("status"), "1/2 paused")
	s.expect(t, exitDone, words("consumer c"), "paused")
	s.expect(t, exitDone, words("doctor"), unit+" by ann (half)")
	s.ask(t, unit, "reset", unit, "--to", "beginning", "--reason", "r").is(t, exitDone, "Type "+unit)
	data := s.expect(t, exitDone, words("status -o json")).data(t)["consumers"].([]any)[0].(map[string]any)
	if data["position"] != 0.0 || data["behind"] != 40.0 || data["units"].([]any)[0].(map[string]any)["position"] != 40.0 {
		t.Errorf("after the reset of a unit: %v", data)
	}
	next := value[int64](t, s, `SELECT min(global_position) FROM events`)
	s.expect(t, exitDone, []string{"consumer", "c"}, fmt.Sprintf("%s  %8d", unit, next))
	s.expect(t, exitDone, []string{"skip", unit, fmt.Sprint(next), "--reason", "r", "--yes"})
	s.expect(t, exitDone, []string{"operations", "c"}, "skip", "reset", unit)
	s.expect(t, exitDone, []string{"resume", unit, "--reason", "r"})
	s.expect(t, exitDone, words("wait c 40 --timeout 30s"))
	s.expect(t, exitRefused, words("pause c#0-123 --reason r"), "c#0-123")

	s.expect(t, exitDone, words("partition c 1 --reason r"))
	await(t, "the units to be merged", func() bool {
		c := s.run(t, "status", "-o", "json").data(t)["consumers"].([]any)[0].(map[string]any)
		return len(c["units"].([]any)) == 0
	})
	s.expect(t, exitDone, words("consumer c"), "1 fixed by an operator")
	s.expect(t, exitDone, words("operations c"), "merge")
}

// A line that fills the terminal keeps its last character.
func TestDraw(t *testing.T) {
	var out strings.Builder
	if err := (&terminal{out: &out}).draw("abcd\nefgh\nijkl"); err != nil || out.String() != "\x1b[H\x1b[Kabcd\r\n\x1b[Kefgh\r\n\x1b[Jijkl"+frameEnd {
		t.Errorf("%v: drew %q", err, out.String())
	}
}
