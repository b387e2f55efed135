package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 5)
	s.settle(t, 4)
	s.place(t, 3)
	s.expect(t, exitDone, words("status"), "head 5, settled 4", "c                3       2", "unowned")
	data := s.expect(t, exitDone, words("status -o json")).data(t)
	c := data["consumers"].([]any)[0].(map[string]any)
	if c["name"] != "c" || c["position"] != 3.0 || c["behind"] != 2.0 || c["state"] != "unowned" || c["paused"] != nil || c["worker"] != nil {
		t.Errorf("printed %v", c)
	}
	if log := data["log"].(map[string]any); log["head"] != 5.0 {
		t.Errorf("printed %v", log)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status, heartbeat_at) VALUES (gen_random_uuid(), 'h', 7, '{"Leader": true}', now() - interval '1 hour')`)
	s.expect(t, exitDone, words("status"), "0, and 1 silent, none leads")
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status, heartbeat_at) VALUES (gen_random_uuid(), 'h', 8, '{"Leader": true}', now())`)
	s.expect(t, exitDone, words("status"), "1, and 1 silent, led by h/8")
	if out := s.expect(t, exitDone, words("workers")).out; strings.Count(out, "leads") != 1 {
		t.Errorf("not one worker leads:\n%s", out)
	}
	s.expect(t, exitDone, words("status -o json"), `"workers":1`, `"silent":1`, `"leaders":["h/8"]`)
}

// The check has status 1 while an event waits for too long, or a transaction is open for
// too long.
func TestStatusCheck(t *testing.T) {
	s := newSite(t)
	s.append(t, 2)
	s.place(t, 1)
	s.expect(t, exitDone, words("status --check"), "ok")
	s.Exec(t, `UPDATE events SET created_at = now() - interval '10 minutes'`)
	s.expect(t, exitRefused, words("status --check"), "consumer c", "10m", "above position 1")
	s.expect(t, exitDone, words("status --check --max-age 1h"), "ok")
	data := s.expect(t, exitRefused, words("status --check -o json")).data(t)
	if data["ok"] != false || len(data["reasons"].([]any)) != 1 {
		t.Errorf("printed %v", data)
	}
	s.settle(t, 2)
	s.expect(t, exitDone, words("reset c --to 2 --reason r --yes"))
	s.expect(t, exitDone, words("status --check -o json"), `"reasons":[]`)
	s.begin(t, "x", 1)
	await(t, "the transaction to be old", func() bool { return s.run(t, words("status --check --max-age 50ms")...).code == exitRefused })
	s.expect(t, exitRefused, words("status --check --max-age 50ms"), "held the log back")
}

// A watch shows the view again and again, until it is interrupted, which is no error.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &counting{line: "CONSUMER", until: 3, then: cancel}
	code := run(ctx, words("status -w --every 100ms"), place{in: strings.NewReader(""), out: out, talk: &bytes.Buffer{}, getenv: func(key string) string { return s.env[key] }, live: true})
	if code != exitDone || !strings.Contains(out.String(), "EV/S") || strings.Count(out.String(), "\x1b[H\x1b[2J") != 3 {
		t.Errorf("status %d, printed %q", code, out.String())
	}
}

// counting calls then when a line was printed so many times.
type counting struct {
	bytes.Buffer
	line  string
	until int
	then  func()
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Buffer.Write(p)
	if strings.Count(c.String(), c.line) == c.until {
		c.then()
	}
	return n, err
}

