package main

import (
	"context"
	"fmt"
)

// jobsOfBacklog compares a worker before a large backlog with one before a small one:
// first where all jobs are alike and due, then where they are of several kinds, queues
// and priorities, and most are due later.
func jobsOfBacklog(ctx context.Context, l *lab) (rows []row, err error) {
	for _, b := range []struct {
		about string
		due   mix
		later int // of ten
	}{{"", plain, 0}, {" of 4 kinds, 3 queues, 4 priorities, 6 of 10 due later", mixed, 6}} {
		err := l.onJobs(ctx, func(l *lab, open func() (*jobBacklog, error)) error {
			var both [2]*jobBacklog
			for i, n := range l.size.backlogs {
				var err error
				if both[i], err = open(); err != nil {
					return err
				}
				after := n / 10 * b.later
				if err := both[i].add(ctx, after, later); err != nil {
					return err
				}
				if err := both[i].add(ctx, n-after, b.due); err != nil {
					return err
				}
			}
			more, err := l.compareBacklogs(ctx, both, b.about, b.due)
			rows = append(rows, more...)
			return err
		})
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (l *lab) compareBacklogs(ctx context.Context, both [2]*jobBacklog, about string, due mix) (rows []row, err error) {
	var runs [2][]jobsRun
	for range l.size.jobRounds {
		for i, b := range both {
			if err := b.ready(ctx); err != nil {
				return nil, err
			}
			r, err := b.run(ctx, l.size.jobs)
			if err != nil {
				return nil, err
			}
			runs[i] = append(runs[i], r)
			if err := b.add(ctx, l.size.jobs, due); err != nil {
				return nil, err
			}
		}
	}
	name := func(n int) string { return fmt.Sprintf("%s of %s jobs%s", grouped(l.size.jobs), grouped(n), about) }
	rows = jobsRows(name(l.size.backlogs[1]), name(l.size.backlogs[0]), runs[1], runs[0], 0.8)
	for _, b := range both {
		if err := b.check(ctx); err != nil {
			return rows, err
		}
	}
	// A long run shows what grows with the jobs that have run. Nothing is vacuumed before.
	n := min(l.size.manyJobs, 4*l.size.backlogs[1]/10)
	r, err := both[1].run(ctx, n)
	if err != nil {
		return rows, err
	}
	ratio := r.Rate / medianRun(runs[0]).Rate
	rows = append(rows, row{part: fmt.Sprintf("%s of %s jobs%s", grouped(n), grouped(l.size.backlogs[1]), about),
		measured: fmt.Sprintf("%s, %.0f%% of the control", r.text(), 100*ratio), counted: r.Ran, ratio: ratio})
	return rows, both[1].check(ctx)
}
