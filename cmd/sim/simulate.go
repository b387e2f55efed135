package main

import (
	"context"
	"errors"
	"fmt"
	"io"

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
	show := command.NewProgress(stderr)
	for _, c := range runs {
		c.Progress = func(p sim.Progress) { show.Show(progress(c.Jobs, p)) }
		report, err := h.run(ctx, c)
		show.Done()
		if report != nil {
			o.sayHow(report)
			reports = append(reports, report)
			forget(reports)
			if !o.json {
				err = errors.Join(err, write(stdout, report, len(runs) > 1))
			}
			err = errors.Join(err, h.keep.end(report, stderr))
		}
		if err != nil {
			return reports, err
		}
	}
	if len(runs) > 1 && !o.json {
		err = errors.Join(o.sum(reports).WriteText(stdout), o.nameLines(stdout, reports))
	}
	return reports, err
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

// telling is the report worth looking at: the first that broke, or the last.
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