// Names and texts from the database reach a terminal as printable characters.
func TestHostileTexts(t *testing.T) {
	s := newSite(t)
	s.place(t, 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, build, status) VALUES (gen_random_uuid(), E'h\x1b]0;owned\x07', 7, E'b\nFAIL', '{"FrontierError": "\u009b31m"}')`)
	s.Exec(t, `INSERT INTO consumer_past_workers (worker_id, stopped_at, how, hostname, build) VALUES (gen_random_uuid(), clock_timestamp(), 'stopped', E'g\x1b]0;owned\x07', E'b\nFAIL')`)
	s.append(t, 2)
	s.letter(t, 1, "\x1b[2J", "\x1b]0;owned\x07\n0 OK")
	s.Exec(t, `UPDATE events SET event_type = E'e\x1b[1m', aggregate_id = E'i\x1b[1m', payload = E'p\\033[2J'::bytea, metadata = '{"m": "\u009b31m"}'; UPDATE consumer_dead_letters SET event_type = E'e\x1b[1m'`)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', E'k\x1b[1m', '{"d": "\u009b31m"}', E'eve\x1b[1m', E'r\u202e')`)
	s.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = E'c\x1b[2J\u202e', paused_at = now(), paused_by = E'eve\x1b[2J', paused_reason = E'a\nb'`)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = E'c\x1b[2J\u202e'`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT E'c\x1b[2J\u202e', worker_id FROM worker_nodes`)
	s.Exec(t, `SET application_name = 'x'`)
	hostile := s.DB
	tx, err := hostile.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT set_config('application_name', E'app\x1b[2J', false), nextval('events_global_position_seq') /* \x1b[2J */`); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		words("status"), words("workers"), {"consumer", "c"}, words("doctor"), words("status -o json"), words("workers -o json"), words("operations"), words("operations -o json"),
		words("blocked --queries"), words("blocked --queries -o json"), words("status --check --max-age 1ms"), words("doctor -o json"), words("gaps c"), {"pause", "c\x1b[2J", "--reason", "r"}, {"\x1b[2J"},
	} {
		line := strings.Join(args, " ")
		got := s.run(t, args...)
		for l := range strings.Lines(got.out + got.talk) {
			if clean(strings.TrimSuffix(l, "\n")) != strings.TrimSuffix(l, "\n") {
				t.Errorf("%s printed %q", line, l)
			}
		}
	}
	s.expect(t, exitDone, words("workers"), `h\u001b]0;owned`, `\u009b31m`, `g\u001b]0;owned`)
}

// The worker of a consumer may be dead.
func TestSilentWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id) VALUES (gen_random_uuid()); INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'c', worker_id FROM worker_nodes`)
	s.expect(t, exitDone, words("status"), "runs")
	s.Exec(t, `UPDATE worker_nodes SET heartbeat_at = now() - interval '1 minute'`)
	s.expect(t, exitDone, words("status"), "silent")
	s.expect(t, exitDone, words("consumer c -o json"), `"state":"silent"`)
	s.Exec(t, `DELETE FROM worker_nodes`)
	s.expect(t, exitDone, words("status"), "silent")
}

// A page of operations follows another.
func TestPagesOfOperations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	s.expect(t, exitDone, words("pause c --reason first"))
	s.expect(t, exitDone, words("resume c --reason second"))
	id := value[int64](t, s, `SELECT max(id) FROM consumer_operations`)
	got := s.expect(t, exitDone, line("operations --before %d", id), "first")
	if strings.Contains(got.out, "second") {
		t.Errorf("printed\n%s", got.out)
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 9)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, closed_at)
		VALUES ('c', gen_random_uuid(), 3, 5, 3, 'open', 6, 6, '2026-01-02', NULL), ('c', '00000000-0000-0000-0000-000000000000', 7, 7, 1, 'void', 8, 8, '2026-01-02', now())`)
	s.expect(t, exitDone, words("gaps c"), "3     5        3  open", "an operator")
	if out := s.expect(t, exitDone, words("gaps c --open")).out; strings.Contains(out, "void") {
		t.Errorf("--open shows\n%s", out)
	}
	s.expect(t, exitDone, words("gaps c --limit 1 -o json"), `"state":"void"`)
}

