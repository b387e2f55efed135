package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// atOnce is how many runs of a setting there are at a time. A run mostly waits.
const atOnce = 3

// stubborn is how often the first setting is tried in that way.
const stubborn = 3

// reducer searches for a smaller run that fails.
type reducer struct {
	db     string  // of the command line
	lanes  []*host // what one does to its server is not to harm the others
	stderr io.Writer
	began  time.Time
	runs   int

	unjudged int // of the last runs at once

	broken []string // the invariants that the first run broke
	best   *oracle.Report
	kept   string // its directory
}

// reduce makes runs that are smaller and smaller. It returns the report of the
// smallest one that failed.
func reduce(ctx context.Context, o options, stdout, stderr io.Writer) (reports []*oracle.Report, err error) {
	r := &reducer{db: o.db, stderr: stderr}
	defer func() { err = errors.Join(err, r.stop(ctx)) }()
	for range atOnce {
		h, err := o.newHost(ctx, o.config.Connections(), stderr)
		if err != nil {
			return nil, err
		}
		r.lanes = append(r.lanes, h)
	}
	r.began = time.Now()
	limited, cancel := context.WithTimeout(ctx, o.reduce)
	defer cancel()
	c := o.config
	c.Faults = sim.Draw(c).Faults // no longer drawn, so that they can be taken away
	if err = r.confirm(limited, c); err == nil {
		_, err = shrink(c, func(c sim.Config) (bool, error) { return r.fails(limited, c) })
	}
	timeUp := limited.Err() != nil && ctx.Err() == nil
	switch {
	case timeUp && r.best == nil:
		return nil, fmt.Errorf("sim: nothing to reduce: seed %d has not failed in %v", c.Seed, o.reduce)
	case err != nil && !timeUp:
		return nil, err
	}
	why := "there is none one step smaller"
	if timeUp {
		why = "time is up"
	}
	_, err = fmt.Fprintf(stdout, "the smallest run that failed, of %d in %v; %s:\n  %s\nverdict: %s\nkept:    %s\n",
		r.runs, time.Since(r.began).Round(time.Second), why, r.best.Repeat, r.best.Verdict, r.kept)
	return []*oracle.Report{r.best}, err
}

// stop ends the servers.
func (r *reducer) stop(ctx context.Context) (err error) {
	for _, l := range r.lanes {
		err = errors.Join(err, l.stop(ctx))
	}
	return err
}

// confirm lets the run fail that the search begins with.
func (r *reducer) confirm(ctx context.Context, c sim.Config) error {
	for range stubborn {
		if failed, err := r.fails(ctx, c); failed || err != nil {
			return err
		}
	}
	return fmt.Errorf("sim: nothing to reduce: seed %d held in %d runs", c.Seed, r.runs)
}

// fails makes some runs of a setting, and reports whether one of them broke
// what the first did. That one is kept in place of the one before.
func (r *reducer) fails(ctx context.Context, c sim.Config) (bool, error) {
	began := time.Now()
	failure, by, err := r.race(ctx, c)
	if err != nil {
		return false, err
	}
	outcome := fmt.Sprintf("held %d times", atOnce-r.unjudged)
	if r.unjudged > 0 {
		outcome += fmt.Sprintf(", was not judged %d times", r.unjudged)
	}
	if failure != nil {
		outcome = "FAILED: " + strings.Join(brokenOf(failure), ", ")
	}
	fmt.Fprintf(r.stderr, "%6v  %s: %s, in %.0fs\n", time.Since(r.began).Round(time.Second), describe(c), outcome, time.Since(began).Seconds())
	if failure == nil {
		return false, nil
	}
	return true, r.improve(failure, by)
}

// describe names a setting in a line that is not too long.
func describe(c sim.Config) string {
	faults := fmt.Sprintf("%d faults", len(c.Faults))
	if len(c.Faults) <= 6 {
		faults = "-faults " + c.Faults.String()
	}
	if c.Jobs {
		return fmt.Sprintf("%d workers, %d enqueuers, %v, %s", c.Workers, c.Writers, c.Duration, faults)
	}
	return fmt.Sprintf("%d workers, %d writers, %d consumers, %v, %s", c.Workers, c.Writers, c.Consumers, c.Duration, faults)
}

// race makes some runs at once, the first failure ends the others.
func (r *reducer) race(ctx context.Context, c sim.Config) (failure *oracle.Report, by *host, err error) {
	ctx, over := context.WithCancel(ctx)
	defer over()
	var wg sync.WaitGroup
	var mu sync.Mutex
	r.runs += len(r.lanes)
	r.unjudged = 0
	for _, l := range r.lanes {
		wg.Go(func() {
			report, wrong := l.run(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failure != nil:
			case wrong != nil:
				err = errors.Join(err, wrong)
				over()
			case r.same(report):
				failure, by = report, l
				over()
			case report.Outcome == oracle.NotJudged:
				r.unjudged++
			}
		})
	}
	wg.Wait()
	if failure != nil {
		return failure, by, nil
	}
	return nil, by, err
}

// same reports that a run broke one of the invariants that the first broke.
// That one was never checked is no failure: there is less and less to check.
func (r *reducer) same(report *oracle.Report) bool {
	return slices.ContainsFunc(brokenOf(report), func(name string) bool { return r.broken == nil || slices.Contains(r.broken, name) })
}

func brokenOf(r *oracle.Report) (names []string) {
	for _, f := range r.Invariants {
		if f.Broken > 0 {
			names = append(names, f.Name)
		}
	}
	return names
}

// improve keeps a smaller run that failed. Whenever the search ends, one is
// there.
func (r *reducer) improve(failure *oracle.Report, by *host) error {
	if r.broken == nil {
		r.broken = brokenOf(failure)
	}
	options{db: r.db}.sayHow(failure)
	before := r.kept
	var err error
	if r.kept, err = by.keep.save(fmt.Sprintf("sim-reduced-%d", failure.Seed), failure); err != nil {
		return err
	}
	r.best = failure
	if before != "" {
		return os.RemoveAll(before)
	}
	return nil
}
