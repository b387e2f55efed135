package main

import (
	"testing"

	"github.com/pgfrontier/worker/migrations"
)

// The verbs find a worker by what the lists show, and ask it to drain.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	for verb, table := range map[string]string{"": "worker_nodes", "jobs ": "jobs_workers"} {
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
		s.expect(t, exitRefused, drain("h/7"), "drains already")
		id := value[string](t, s, `SELECT worker_id::text FROM `+table+` WHERE pid = 8 LIMIT 1`)
		s.expect(t, exitDone, drain(id), "done")
		if drained() != 2 {
			t.Errorf("%d drain", drained())
		}
		s.expect(t, exitDone, words(verb+"workers"), "h/7: asked to drain")
		s.expect(t, exitDone, append(words(verb+"workers"), "-o", "json"), `"drain_requested_at":"`)
	}
}
