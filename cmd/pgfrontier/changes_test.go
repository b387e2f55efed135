package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// A change is made with the operator and the reason, and is refused where it makes no sense.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	s.expect(t, exitDone, []string{"pause", "c", "--reason", "the disk is full"}, "pause of c: done")
	s.expect(t, exitRefused, []string{"pause", "c", "--reason", "again"}, "paused already")
	s.expect(t, exitDone, words("status"), "paused")
	s.expect(t, exitDone, words("consumer c"), "by ann: the disk is full")
	data := s.expect(t, exitDone, []string{"resume", "c", "--reason", "r", "--operator", "bob", "-o", "json"}).data(t)
	if data["done"] != "resume" || data["on"] != "c" {
		t.Errorf("printed %v", data)
	}
	s.expect(t, exitRefused, words("resume c --reason r"), "not paused")
	s.expect(t, exitRefused, words("pause nobody --reason r"), "nobody")
	s.expect(t, exitDone, words("operations c"), "pause", "ann: the disk is full", "bob: r")
	delete(s.env, "PGFRONTIER_OPERATOR")
	s.expect(t, exitDone, words("pause c --reason r"))
	if by := value[string](t, s, `SELECT operator FROM consumer_operations ORDER BY id DESC LIMIT 1`); by != whoami() || !strings.Contains(by, "@") {
		t.Errorf("recorded by %q, want %q", by, whoami())
	}
}

// What cannot be undone shows what it would record and wants the name typed; where nobody
// is there, it wants --yes.
func TestSkipIsConfirmed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	skip := words("skip c 1 --reason r")
	stays := func(what string) {
		t.Helper()
		if p := s.position(t); p != 0 {
			t.Fatalf("%s: the consumer is at %d", what, p)
		}
	}
	s.expect(t, exitUnable, skip, "--yes", "--dry-run")
	stays("nobody there")
	s.ask(t, "", skip...).is(t, exitRefused, "nothing was changed", "skip of c:", "never handles the event at 1")
	s.ask(t, "d", skip...).is(t, exitRefused, "nothing was changed")
	stays("another name")
	s.expect(t, exitDone, append(skip, "--dry-run"), "would record:", "skip of c:")
	s.expect(t, exitDone, append(skip, "--dry-run", "--yes"), "would record:")
	stays("a dry run")
	s.expect(t, exitRefused, words("skip c 2 --reason r --yes"), "the next event is at position 1")
	s.ask(t, "c", words("skip c 2 --reason r")...).is(t, exitRefused, "the next event is at position 1")
	stays("another position")
	if n := value[int](t, s, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations were recorded", n)
	}
	got := s.ask(t, "c", append(skip, "-o", "json")...)
	got.is(t, exitDone, "Type c to do it", "never handles the event at 1")
	if data := got.data(t); data["done"] != "skip" || data["on"] != "c" || data["position"] != 1.0 { // alone on stdout
		t.Errorf("printed %v", data)
	}
	s.expect(t, exitDone, words("skip c 2 --reason r --yes"))
	if p := s.position(t); p != 2 {
		t.Errorf("the consumer is at %d, want 2", p)
	}
}

