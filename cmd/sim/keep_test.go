package main

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestKeptRunIsJudgedAgain(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), small(t, "-keep", place), &stdout, &stderr); status != command.OK {
		t.Fatalf("exit status %d, want %d\n%s\n%s", status, command.OK, stdout.String(), stderr.String())
	}
	dir := filepath.Join(place, "sim-3")
	if want := "kept:    " + dir; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, stderr.String())
	}
	holdsNoPassword(t, dir)
	status, out, complaint := judge(t, dir)
	if status != command.OK || out != stdout.String() || complaint != "" {
		t.Errorf("judged again: exit status %d, %q, and\n%s\nwhen it ran:\n%s", status, complaint, out, stdout.String())
	}

	// One of the ledger's lines names another event from now on.
	file := filepath.Join(dir, "ledger.jsonl")
	ledger, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := bytes.Replace(ledger, []byte(`"version":1,`), []byte(`"version":9,`), 1)
	if bytes.Equal(spoiled, ledger) {
		t.Fatalf("no version 1 in %.200s", ledger)
	}
	if err := os.WriteFile(file, spoiled, 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, complaint = judge(t, dir)
	if status != command.Failed || !strings.Contains(out, "BROKEN nothing else") || !strings.Contains(complaint, "not what was found when the run was kept:\n  all ") {
		t.Errorf("judged with a spoiled ledger: exit status %d, %q, and\n%s", status, complaint, out)
	}

	if err := os.WriteFile(file, ledger[:len(ledger)-20], 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, complaint = judge(t, dir); status != command.Error || !strings.Contains(complaint, fmt.Sprintf("%s:%d: ", file, bytes.Count(ledger, []byte("\n")))) {
		t.Errorf("judged with half a ledger: exit status %d, %q", status, complaint)
	}
}

func judge(t *testing.T, dir string) (status int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	status = run(t.Context(), []string{"-check", dir}, &out, &complaint)
	return status, out.String(), complaint.String()
}

// holdsNoPassword sees to it that the server's password is in no file.
func holdsNoPassword(t *testing.T, dir string) {
	t.Helper()
	u, err := url.Parse(pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	password, ok := u.User.Password()
	if !ok {
		t.Fatal("the server of the tests needs no password")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err != nil || bytes.Contains(text, []byte(password)) {
			t.Errorf("%s cannot be read, or holds the password: %v", f, err)
		}
	}
}

func TestFirstFailuresAreKept(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("log", []byte("before\nmeanwhile\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := &keeper{log: "log", from: int64(len("before\n"))}
	var said bytes.Buffer
	for _, seed := range []uint64{1, 1, 2, 3, 4, 5} {
		r := &oracle.Report{Seed: seed}
		r.Judge(&history.Evidence{History: history.Of(nil), Exits: []history.Exit{{}}})
		if err := k.end(r, &said); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.end(&oracle.Report{Seed: 6, Held: true}, &said); err != nil {
		t.Error(err)
	}
	dirs, err := filepath.Glob("sim-*")
	if want := "[sim-failure-1 sim-failure-1-2 sim-failure-2 sim-failure-3 sim-failure-4]"; err != nil || fmt.Sprint(dirs) != want {
		t.Errorf("kept %v, %v; want %s", dirs, err, want)
	}
	for _, d := range dirs {
		if !strings.Contains(said.String(), "kept:    "+d+" ") {
			t.Errorf("nothing is said of %s: %q", d, said.String())
		}
	}
	if log, err := os.ReadFile("sim-failure-2/server.log"); string(log) != "meanwhile\n" {
		t.Errorf("the log is %q, %v; want what was written in the run", log, err)
	}
}

// A server that could not be replaced has taken its log with it. The run is kept without.
func TestRunIsKeptWithoutALog(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	k := &keeper{place: place, log: filepath.Join(place, "gone", "log")}
	k.begin()
	r := &oracle.Report{Seed: 1}
	r.Judge(&history.Evidence{History: history.Of(nil), Harness: &history.HarnessFailure{Step: "the start of another server"}})
	if err := k.end(r, io.Discard); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(place, "sim-not-judged-1", "report.json")); err != nil {
		t.Error(err)
	}
}
