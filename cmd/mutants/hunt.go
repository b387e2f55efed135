package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/lab/mutants"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// atOnce is how many mistakes are hunted at a time. A run mostly waits.
const atOnce = 4

// harmlessRuns is how many runs try a mistake that is harmless: if
// one catches it, it is not.
const harmlessRuns = 2

// scale returns the size of a run: small, so that it is over soon.
func scale(jobs bool) []string {
	if jobs {
		return []string{"-jobs", "-workers", "3", "-writers", "15"}
	}
	return []string{"-workers", "3", "-writers", "15", "-consumers", "3"}
}

// result is what became of a mistake.
type result struct {
	mutant  mutants.Mutant
	most    int // runs that are to be judged, unless one catches it; 0: a test is to find it
	runs    int // that were judged
	no      int // runs without a result: they were not judged
	caught  int // in how many of them
	first   int // the first of these, from 1
	seed    uint64
	broken  []string // the invariants, in the order in which they broke first
	example string   // of what broke the first
	seconds float64
}

// missed reports whether the list is wrong about the mistake.
func (r result) missed() bool { return !r.unknown() && (r.caught == 0) == (r.mutant.Harmless == "") }

// unknown reports whether too few runs were judged to say that none catches the mistake.
func (r result) unknown() bool { return r.caught == 0 && r.runs < r.most }

// hunt plants the mistakes and runs the sim. The results are in the order of
// the list.
func (o options) hunt(ctx context.Context, progress io.Writer) (results []result, err error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := mutants.Root(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		errs   []error
		tried  bool // one could be
		places = make(chan struct{}, atOnce)
	)
	results = make([]result, len(o.mutants))
	fmt.Fprintf(progress, "%d mistakes, at most %d runs each, from seed %d\n", len(o.mutants), o.runs, o.seed)
	for i, mutant := range o.mutants {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			r, err := o.hunted(ctx, mutant, root, filepath.Join(dir, mutant.Name))
			mu.Lock()
			defer mu.Unlock()
			results[i] = r
			switch {
			case err == nil:
				tried = true
				fmt.Fprintf(progress, "  %-18s %s\n", mutant.Name, r)
			case ctx.Err() != nil:
			default:
				fmt.Fprintf(progress, "  %-18s could not be tried\n", mutant.Name)
				errs = append(errs, fmt.Errorf("%s: %w", mutant.Name, err))
				if !tried {
					cancel() // nor can the others, without a server
				}
			}
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// hunted plants one mistake and runs the sim until it is caught.
func (o options) hunted(ctx context.Context, mutant mutants.Mutant, root, dir string) (result, error) {
	r := result{mutant: mutant}
	began := time.Now()
	if mutant.Test.Name != "" {
		err := r.test(ctx, root, dir)
		r.seconds = time.Since(began).Seconds()
		return r, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return r, err
	}
	binary, err := mutant.Build(ctx, root, dir, "./cmd/sim")
	if err != nil {
		return r, err
	}
	r.most = o.runs
	if mutant.Harmless != "" {
		r.most = min(r.most, harmlessRuns)
	}
	for seed := o.seed; r.runs < r.most && r.no < r.most && (o.all || r.caught == 0); seed++ {
		if !comesUp(mutant, seed) {
			continue
		}
		report, err := simulate(ctx, binary, seed, o.duration, mutant)
		if err != nil {
			return r, fmt.Errorf("run with seed %d: %w", seed, err)
		}
		r.note(report)
	}
	r.seconds = time.Since(began).Seconds()
	return r, os.RemoveAll(dir)
}

// test runs the test that is to find the mistake, with the mistake made.
func (r *result) test(ctx context.Context, root, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	overlay, err := r.mutant.Overlay(root, dir)
	if err != nil {
		return err
	}
	t := r.mutant.Test
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-overlay", overlay, "-run", "^"+t.Name+"$", t.Package)
	cmd.Dir, cmd.Env = root, append(os.Environ(), tier.Variable+"=1") // or a test of the long tier would be skipped
	out, err := cmd.CombinedOutput()
	_, failure, failed := strings.Cut(string(out), "--- FAIL: "+t.Name)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed:
		lines := strings.SplitN(failure, "\n", 3)
		r.caught, r.first, r.broken, r.example = 1, 1, []string{t.Name}, strings.TrimSpace(lines[min(1, len(lines)-1)])
	case err != nil:
		return fmt.Errorf("go test: %w\n%s", err, out)
	case !strings.Contains(string(out), "ok "):
		return fmt.Errorf("go test ran no test %s in %s:\n%s", t.Name, t.Package, out)
	}
	r.runs = 1
	return os.RemoveAll(dir)
}

// note takes the report of one more run into account.
func (r *result) note(report *oracle.Report) {
	if report.Outcome == oracle.NotJudged {
		r.no++
		return
	}
	r.runs++
	if report.Held {
		return
	}
	if r.caught++; r.caught == 1 {
		r.first, r.seed = r.runs, report.Seed
	}
	for _, f := range report.Invariants {
		if f.Holds() || slices.Contains(r.broken, f.Name) {
			continue
		}
		if r.broken = append(r.broken, f.Name); r.example == "" && len(f.Examples) > 0 {
			r.example = f.Examples[0]
		}
	}
}

// simulate makes one run.
func simulate(ctx context.Context, binary string, seed uint64, duration time.Duration, mutant mutants.Mutant) (*oracle.Report, error) {
	faults, err := drawn(seed, mutant)
	if err != nil {
		return nil, err
	}
	args := append([]string{"-json", "-seed", fmt.Sprint(seed), "-duration", duration.String(), "-faults", faults.String()}, scale(mutant.Jobs)...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has a server to stop
	cmd.WaitDelay, cmd.Dir = time.Minute, filepath.Dir(binary)            // where a run that breaks is kept
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failed := cmd.Run()
	var said struct{ Runs []*oracle.Report }
	if err := json.Unmarshal(stdout.Bytes(), &said); err != nil || len(said.Runs) != 1 || said.Runs[0].Interrupted {
		return nil, errors.Join(failed, errors.New(strings.TrimSpace(stderr.String())))
	}
	return said.Runs[0], nil
}

// comesUp reports whether a run with this seed has the mistake's conditions.
func comesUp(mutant mutants.Mutant, seed uint64) bool {
	return mutant.Draws == "" || slices.ContainsFunc(sim.Draw(sim.Config{Seed: seed, Jobs: mutant.Jobs}).Lines(), func(l oracle.Line) bool {
		return strings.HasPrefix(l.Name+" "+l.Value, mutant.Draws)
	})
}

// drawn is what the seed draws, but for the faults that are always as said.
func drawn(seed uint64, mutant mutants.Mutant) (sim.Intensities, error) {
	faults := maps.Clone(sim.Draw(sim.Config{Seed: seed, Jobs: mutant.Jobs}).Faults)
	if mutant.Faults == "" {
		return faults, nil
	}
	on, err := parseFaults(mutant)
	for name, intensity := range on {
		faults[name] = intensity
	}
	return faults, err
}

// parseFaults reads the faults that are always as the mutant says.
func parseFaults(mutant mutants.Mutant) (sim.Intensities, error) {
	return sim.Faults(mutant.Jobs).Parse(mutant.Faults)
}