// Where the result of a change cannot be printed, the change was made all the same.
func TestStdoutIsFull(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	var talk bytes.Buffer
	code := run(t.Context(), words("pause c --reason r"), place{in: strings.NewReader(""), out: full{}, talk: &talk, getenv: func(key string) string { return s.env[key] }})
	outcome{code, "", talk.String()}.is(t, exitDone, "pause of c: done", "the disk is full")
	s.expect(t, exitRefused, words("pause c --reason r"), "paused already")
	code = run(t.Context(), words("status"), place{in: strings.NewReader(""), out: full{}, talk: &talk, getenv: func(key string) string { return s.env[key] }})
	if code != exitUnable {
		t.Errorf("a read that printed nothing has status %d", code)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

// --dry-run says on which revision it is, and a change that was decided on it is refused
// once the consumer has moved, be it the first time ever.
func TestDryRunAndRevision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	for _, revision := range []int64{0, 7} {
		s.Exec(t, `UPDATE consumer_checkpoints SET revision = $1`, revision)
		data := s.expect(t, exitDone, words("skip c 1 --reason r --dry-run -o json")).data(t)
		if data["revision"] != float64(revision) || data["dry_run"] != true {
			t.Errorf("printed %v", data)
		}
		effect := data["would_record"].([]any)[0].(map[string]any)
		if effect["on"] != "c" || effect["operation"] != "skip" || effect["detail"].(map[string]any)["position"] != 1.0 {
			t.Errorf("printed %v", effect)
		}
		s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		decided := append(words("skip c 1 --reason r --yes --if-revision"), fmt.Sprint(revision))
		s.expect(t, exitRefused, decided, "moved it since", "pause it first")
		if s.position(t) != 0 {
			t.Fatal("it was skipped")
		}
	}
	s.expect(t, exitDone, words("skip c 1 --reason r --yes --if-revision 8"))
}

// What is previewed is what is recorded.
func TestPreviewIsWhatHappens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 6)
	s.settle(t, 6)
	s.place(t, 4)
	s.letter(t, 1, "a", "x")
	s.letter(t, 2, "b", "y")
	s.letter(t, 3, "b", "y")
	for _, line := range []string{
		"pause c", "resume c", "skip c 5", "letters retry c 1", "letters discard c 1", "letters discard c --error y --limit 1", "reset c --to 2", "reset c --to settled", "replay c Order a", "partition c 3", "retire c",
	} {
		would := s.expect(t, exitDone, append(words(line), "--reason", "r", "--dry-run", "-o", "json")).data(t)["would_record"]
		s.expect(t, exitDone, append(words(line), "--reason", "r", "--yes"))
		op := s.expect(t, exitDone, words("operations c --limit 1 -o json")).data(t)["operations"].([]any)[0].(map[string]any)
		want := []any{map[string]any{"on": op["consumer"], "operation": op["operation"], "detail": op["detail"]}}
		if !reflect.DeepEqual(would, want) {
			t.Errorf("%s: previewed %v, recorded %v", line, would, want)
		}
	}
}

// The dead letters of a consumer that runs are discarded as they were shown: its batches
// do not matter, another dead letter does.
func TestDiscardWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 5)
	s.place(t, 5)
	s.letter(t, 1, "a", "x")
	discard := words("letters discard c --error x --reason r")
	batch := func() {
		s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = last_position + 1`)
	}
	another := answering{strings.NewReader("c\n"), func() { s.letter(t, 2, "b", "x"); batch() }}
	s.in(t, place{asks: true, in: another}, discard...).is(t, exitRefused, "something else now than what was shown")
	if n := value[int](t, s, `SELECT count(*) FROM consumer_dead_letters`); n != 2 {
		t.Fatalf("%d letters are left, want 2", n)
	}
	s.in(t, place{asks: true, in: answering{strings.NewReader("c\n"), batch}}, discard...).is(t, exitDone, "done, 2")
}

// A change that takes as many as --limit says that there may be more.
func TestLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 3)
	for p := range int64(3) {
		s.letter(t, p+1, fmt.Sprint(p), "x")
	}
	s.expect(t, exitDone, words("letters discard c --all --limit 2 --reason r --yes"), "done, 2, up to --limit")
	if out := s.expect(t, exitDone, words("letters discard c --all --limit 2 --reason r --yes"), "done, 1").out; strings.Contains(out, "--limit") {
		t.Errorf("printed %s", out)
	}
	for _, line := range []string{"letters list c --limit 0", "letters list c --limit 10001", "gaps c --limit 0", "operations --limit 0", "jobs list --limit 0", "jobs operations --limit 0", "letters discard c --all --limit 0 --reason r --yes"} {
		s.expect(t, exitUnable, words(line), "limit is")
	}
}

// A name that no consumer has is refused, and not taken for one that has nothing.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 1)
	s.place(t, 0)
	for _, line := range []string{"consumer d", "operations d", "gaps d", "letters list d", "letters show d 1", "pause d --reason r", "skip d 1 --reason r --yes", "reset d --to 0 --reason r --yes", "partition d 2 --reason r", "retire d --reason r --yes", "letters retry d --all --reason r", "letters discard d 1 --reason r --yes", "wait d 1"} {
		s.expect(t, exitRefused, words(line), `no consumer "d": there are c`)
	}
	s.ask(t, "d", words("retire d --reason r")...).is(t, exitRefused, `there is no consumer "d": there are c`)
	s.expect(t, exitRefused, words("gaps c#0-7ff"), "has no unit")
	s.expect(t, exitDone, words("operations c"), "no operation")
	s.expect(t, exitDone, words("retire c --reason r --yes"))
	s.expect(t, exitDone, words("operations c"), "retire")
}

// A change that was shown is refused if the consumer has moved meanwhile, and so is one
// with the revision of an old read.
func TestOldViews(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	moved := answering{strings.NewReader("c\n"), func() { s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`) }}
	s.in(t, place{asks: true, in: moved}, words("skip c 1 --reason r")...).is(t, exitRefused, "moved it since")
	one := s.expect(t, exitDone, words("status -o json")).data(t)["consumers"].([]any)[0].(map[string]any)
	revision := fmt.Sprint(one["revision"])
	s.expect(t, exitDone, append(words("pause c --reason r --if-revision"), revision))
	s.expect(t, exitRefused, append(words("resume c --reason r --if-revision"), revision), "moved it since")
	if s.position(t) != 0 {
		t.Error("it was skipped")
	}
}

