package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/mutants"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

// TestSmallerRunIsFound plants a mistake that the smallest runs show, and lets
// the search begin with a larger one.
func TestSmallerRunIsFound(t *testing.T) {
	tier.Long(t, "TestSmallestIsFound, which searches without a server, and TestNothingToReduce")
	t.Parallel()
	all := mutants.All()
	i := slices.IndexFunc(all, func(m mutants.Mutant) bool { return m.Name == "head" })
	if i < 0 {
		t.Fatal("the mistake is not known any more")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := all[i].Overlay(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "sim")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var place string
	var status int
	var stdout, stderr bytes.Buffer
	var r *oracle.Report
	for _, search := range []string{"30s", "3m", "3m"} { // a busy machine needs longer
		place = t.TempDir()
		stdout.Reset()
		stderr.Reset()
		c := exec.CommandContext(t.Context(), program, "-db", pgtest.Server(t).URL(""), "-workers", "2", "-writers", "4", "-consumers", "2",
			"-duration", "3s", "-faults", "delay=5,rollback=1,redraw=2,crash=1", "-seed", "1", "-reduce", search, "-keep", place)
		c.Stdout, c.Stderr = &stdout, &stderr
		_ = c.Run()
		if status = c.ProcessState.ExitCode(); status == command.Error {
			continue // nothing has failed
		}
		if r, err = bundle.Load(filepath.Join(place, "sim-reduced-1")); err != nil {
			r, err = bundle.Load(filepath.Join(place, "sim-reduced-1-2")) // they take turns
		}
		if err == nil && isSmaller(r) {
			break
		}
	}
	if status != command.Failed || err != nil {
		t.Fatalf("exit status %d, want %d; %v\n%s\n%s", status, command.Failed, err, stdout.String(), stderr.String())
	}
	if r.Judge(r.Evidence); r.Held || !isSmaller(r) {
		t.Errorf("what was found is not smaller, or holds: %s\n%s\n%s", r.Verdict, r.Repeat, stderr.String())
	}
	for _, want := range []string{"the smallest run that failed, of ", r.Repeat, "verdict: BROKEN"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, stdout.String())
		}
	}
	if found, err := filepath.Glob(filepath.Join(place, "*")); err != nil || len(found) != 1 {
		t.Errorf("kept: %v, %v; want the smallest run alone", found, err)
	}
}

// isSmaller reports whether a run is smaller than the one that the search begins with.
func isSmaller(r *oracle.Report) bool {
	return r.Workers < 2 || r.Writers < 4 || len(r.Handled) < 2 || len(r.Faults) < 4 || !strings.Contains(r.Repeat, "-duration 3s")
}

func TestNothingToReduce(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), small(t, "-reduce", "1s"), &stdout, &stderr); status != command.Error {
		t.Errorf("exit status %d, want %d", status, command.Error)
	}
	if !strings.Contains(stderr.String(), "nothing to reduce: seed 3 has not failed in 1s") || stdout.Len() > 0 {
		t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
	}
}
