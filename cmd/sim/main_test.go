package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"unknown flag":      {[]string{"-fast"}, "-fast"},
		"argument":          {[]string{"now"}, `unexpected argument "now"`},
		"not a number":      {[]string{"-workers", "many"}, "many"},
		"out of range":      {[]string{"-workers", "0"}, "-workers 0 is out of range, allowed is 1 to 50"},
		"no such fault":     {[]string{"-faults", "crush=1"}, `there is no fault "crush"; there are: crash, `},
		"no intensity":      {[]string{"-faults", "crash"}, `the intensity of crash is ""`},
		"too intense":       {[]string{"-faults", "crash=11"}, "from 0 to 10"},
		"no fault of jobs":  {[]string{"-jobs", "-faults", "contract=1"}, `there is no fault "contract"`},
		"jobs of consumers": {[]string{"-jobs", "-consumers", "3"}, "-consumers is of no use with -jobs"},
		"no runs":           {[]string{"-runs", "0"}, "-runs 0 is out of range"},
		"bad seed":          {[]string{"-seed", "-1"}, `-seed "-1" is not a number`},
		"no time":           {[]string{"-reduce", "0s"}, "-reduce 0s is out of range"},
		"check and run":     {[]string{"-check", "x", "-seed", "7"}, "-seed is of no use with -check; what is: -history"},
		"seeds and runs":    {[]string{"-seeds", "x", "-runs", "7"}, "-runs is of no use with -seeds"},
		"no such seeds":     {[]string{"-seeds", "/no/such/file"}, "-seeds: open /no/such/file"},
		"reduce many":       {[]string{"-reduce", "1m", "-runs", "7"}, "-runs is of no use with -reduce"},
		"nothing to check":  {[]string{"-check", "/no/such/run"}, "/no/such/run/report.json: no such file"},
		"no such folder":    {[]string{"-history", "/no/such/folder/x"}, "sim: -history: open /no/such/folder/x"},
		"no such server":    {[]string{"-db", "postgres://u:hunter2@127.0.0.1:1/?connect_timeout=5"}, "the server that was named"},
		"no connect string": {[]string{"-db", "postgres://u:hunter2@host:port/"}, "connection string"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if status := run(t.Context(), c.args, &stdout, &stderr); status != command.Error {
				t.Errorf("exit status %d, want %d", status, command.Error)
			}
			if stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) || strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("stdout %q, stderr %q; want nothing, and something that says %q", stdout.String(), stderr.String(), c.says)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d", status, command.OK)
	}
	for _, want := range []string{"-workers", "-writers", "-consumers", "-duration", "-seed", "-runs", "-seeds", "-db", "-json", "-history", "-report", "-faults", "-keep", "-check", "-reduce", "-jobs", "Faults with -jobs:", "vanish ", "Exit status", "default 5", "default 20"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the help lacks %q:\n%s", want, stdout.String())
		}
	}
}

// small are the flags of a run of a second.
func small(t *testing.T, more ...string) []string {
	return append([]string{"-db", pgtest.Server(t).URL(""), "-workers", "1", "-writers", "2", "-consumers", "2", "-duration", "1s", "-seed", "3"}, more...)
}

func TestRunsAreSummedUp(t *testing.T) {
	tier.Long(t, "TestSeedsAreSummedUp, which sums the runs of a file")
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), small(t, "-runs", "2"), &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d", status, command.OK)
	}
	for _, want := range []string{"seed 3: all", "seed 4: all", "2 runs", "verdict: all 2 runs held"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s\n%s", want, stdout.String(), stderr.String())
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	history, picture := filepath.Join(t.TempDir(), "history"), filepath.Join(t.TempDir(), "picture")
	if status := run(t.Context(), small(t, "-json", "-history", history, "-report", picture), &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d", status, command.OK)
	}
	var out struct {
		Total oracle.Total    `json:"total"`
		Runs  []oracle.Report `json:"runs"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("%v in %s\n%s", err, stdout.String(), stderr.String())
	}
	if out.Total.Runs != 1 || out.Total.Held != 1 || len(out.Runs) != 1 || out.Runs[0].Seed != 3 || !out.Runs[0].Held {
		t.Errorf("the object: %s", stdout.String())
	}
	text, err := os.ReadFile(history)
	if err != nil || !bytes.HasPrefix(text, []byte(`{"n":1,`)) || !bytes.Contains(text, []byte(`"kind":"batch"`)) {
		t.Errorf("the history: %v, %d bytes", err, len(text))
	}
	text, err = os.ReadFile(picture)
	if err != nil || !bytes.Contains(text, []byte("seed 3")) || !bytes.HasSuffix(text, []byte("</html>\n")) {
		t.Errorf("the picture: %v, %d bytes", err, len(text))
	}
	if want := "go run ./cmd/sim -workers 1 -writers 2 -consumers 2 -duration 1s -seed 3 -db ..."; out.Runs[0].Repeat != want {
		t.Errorf("repeat: got %q, want %q", out.Runs[0].Repeat, want)
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	args := []string{"-jobs", "-db", pgtest.Server(t).URL(""), "-workers", "2", "-writers", "2", "-duration", "1s", "-seed", "3", "-keep", dir,
		"-faults", "crash=2,cut=2,error=1,rollback=1,delay=1"}
	if status := run(t.Context(), args, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d:\n%s\n%s", status, command.OK, stdout.String(), stderr.String())
	}
	for _, want := range []string{"2 workers of jobs, 2 enqueuers", "jobs enqueued", "repeat:  go run ./cmd/sim -jobs -workers 2"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, stdout.String())
		}
	}
	var again bytes.Buffer
	if status := run(t.Context(), []string{"-check", filepath.Join(dir, "sim-3")}, &again, &stderr); status != command.OK || again.Len() == 0 || strings.Contains(stderr.String(), "This is not what was found") {
		t.Errorf("judged again: exit status %d:\n%s\n%s", status, again.String(), stderr.String())
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stderr := &trigger{word: "appended", pull: interrupt}
	var stdout bytes.Buffer
	if status := run(ctx, small(t, "-duration", "1m"), &stdout, stderr); status != command.Error {
		t.Errorf("exit status %d, want %d", status, command.Error)
	}
	if !strings.Contains(stdout.String(), "verdict: interrupted") || !strings.HasSuffix(stderr.String(), "sim: interrupted\n") {
		t.Errorf("stdout:\n%s\nstderr:\n%s", stdout.String(), stderr.String())
	}
}

// trigger calls pull when word is written.
type trigger struct {
	bytes.Buffer
	word string
	pull func()
}

func (w *trigger) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.word)) {
		w.pull()
	}
	return w.Buffer.Write(b)
}