// A batch that ends while a change is previewed makes it another one than was shown.
func TestMovedWhileItIsPreviewed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	a := &app{place: place{getenv: func(key string) string { return s.env[key] }}, timeout: patience}
	defer a.close()
	o, err := a.operator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	batch := sync.OnceFunc(func() { s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`) })
	p := consumerChange{what: "skip", name: "c", do: func(ctx context.Context, o *ops.Operator, by ops.By) (object, error) {
		batch()
		return nil, o.SkipEvent(ctx, "c", 1, by)
	}}.plan(o, ops.By{Operator: "ann", Reason: "r"})
	would, err := a.previewed(t.Context(), p)
	if err == nil {
		_, err = a.done(t.Context(), p, &would)
	}
	var moved *ops.MovedError
	if !errors.As(err, &moved) || s.position(t) != 0 {
		t.Errorf("%v, and the consumer is at %d", err, s.position(t))
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 5)
	s.Exec(t, `UPDATE events SET created_at = '2026-01-01T00:00:00Z'::timestamptz + global_position * interval '1 hour'`)
	s.settle(t, 4)
	s.place(t, 3)
	for _, c := range []struct {
		to       string
		position int64
	}{{"beginning", 0}, {"settled", 4}, {"2", 2}, {"2026-01-01T03:00:00.5Z", 3}, {"1", 1}, {"2026-01-01T04:00:00Z", 3}, {"2026-01-01T01:30:00+02:00", 0}, {"2026-01-01T01:30:00Z", 1}} {
		s.expect(t, exitDone, []string{"reset", "c", "--to", c.to, "--reason", "r", "--yes"}, "reset of c: done")
		if p := s.position(t); p != c.position {
			t.Errorf("--to %s led to %d, want %d", c.to, p, c.position)
		}
	}
	s.expect(t, exitRefused, words("reset c --to 5 --reason r --yes"), "complete up to position 4")
	s.expect(t, exitRefused, words("reset c --to 1 --reason r --yes"), "at this position already")
	s.expect(t, exitRefused, words("reset c --to 2030-01-01T00:00:00Z --reason r --yes"), "no event was written since")
	s.letter(t, 2, "a", "boom")
	s.ask(t, "no", words("reset c --to beginning --reason r")...).is(t, exitRefused, `"dead_letters_deleted": 1`, "handled again")
}

// A worker handles the events of one aggregate again.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	if err := s.begin(t, "b", 2).Commit(); err != nil {
		t.Fatal(err)
	}
	s.place(t, 5)
	replay := words("replay c Order b --reason r")
	s.expect(t, exitUnable, replay, "--yes")
	s.ask(t, "d", replay...).is(t, exitRefused, `"events": 2`, "handled again")
	s.expect(t, exitRefused, words("replay c Order nobody --reason r --yes"), "passed no event")
	s.expect(t, exitRefused, words("replay d Order b --reason r --yes"), `"d"`)
	if n := value[int](t, s, `SELECT count(*) FROM consumer_dead_letters`); n != 0 {
		t.Fatalf("%d letters before it is confirmed", n)
	}
	moved := answering{strings.NewReader("c\n"), func() { s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`) }}
	s.in(t, place{asks: true, in: moved}, replay...).is(t, exitDone, "replay of c: done")
	s.expect(t, exitDone, words("letters list c"), "waits for its replay")
	s.expect(t, exitDone, words("letters list c -o json"), `"replay":true`)
	s.expect(t, exitDone, words("status -o json"), `"dead_letters":0`)
	s.work(t)
	await(t, "the replay", func() bool { return s.run(t, words("letters list c")...).out == "none\n" })
}

