package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

type firstJob struct{}

func (firstJob) Kind() string { return "first" }

type secondJob struct{}

func (secondJob) Kind() string { return "second" }

// flow starts a run of two steps.
func (s site) flow(t testing.TB) (run string) {
	t.Helper()
	f := flow.New[int]("two")
	first := flow.Add[flow.None](f, "first", func(int) firstJob { return firstJob{} })
	flow.Add[flow.None](f, "second", func(int) secondJob { return secondJob{} }, flow.After(first))
	started, err := f.Start(t.Context(), flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(started.Run)
}

// Runs of flows are shown, cancelled, and go on from a step.
func TestFlows(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	run := s.flow(t)
	s.expect(t, exitDone, words("jobs flows list --flow two --state running"), run, "two")
	s.expect(t, exitDone, words("jobs flows list --state failed"), "none")
	s.expect(t, exitUnable, words("jobs flows list --state odd"), "odd")
	s.expect(t, exitUnable, words("jobs flows list --limit 0"), "limit is 0")
	s.expect(t, exitDone, line("jobs flows show %s", run), "first", "second", "available")
	s.expect(t, exitDone, line("jobs flows show %s -o json", run), `"steps":[{`, `"name":"second"`)
	s.expect(t, exitDone, line("jobs flows show %s --dot", run), "digraph", "second", "\n\tlabel=")
	s.expect(t, exitRefused, words("jobs flows show 4711"), "no such run")
	s.expect(t, exitRefused, line("jobs flows retry %s --reason r", run), "has not ended")
	s.expect(t, exitUnable, line("jobs flows cancel %s --reason r", run), "--yes")
	s.ask(t, run, line("jobs flows cancel %s --reason r", run)...).is(t, exitDone, `"flow": "two"`)
	s.expect(t, exitRefused, line("jobs flows cancel %s --reason r --yes", run), "it is cancelled")
	s.expect(t, exitUnable, line("jobs flows retry %s --from first --reason r", run), "cannot be undone")
	s.ask(t, run, line("jobs flows retry %s --from first --reason r", run)...).is(t, exitDone, `"from": ["first"]`, "done twice")
	s.expect(t, exitDone, line("jobs flows show %s", run), "running")
	s.expect(t, exitRefused, words("jobs flows cancel 4711 --reason r --yes"), "no such run")
}

func TestRetentionAndRetire(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash) VALUES ('nightly', 'h')`)
	s.expect(t, exitUnable, words("jobs retention mail 0 --reason r"), "cannot be undone") // it deletes the history
	s.ask(t, "mail", words("jobs retention mail 72h --reason r")...).is(t, exitDone, `"to": "72h0m0s"`, "also those that have failed")
	s.expect(t, exitRefused, words("jobs retention mail 72h --reason r --yes"), "so already")
	s.expect(t, exitDone, words("jobs queues -o json"), `"retention_seconds":259200`)
	s.expect(t, exitDone, words("jobs retention mail forever --reason r"))
	s.expect(t, exitUnable, words("jobs retention mail none --reason r"), "cannot be undone")
	s.expect(t, exitDone, words("jobs retention mail none --reason r --yes"))
	s.expect(t, exitUnable, words("jobs retention mail -1h --reason r"), "unknown shorthand")
	s.expect(t, exitUnable, words("jobs retention mail soon --reason r"), "or none")
	s.ask(t, "nightly", words("jobs retire nightly --reason r")...).is(t, exitDone)
	s.expect(t, exitRefused, words("jobs retire nightly --reason r --yes"), "no such schedule")
	if out := s.expect(t, exitDone, words("jobs schedules")).out; strings.Contains(out, "nightly") {
		t.Errorf("printed %s", out)
	}
}
