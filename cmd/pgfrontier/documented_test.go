package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
)

// Every command line of the documentation does what it should, one after the other.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	s.append(t, 5)
	s.settle(t, 5)
	s.place(t, 3)
	s.letter(t, 1, "a", "timeout")
	s.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = 'totals_v1'; UPDATE consumer_dead_letters SET consumer_name = 'totals_v1'`)
	s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["Order"]}', scope_since = 0`)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		VALUES ('totals_v1', 'scope', '{"from": {"types": ["Invoice"]}, "to": {"types": ["Order"]}, "position": 3}', 'worker', 'the code selects Order')`)
	s.add(t, "welcome", "failed")
	s.expect(t, exitDone, line("jobs flows cancel %s --reason r --yes", s.flow(t)))
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash) VALUES ('nightly', 'h')`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, consumers) VALUES (gen_random_uuid(), 'pod-7', 1, '{}'); INSERT INTO jobs_workers (worker_id, hostname, pid) VALUES (gen_random_uuid(), 'pod-7', 1)`)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("build.json", []byte(`{"format": 1, "consumers": [{"name": "new", "count": 1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"pgfrontier plan build.json":               exitRefused, // it would begin
		"pgfrontier doctor":                        exitRefused, // no worker leads
		"pgfrontier status -w":                     -1,          // it does not end
		"pgfrontier console":                       -1,
		"pgfrontier console --environment staging": -1,
		"pgfrontier top":                           -1,
	}
	for _, l := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(l, "pgfrontier compare ") {
			want[strings.Join(split(t, l), " ")] = -1 // it waits until totals_v2 has caught up
		}
	}
	ran := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "pgfrontier ") {
			continue
		}
		args := split(t, line)
		checkLine(t, line)
		code := want[strings.Join(args, " ")]
		if code < 0 {
			continue
		}
		if got := s.run(t, args[1:]...); got.code != code {
			t.Errorf("%s: status %d, want %d\n%s%s", strings.TrimSpace(line), got.code, code, got.out, got.talk)
		}
		ran++
	}
	if ran < 30 {
		t.Errorf("%d lines were found", ran)
	}
	if makes := fmt.Sprintf("`doctor` makes %d checks", len(serverChecks)+len(tableChecks)); !strings.Contains(string(text), makes) {
		t.Errorf("docs/command-line.md does not say %q", makes)
	}
	for _, c := range slices.Concat(serverChecks, tableChecks) {
		if !strings.Contains(string(text), "`"+c.name+"`") {
			t.Errorf("docs/command-line.md does not name the check %q", c.name)
		}
	}
	verbs := 0
	for _, c := range (&app{}).root().Commands() {
		if verbs++; !strings.Contains(string(text), "pgfrontier "+c.Name()) && c.Name() != "completion" && c.Name() != "help" {
			t.Errorf("docs/command-line.md has no line of the verb %s", c.Name())
		}
	}
}