func TestPartitionAndRetire(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 7)
	s.expect(t, exitDone, words("partition c 4 --reason r"))
	s.expect(t, exitDone, words("consumer c"), "4 fixed by an operator")
	s.expect(t, exitUnable, words("partition c 1000 --reason r"), "0 to 256")
	s.ask(t, "c", words("retire c --reason r")...).is(t, exitDone)
	s.expect(t, exitDone, words("status"), "no consumer has run yet")
	s.expect(t, exitRefused, words("consumer c"), `there is no consumer "c"`)
	s.expect(t, exitDone, words("operations"), "retire")
}

func TestRename(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 7)
	s.expect(t, exitUnable, words("rename c d#000-7ff --reason r"), "the new name")
	s.expect(t, exitRefused, words("rename nobody d --reason r"), `there is no consumer "nobody"`)
	would := s.expect(t, exitDone, words("rename c d --reason r --dry-run -o json")).data(t)["would_record"].([]any)
	if len(would) != 2 || would[0].(map[string]any)["on"] != "d" || would[1].(map[string]any)["on"] != "c" {
		t.Errorf("previewed %v", would)
	}
	if data := s.expect(t, exitDone, words("rename c d --reason r -o json")).data(t); data["done"] != "rename" || data["on"] != "c" || data["to"] != "d" {
		t.Errorf("printed %v", data)
	}
	s.expect(t, exitDone, words("status"), "renamed")
	s.expect(t, exitDone, words("consumer c"), "to d", "renamed to d: r")
	s.expect(t, exitDone, words("consumer d"), "7, ")
	s.expect(t, exitRefused, words("wait c 7"), `"c" was renamed: wait for "d"`)
	s.expect(t, exitRefused, words("resume c --reason r"), `it was renamed to "d"`)
	s.expect(t, exitRefused, words("rename c d --reason r"), "it was renamed so already")
	s.expect(t, exitRefused, words("rename d c --reason r"), "the name is in use")
	if got := s.run(t, words("doctor")...); strings.Contains(got.out, "no worker has code for: c") || strings.Contains(got.out, "c by ann") {
		t.Errorf("what is left is wrong:\n%s", got.out)
	}
	s.expect(t, exitDone, words("retire c --reason r --yes"))
}

