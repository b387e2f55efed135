package main

import (
	"context"
	"fmt"
)

// jobsHeld compares a worker while nothing that dies can be removed with one without
// such a snapshot.
func jobsHeld(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onJobs(ctx, func(l *lab, open func() (*jobBacklog, error)) error {
		b, err := open()
		if err != nil {
			return err
		}
		n := l.size.manyJobs
		var held, free []jobsRun
		for range l.size.jobRounds {
			r, err := b.runAll(ctx, n)
			if err != nil {
				return err
			}
			free = append(free, r)
			release, err := b.holdSnapshot(ctx)
			if err != nil {
				return err
			}
			if r, err = b.runAll(ctx, n); err != nil {
				return err
			}
			held = append(held, r)
			if err := release(); err != nil {
				return err
			}
		}
		rows = jobsRows(fmt.Sprintf("%s jobs, a snapshot is held", grouped(n)), fmt.Sprintf("%s jobs", grouped(n)), held, free, 0.5)
		return b.check(ctx)
	})
	return rows, err
}

// runAll enqueues n jobs and lets a worker run them.
func (b *jobBacklog) runAll(ctx context.Context, n int) (r jobsRun, err error) {
	if err := b.add(ctx, n, plain); err != nil {
		return r, err
	}
	if err := b.ready(ctx); err != nil {
		return r, err
	}
	return b.run(ctx, n)
}