// The session that was shown is ended, and no later one.
func TestBlocked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.expect(t, exitDone, words("blocked"), "no transaction")
	tx := s.begin(t, "x", 1)
	var pid int
	if err := tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	s.expect(t, exitDone, words("blocked"), fmt.Sprint(pid), "idle in transaction", "pg_terminate_backend")
	s.expect(t, exitDone, words("blocked --queries"), "pg_backend_pid()")
	s.expect(t, exitDone, words("blocked --queries -o json"), "pg_backend_pid()")
	for _, line := range []string{"blocked", "blocked -o json", "doctor -o json"} {
		if out := s.run(t, words(line)...).out; !strings.Contains(out, "idle in transaction") && line != "doctor -o json" || strings.Contains(out, "pg_backend_pid()") {
			t.Errorf("%s shows a statement that nobody asked for, or nothing: %s", line, out)
		}
	}
	end := []string{"blocked", "--reason", "nobody waits for it", "--terminate"}
	s.expect(t, exitUnable, words("blocked --terminate 1"), "--reason")
	s.expect(t, exitRefused, append(end, "1"), "no transaction of pid 1")
	end = append(end, fmt.Sprint(pid))
	s.expect(t, exitUnable, end, "--yes")
	s.expect(t, exitDone, append(end, "--dry-run"), "would record", fmt.Sprint(pid))
	s.ask(t, "no", end...).is(t, exitRefused, "nothing was changed")
	later := answering{strings.NewReader(fmt.Sprint(pid, "\n")), func() {
		if _, err := tx.Exec(`COMMIT; BEGIN; SELECT nextval('events_global_position_seq')`); err != nil {
			t.Error(err)
		}
	}}
	s.in(t, place{asks: true, in: later}, end...).is(t, exitRefused, "no longer in the transaction")
	if n := value[int](t, s, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations before the first", n)
	}
	s.ask(t, fmt.Sprint(pid), end...).is(t, exitDone, fmt.Sprintf("terminate of %d: done", pid))
	await(t, "the session to end", func() bool { return s.run(t, "blocked").out == "no transaction that has drawn positions is open\n" })
	s.expect(t, exitDone, words("operations"), "terminate", "ann: nobody waits for it")
}

// Tables of usual names and numbers fit a terminal.
func TestListsFit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 3)
	s.letter(t, 1, "8d0f2a4c-9f52-4d3e-a1f5-3c2b1a0f9e8d", strings.Repeat("a long error ", 30))
	s.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = 'order_totals_v1', last_position = 41234567`)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'order_totals_v1'`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, build) VALUES (gen_random_uuid(), 'worker-7d9f5b6c8-x2x4q', 1, 'v1.2.3-20260102150405-0123456789ab')`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'order_totals_v1', worker_id FROM worker_nodes`)
	s.expect(t, exitDone, []string{"pause", "order_totals_v1", "--reason", strings.Repeat("a long reason ", 20)})
	for _, line := range []string{"status", "workers", "operations", "letters list order_totals_v1"} {
		for l := range strings.Lines(s.expect(t, exitDone, words(line)).out) {
			if len(l) > width+1 {
				t.Errorf("%s: %d wide: %s", line, len(l), l)
			}
		}
	}
}

// The names of consumers are completed, save those that mean something to a shell.
func TestCompletion(t *testing.T) {
	t.Parallel()
	s := at(pgtest.New(t))
	s.place(t, 0)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) VALUES ('d$(reboot)'), (E'd\x1b[2J'), ('d;e'), ('d`+"`e`"+`'), (E'd\ne'), ('größe_v1')`)
	got := s.expect(t, exitDone, []string{"__complete", "pause", ""}, "c\ngröße_v1\n:4")
	if strings.Contains(got.out, "d") {
		t.Errorf("completed %q", got.out)
	}
	s.expect(t, exitDone, words("completion bash"), "__start_pgfrontier")
}

// An event that is a dead letter ends the wait at once.
func TestWaitDeadLetter(t *testing.T) {
	s := newSite(t)
	s.append(t, 2)
	s.place(t, 2)
	s.letter(t, 1, "a", "x")
	s.expect(t, exitDone, words("wait c 2"))
	s.expect(t, exitRefused, words("wait c 1 --timeout 20s"), "among the consumer's dead letters")
}