func TestBegin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	s.settle(t, 3)
	s.expect(t, exitUnable, words("begin d --reason r"), `--at "": it is a position`)
	s.expect(t, exitUnable, words("begin d --at soon --reason r"), `--at "soon"`)
	s.expect(t, exitRefused, words("begin c --at 1 --reason r"), "the name is in use")
	s.expect(t, exitRefused, words("begin d --at 99 --reason r"), "complete up to position 3 only")
	if would := s.expect(t, exitDone, words("begin d --at 1 --reason r --dry-run -o json")).data(t)["would_record"].([]any); len(would) != 1 {
		t.Errorf("previewed %v", would)
	}
	s.expect(t, exitDone, words("begin d --at 1 --reason r"))
	s.expect(t, exitDone, words("consumer d"), "position", "1, ", "begin")
	s.Exec(t, `UPDATE events SET created_at = now() - (10 - global_position) * interval '1 hour'`)
	s.expect(t, exitDone, append(words("begin e --reason r --at"), time.Now().Add(-8*time.Hour-30*time.Minute).Format(time.RFC3339)))
	var at int64
	if err := s.DB.QueryRow(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = 'e'`).Scan(&at); err != nil || at != 1 {
		t.Errorf("it begins after position %d, %v; want 1", at, err)
	}
}

func TestShadowAndSwitch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	s.expect(t, exitUnable, words("shadow d#000-7ff --reason r"), "d#000-7ff")
	s.expect(t, exitRefused, words("switch c d --reason r"), `there is no consumer "d"`)
	if would := s.expect(t, exitDone, words("shadow d --reason r --dry-run -o json")).data(t)["would_record"].([]any); len(would) != 1 {
		t.Errorf("previewed %v", would)
	}
	s.expect(t, exitDone, words("shadow d --reason r"))
	s.expect(t, exitRefused, words("shadow d --reason r"), "the name is in use")
	s.expect(t, exitDone, words("consumer d"), "another consumer has the effects")
	s.expect(t, exitDone, words("status"), "unowned, shadow")
	s.Exec(t, `CREATE VIEW totals AS SELECT 1 AS version`)
	for _, ends := range []string{"COMMIT", "BEGIN; CREATE OR REPLACE VIEW totals AS SELECT 2 AS version; COMMIT", "CREATE OR REPLACE VIEW totals AS SELECT 2 AS version; ROLLBACK"} {
		s.expect(t, exitUnable, append(words("switch c d --reason r --dry-run --execute"), ends), "leave BEGIN and COMMIT out")
		s.expect(t, exitUnable, append(words("switch c d --reason r --execute"), ends), "leave BEGIN and COMMIT out")
	}
	s.expect(t, exitDone, words("status"), "unowned, shadow")
	args := append(words("switch c d --reason r -o json --execute"), "SELECT '$$; $do$'; DROP VIEW totals; CREATE VIEW totals AS SELECT 2 AS version")
	if data := s.expect(t, exitDone, args).data(t); data["done"] != "switch" || data["on"] != "d" || data["from"] != "c" {
		t.Errorf("printed %v", data)
	}
	var version int
	if err := s.DB.QueryRow(`SELECT version FROM totals`).Scan(&version); err != nil || version != 2 {
		t.Errorf("the view is of version %d, %v", version, err)
	}
	s.expect(t, exitDone, words("consumer c"), "another consumer has the effects", "switch")
	rows := func(of string) []string { return []string{"--old", "SELECT 1 AS n", "--new", of} }
	s.expect(t, exitDone, append(words("compare c d"), rows("SELECT 1 AS n")...), "the rows are the same, up to position 0")
	s.expect(t, exitRefused, append(words("compare c d"), rows("SELECT 2 AS n")...), `only of c: {"n":1}`, `only of d: {"n":2}`)
	if data := s.expect(t, exitRefused, append(words("compare c d -o json"), rows("SELECT 2 AS n")...)).data(t); len(data["only_old"].([]any)) != 1 {
		t.Errorf("printed %v", data)
	}
	s.expect(t, exitUnable, words("compare c d"), `"new", "old" not set`)
	s.expect(t, exitRefused, words("switch c d --reason r"), "it is no shadow")
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 7 WHERE consumer_name = 'c'`)
	const waits = `"c" at 7 has passed position 1 without its effect`
	for limit := time.Second; ; limit *= 2 { // a slow machine may need more for the first try
		got := s.run(t, words(fmt.Sprintf("switch d c --reason r --timeout %v", limit))...)
		if strings.Contains(got.talk, waits) || limit > pgtest.Patience {
			got.is(t, exitUnable, waits)
			break
		}
	}
}

func TestRetireWithAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.work(t)
	await(t, "the worker to register with a checkpoint", func() bool {
		return value[int](t, s, `SELECT count(*) FROM consumer_checkpoints, worker_nodes WHERE 'c' = ANY (consumers)`) == 1
	})
	s.expect(t, exitRefused, words("retire c --reason r --yes"), "has code for it")
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 5)
	s.place(t, 5)
	s.letter(t, 1, "a", "timeout\x1b[31m of the mail server")
	s.letter(t, 2, "a", "timeout")
	s.letter(t, 4, "b", "no customer")
	s.expect(t, exitDone, words("letters list c"), "no customer", `timeout\u001b[31m`)
	if n := len(s.expect(t, exitDone, words("letters list c --error timeout -o json")).data(t)["letters"].([]any)); n != 2 {
		t.Errorf("%d letters with the error", n)
	}
	s.expect(t, exitDone, words("letters list c --limit 1 --after 1"), "2  OrderPlaced")
	s.expect(t, exitDone, words("letters show c 4 --payload"), "no customer", `{"cents": 5}`)
	letter := s.expect(t, exitDone, words("letters show c 4 --payload -o json")).data(t)["letter"].(map[string]any)
	if fmt.Sprint(letter["payload"]) != "map[cents:5]" {
		t.Errorf("the payload is %v", letter["payload"])
	}
	for _, line := range []string{"letters list c -o json", "letters show c 4", "letters show c 4 -o json"} {
		if out := s.expect(t, exitDone, words(line), "no customer").out; strings.Contains(out, "cents") {
			t.Errorf("%s shows a payload that nobody asked for: %s", line, out)
		}
	}
	s.expect(t, exitRefused, words("letters show c 3"), "no dead letter")
	s.expect(t, exitDone, words("letters retry c 1 --reason r"), "retry of c: done")
	if n := value[int](t, s, `SELECT count(*) FROM consumer_dead_letters WHERE retry_at IS NOT NULL`); n != 2 {
		t.Errorf("a retry was asked for %d letters, want the aggregate's 2", n)
	}
	s.expect(t, exitDone, words("letters retry c --all --reason r"), "done, 3")
	s.expect(t, exitUnable, words("letters discard c --error timeout --reason r"), "--yes")
	s.ask(t, "c", words("letters discard c --error timeout --reason r")...).is(t, exitDone, `"positions": [1, 2]`, "done, 2")
	s.expect(t, exitDone, words("letters discard c 4 --reason r --yes"))
	s.expect(t, exitRefused, words("letters discard c --all --reason r --yes"), "selects none")
	s.expect(t, exitDone, words("letters list c"), "none")
}

// Each filter takes the dead letters that it names, and leaves out those that another one does not take.
func TestFiltersOfDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 4)
	s.place(t, 4)
	for p := range int64(4) {
		s.letter(t, p+1, fmt.Sprint(p), "timeout")
	}
	s.Exec(t, `UPDATE consumer_dead_letters SET event_type = 'OrderPaid' WHERE global_position = 2`)
	s.Exec(t, `UPDATE consumer_dead_letters SET aggregate_type = 'Invoice' WHERE global_position = 3`)
	s.Exec(t, `UPDATE consumer_dead_letters SET created_at = now() - interval '2 hours' WHERE global_position = 4`)
	for _, c := range []struct{ filter, takes string }{{"--event-type OrderPaid", "[2]"}, {"--aggregate-type Invoice", "[3]"}, {"--older-than 1h", "[4]"}} {
		out := s.expect(t, exitDone, words("letters discard c --reason r --dry-run --error timeout "+c.filter)).out
		if !strings.Contains(out, `"positions": `+c.takes) {
			t.Errorf("%s takes\n%s", c.filter, out)
		}
	}
}

// A payload that is no JSON is shown all the same.
func TestPayloadsOfAnyKind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 2)
	s.place(t, 2)
	s.letter(t, 1, "a", "x")
	s.letter(t, 2, "a", "x")
	s.Exec(t, `UPDATE events SET payload = CASE global_position WHEN 1 THEN '\xff00'::bytea ELSE 'text'::bytea END`)
	s.expect(t, exitDone, words("letters show c 1 --payload"), `\xff\u0000`)
	s.expect(t, exitDone, words("letters show c 1 --payload -o json"), `"payload_base64":"/wA="`)
	s.expect(t, exitDone, words("letters show c 2 --payload -o json"), `"payload":"text"`)
}

