package main

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
)

// The verbs find a worker by what the lists show, and ask it to drain. The lists tell for a while
// how a worker stopped.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	for verb, table := range map[string]string{"": "worker_nodes", "jobs ": "jobs_workers"} {
		past := map[string]string{"": "consumer_past_workers", "jobs ": "jobs_past_workers"}[verb]
		s.Exec(t, `INSERT INTO `+table+` (worker_id, hostname, pid) VALUES (gen_random_uuid(), 'h', 7), (gen_random_uuid(), 'h', 8), (gen_random_uuid(), 'h', 8)`)
		drained := func() int {
			return value[int](t, s, `SELECT count(*) FROM `+table+` WHERE drain_requested_at IS NOT NULL`)
		}
		drain := func(who string, more ...string) []string {
			return append(append(words(verb+"drain "+who), "--reason", "the node goes"), more...)
		}
		s.expect(t, exitRefused, drain("h/9"), "no such worker")
		s.expect(t, exitUnable, drain("h/8"), "2 workers")
		s.expect(t, exitDone, drain("h/7", "--dry-run"), "drain")
		if drained() != 0 {
			t.Error("a dry run drains")
		}
		s.expect(t, exitDone, drain("h/7"), "done")
		s.expect(t, exitRefused, drain("h/7"), "already drains")
		id := value[string](t, s, `SELECT worker_id::text FROM `+table+` WHERE pid = 8 LIMIT 1`)
		s.expect(t, exitDone, drain(id), "done")
		if drained() != 2 {
			t.Errorf("%d drain", drained())
		}
		s.Exec(t, `UPDATE `+table+` SET status = '{"LoopError": "it hangs", "Queues": [{"Name": "mail", "LastError": "it hangs", "Concurrency": 2, "Overdue": 1}]}' WHERE pid = 7`)
		s.expect(t, exitDone, words(verb+"workers"), append([]string{"h/7: asked to drain"}, map[string][]string{"": {"h/7: it hangs"}, "jobs ": {"h/7: queue mail: it hangs", "h/7: has lost 1 of 2 slots of queue mail"}}[verb]...)...)
		s.expect(t, exitDone, append(words(verb+"workers"), "-o", "json"), `"drain_requested_at":"`, `"stopped":[]`)
		s.Exec(t, `INSERT INTO `+past+` (worker_id, stopped_at, how, hostname, pid, declared_by)
			SELECT gen_random_uuid(), clock_timestamp() - age, how, 'gone', pid, CASE how WHEN 'dead' THEN (SELECT worker_id FROM `+table+` WHERE pid = 7) END
			FROM (VALUES ('stopped', 1, interval '0'), ('failed', 2, '1 minute'), ('drained', 3, '2 minutes'), ('dead', 4, '14 minutes'), ('stopped', 5, '16 minutes'), ('stopped', 6, '-1 hour')) AS v(how, pid, age)`)
		lines := strings.Split(s.expect(t, exitDone, words(verb+"workers"), "STOPPED").out, "\n")
		var told []string
		for _, line := range lines {
			if fields := strings.Fields(line); len(fields) > 3 && strings.HasPrefix(fields[0], "gone/") {
				told = append(told, fields[0]+" "+strings.Join(fields[3:len(fields)-1], " "))
			}
		}
		if got, want := strings.Join(told, "; "), "gone/1 stopped by its program; gone/2 failed, see its log; gone/3 drained; gone/4 declared dead by h/7"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		s.expect(t, exitDone, append(words(verb+"workers"), "-o", "json"), `"how":"dead"`, `"stopped_at":"`, `"declared_by":"`)
	}
}
