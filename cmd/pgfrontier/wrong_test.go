package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/migrations"
)

// What is wrong is a line each, as text and JSON, and nothing if nothing is.
func TestStatusNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	wrong := func() []any { return s.expect(t, exitDone, words("status -o json")).data(t)["wrong"].([]any) }
	for range 2 { // without the tables of jobs, and with them
		if out := s.expect(t, exitDone, words("status")).out; strings.Contains(out, "wrong") || len(wrong()) > 0 {
			t.Errorf("nothing is wrong:\n%s", out)
		}
		if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"LoopError": "it hangs", "Consumers": [{"Name": "c#000-7ff", "LastError": "no\ncustomer"}]}')`)
	s.Exec(t, `INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'ann', 'lunch')`)
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'the post', now() - interval '1 hour')`)
	s.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state) VALUES (1, 'k', 'bill', 5, now(), '{}', now(), 1, 1, 0, 5, 'failed')`)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', now() - interval '1 hour')`)
	s.Exec(t, `UPDATE jobs_schedules SET paused_at = now() - interval '1 day', paused_by = 'ann', paused_reason = 'lunch'; INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`)
	const text = `
wrong        worker h/7: loop: it hangs; see pgfrontier workers
wrong        consumer c#000-7ff: no; customer; see pgfrontier consumer 'c#000-7ff'
wrong        queue mail: paused by ann (lunch); see pgfrontier jobs queues
wrong        queue the post: jobs are due and do not run, for 1h0m, and no worker serves it; see pgfrontier jobs list --queue 'the post' --state available
wrong        queue bill: 1 job has failed for good; see pgfrontier jobs list --queue bill --state failed
wrong        schedule nightly: overdue for 1h0m; see pgfrontier jobs schedules
wrong        schedule nightly: paused for 24h0m by ann (lunch); see pgfrontier jobs schedules
wrong        flows: runs have not ended, and no worker advances them; see pgfrontier jobs flows list --state running

`
	if out := s.expect(t, exitDone, words("status")).out; !strings.Contains(out, text) {
		t.Errorf("printed\n%s\nwithout%s", out, text)
	}
	all := wrong()
	if len(all) != 8 {
		t.Fatalf("printed %v", all)
	}
	for _, one := range all { // where it says more is a command that runs
		w := one.(map[string]any)
		s.expect(t, exitDone, split(t, w["see"].(string))[1:])
	}
	if w := all[4].(map[string]any); fmt.Sprint(w["kind"], w["name"], w["says"]) != "failedbill1 job has failed for good" {
		t.Errorf("printed %v", w)
	}
	s.expect(t, exitDone, words("status --check"), "ok")
}

// The head of top keeps its place on the screen, and says what it leaves out.
func TestBoardNamesWhatIsWrong(t *testing.T) {
	v := shown(1, "a")
	for range 7 {
		v.wrong = append(v.wrong, alarms.Alarm{Kind: alarms.Consumer, Name: "a", Text: strings.Repeat("no ", 100)})
	}
	for high, want := range map[int]int{10: 2, 20: 4, 25: 5, 100: 5} {
		b, _ := after(newBoard(v), resized{60, high})
		lines := strings.Split(b.text(), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "wrong") })
		if len(lines) != want || !strings.HasSuffix(lines[want-1], fmt.Sprintf(" %d more; see pgfrontier status", 7-want+1)) {
			t.Errorf("%d lines: %q", high, lines)
		}
		if first := lines[0]; utf8.RuneCountInString(first) != 60 || !strings.HasSuffix(first, "...; see pgfrontier consumer a") {
			t.Errorf("%q", first)
		}
	}
	v.wrong = v.wrong[:1]
	b, _ := after(newBoard(v), resized{60, 4})
	if text := b.text(); strings.Contains(text, "more") {
		t.Errorf("one is left out:\n%s", text)
	}
}