// Help of an unknown verb is wrong usage.
func TestHelpOfUnknownVerbs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.expect(t, exitUnable, words("help nosuch"), "unknown command")
	s.expect(t, exitUnable, words("help jobs nosuch"), "unknown command")
	s.expect(t, exitDone, words("help jobs retry"), "pgfrontier jobs retry")
}

// The role's tables may have other names.
func TestOtherNamesOfTables(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 3)
	s.Exec(t, `ALTER TABLE consumer_gap_skips RENAME TO holes`)
	s.expect(t, exitUnable, words("status"), "--table")
	s.expect(t, exitDone, words("status --table consumer-gap-skips=holes"), "c ")
	s.env["PGFRONTIER_TABLES"] = "consumer-gap-skips=holes"
	s.expect(t, exitDone, words("gaps c"), "none")
	s.env["PGFRONTIER_TABLES"] = "consumer-gap-skips=nowhere"
	s.expect(t, exitDone, words("gaps c --table consumer-gap-skips=holes"), "none") // the flag decides
	s.Exec(t, `CREATE SCHEMA apart`)
	s.Exec(t, `DO $$ DECLARE t text; BEGIN FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP EXECUTE format('ALTER TABLE %I SET SCHEMA apart', t); END LOOP; END $$`)
	s.expect(t, exitDone, words("gaps c --schema apart --table consumer-gap-skips=holes"), "none")
	s.env["PGFRONTIER_TABLES"] = "schema=apart,consumer-gap-skips=holes"
	s.expect(t, exitDone, words("gaps c"), "none")
	s.expect(t, exitUnable, words("gaps c --prefix x_"), "--prefix")
}

