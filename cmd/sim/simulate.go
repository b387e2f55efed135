package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// simulate makes the runs on one server. It goes on after one that broke, or that was not
// judged.
func simulate(ctx context.Context, o options, stdout, stderr io.Writer) (reports []*oracle.Report, err error) {
	runs := o.plan()
	h, err := o.newHost(ctx, mostConnections(runs), stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.stop(ctx)) }()
	c := campaign{o, h, stdout, stderr, o.seeds, nil}
	for _, r := range runs {
		if err := c.add(ctx, r, len(runs) > 1); err != nil {
			return c.reports, err
		}
	}
	if err := c.again(ctx, runs); err != nil {
		return c.reports, err
	}
	if len(runs) > 1 && !o.json {
		err = errors.Join(o.sum(c.reports).WriteText(stdout), nameLines(stdout, c.lines, c.reports))
	}
	return c.reports, err
}

// campaign is what has been made of one.
type campaign struct {
	options
	host           *host
	stdout, stderr io.Writer
	lines          []recorded // of the reports; none of drawn seeds
	reports        []*oracle.Report
}

// add makes a run.
func (c *campaign) add(ctx context.Context, run sim.Config, oneOfSeveral bool) error {
	show := command.NewProgress(c.stderr)
	run.Progress = func(p sim.Progress) { show.Show(progress(run.Jobs, p)) }
	report, err := c.host.run(ctx, run)
	show.Done()
	if report == nil {
		return err
	}
	c.sayHow(report)
	c.reports = append(c.reports, report)
	forget(c.reports)
	if !c.json {
		err = errors.Join(err, write(c.stdout, report, oneOfSeveral))
	}
	return errors.Join(err, c.host.keep.end(report, c.stderr))
}

// again makes runs again that could come to what none has come to, up to twice each, until one
// has: chance alone is not to decide the verdict.
func (c *campaign) again(ctx context.Context, runs []sim.Config) error {
	planned := slices.Clone(c.reports)
	for n := range 2 * len(planned) {
		i := n % len(planned)
		lacks := c.sum(c.reports).Lacks(planned[i])
		if len(lacks) == 0 {
			continue
		}
		if len(c.lines) > 0 {
			c.lines = append(slices.Clip(c.lines), c.lines[i])
		}
		_, err := fmt.Fprintf(c.stderr, "seed %d again, as no run has come to: %s\n", planned[i].Seed, strings.Join(lacks, "; "))
		if err = errors.Join(err, c.add(ctx, runs[i], true)); err != nil {
			return err
		}
	}
	return nil
}

// plan lists the runs of the command line.
func (o options) plan() (runs []sim.Config) {
	for _, l := range o.seeds {
		runs = append(runs, l.config)
	}
	for i := 0; i < o.runs && len(o.seeds) == 0; i++ {
		c := o.config
		c.Seed += uint64(i)
		runs = append(runs, c)
	}
	return runs
}

// mostConnections is how many connections the largest of the runs opens.
func mostConnections(runs []sim.Config) (n int) {
	for _, c := range runs {
		n = max(n, c.Connections())
	}
	return n
}

func progress(jobs bool, p sim.Progress) string {
	if jobs {
		return fmt.Sprintf("%5.1fs  %6d jobs enqueued, %6d completed, %5d due, %3d crashes", p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag, p.Crashes)
	}
	return fmt.Sprintf("%5.1fs  %6d events appended, %6d handled by every consumer, lag %5d, %3d crashes",
		p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag, p.Crashes)
}

// sayHow completes the commands that a report names. The string of -db may hold
// a password, so it is not printed.
func (o options) sayHow(r *oracle.Report) {
	if o.db != "" {
		r.Repeat += " -db ..."
	}
	r.Reduce = r.Repeat + " -reduce 5m"
}

// forget drops the evidence of all reports but the telling one, so that a long
// campaign does not fill the memory.
func forget(reports []*oracle.Report) {
	for _, r := range reports[:len(reports)-1] {
		if r != telling(reports) {
			r.Evidence = nil
		}
	}
}

// write prints a report; one of several that did not break takes one line.
func write(w io.Writer, r *oracle.Report, oneOfSeveral bool) error {
	if oneOfSeveral && (r.Held || r.Outcome == oracle.NotJudged) {
		first := ""
		if r.FirstTry != "" {
			first = "; first " + r.FirstTry
		}
		_, err := fmt.Fprintf(w, "seed %d: %s, in %.1fs%s\n", r.Seed, r.Verdict, r.Seconds, first)
		return err
	}
	return r.WriteText(w)
}

// telling is the report worth reading: the first that broke, or the last.
func telling(reports []*oracle.Report) *oracle.Report {
	for _, r := range reports {
		if r.Outcome == oracle.Broken {
			return r
		}
	}
	if len(reports) == 0 {
		return nil
	}
	return reports[len(reports)-1]
}

// sum adds up the runs. Of recorded seeds all are to be judged: each is the test of one
// defect.
func (o options) sum(reports []*oracle.Report) oracle.Total {
	t := oracle.Sum(reports)
	if len(o.seeds) > 0 && len(t.NotJudged) > 0 && t.Outcome == oracle.Held {
		t.Outcome = oracle.NotJudged
	}
	return t
}