// Each key names its own table, and flags win over the environment.
func TestKeysOfTables(t *testing.T) {
	environment := map[string]string{}
	a := &app{place: place{getenv: func(key string) string { return environment[key] }}}
	for i, key := range strings.Split(command.TableKeys(), ", ") {
		environment["PGFRONTIER_TABLES"], a.named = "schema=app "+key+"=elsewhere", map[string]string{key: "other"}
		n, err := a.names()
		if err != nil {
			t.Fatal(err)
		}
		if got := *tables.ConfiguredOf(&n)[i].Name; got != "other" || n.Schema != "app" || strings.Count(tables.Given(n), ": ") != 2 {
			t.Errorf("--table %s=other makes %s", key, tables.Given(n))
		}
	}
	a.named, a.common = nil, store.Names{Schema: "infra", Prefix: "x_"}
	environment["PGFRONTIER_TABLES"] = "schema=app,jobs=work"
	if t1, err := a.parsed(); err != nil || t1.Checkpoints.String() != "infra.x_consumer_checkpoints" {
		t.Errorf("the checkpoints are %s, %v", t1.Checkpoints, err)
	}
	for _, wrong := range []string{"holes=x", "jobs="} {
		environment["PGFRONTIER_TABLES"] = wrong
		if _, err := a.names(); err == nil || !strings.Contains(err.Error(), "PGFRONTIER_TABLES") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// cutConn loses the answer to a statement.
type cutConn struct {
	net.Conn
	at      string // the statement, the end of one
	then    func() // is called when it has come; nil: nothing is
	reached atomic.Bool
}

func (c *cutConn) Write(p []byte) (int, error) {
	if strings.Contains(strings.ToLower(string(p)), c.at+"\x00") {
		if c.then != nil {
			c.then()
		}
		c.reached.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.reached.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// When the answer to COMMIT is lost, the status is 3, and the number of the operation is said.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	proxy := s.losing(t, "commit", nil)
	got := proxy.expect(t, exitUnknown, words("pause c --reason r"), "COMMIT was lost")
	await(t, "the server to have ended the transaction", func() bool {
		return value[int](t, s, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND relation = 'consumer_operations'::regclass`) == 0
	})
	id := value[int64](t, s, `SELECT max(id) FROM consumer_operations`)
	got.is(t, exitUnknown, fmt.Sprintf("operation %d", id))
	s.losing(t, "read committed", nil).expect(t, exitUnable, words("resume c --reason r")) // nothing was changed
	s.expect(t, exitDone, words("resume c --reason r"))
}

// Who interrupts a change at its COMMIT is told that it may have been made.
func TestInterruptedAtCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.losing(t, "commit", cancel).within(ctx, place{}, words("pause c --reason r")...).is(t, exitUnknown, "COMMIT was lost", "operation ")
}

// losing is the same database through a relay that loses the answers to a statement. then is called
// before they are lost.
func (s site) losing(t *testing.T, at string, then func()) site {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	target := s.address(t)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			cut := &cutConn{Conn: server, at: at, then: then}
			go relay(cut, client)
			go relay(client, cut)
		}
	}()
	env := map[string]string{"PGFRONTIER_OPERATOR": "ann", "DATABASE_URL": strings.Replace(s.URL, target, listener.Addr().String(), 1)}
	return site{s.Database, env}
}

// relay copies until one side ends, and ends the other.
func relay(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (s site) address(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(s.URL, "@")
	address, _, ok := strings.Cut(rest, "/")
	if !ok {
		t.Fatal("the connection string is no URL")
	}
	return address
}

// A change that waits for somebody else's lock ends with --timeout, and changes nothing.
func TestTimeout(t *testing.T) {
	s := newSite(t)
	s.place(t, 0)
	tx, err := s.DB.BeginTx(context.Background(), &sql.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM consumer_checkpoints FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 0)`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`LOCK TABLE worker_nodes`); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{"pause c", "shadow d", "begin d --at 0", "shadow d --dry-run", "drain h/7"} {
		await(t, "--timeout to end "+change, func() bool { // and not the way to the database before
			got := s.run(t, words(change+" --reason r --timeout 200ms")...)
			return got.code == exitUnable && strings.Contains(got.talk, "not done within --timeout")
		})
	}
	if n := value[int](t, s, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Error("the operation was recorded")
	}
	if _, err := tx.Exec(`LOCK TABLE consumer_checkpoints`); err != nil {
		t.Fatal(err)
	}
	await(t, "wait to say that nobody could look", func() bool {
		got := s.run(t, words("wait c 1 --timeout 100ms")...)
		return got.code == exitUnable && strings.Contains(got.talk, `not known whether consumer "c" has handled position 1`)
	})
}

// A whole story with a worker: a consumer gets stuck, is shown, and goes on.
func TestAStuckConsumer(t *testing.T) {
	s := newSite(t)
	s.append(t, 2)
	if err := s.begin(t, "bad", 1).Commit(); err != nil {
		t.Fatal(err)
	}
	s.append(t, 1)
	s.work(t, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(1))
	await(t, "the worker to register", func() bool { return strings.Contains(s.run(t, "workers").out, "BUILD") })
	s.expect(t, exitDone, words("wait c 2"), "c has handled position 2")
	await(t, "the pause", func() bool { return strings.Contains(s.run(t, "status").out, "paused") })
	await(t, "the error in the heartbeat", func() bool { return strings.Contains(s.run(t, "consumer", "c").out, "cannot handle this") })
	await(t, "wait to look, and to say how far it is", func() bool {
		got := s.run(t, words("wait c 4 --timeout 300ms")...)
		return got.code == exitRefused && strings.Contains(got.talk, "it is paused at position 2")
	})
	s.expect(t, exitDone, words("consumer c"), "3  OrderPlaced  Order bad", "paused")
	s.expect(t, exitDone, words("skip c 3 --reason r --yes"))
	s.expect(t, exitDone, words("resume c --reason r"))
	s.expect(t, exitDone, words("wait c 4 --timeout 30s"))
	s.expect(t, exitRefused, words("wait nobody 4"), `no consumer "nobody": there are c`)
	s.expect(t, exitDone, words("workers"), "leads")
}
