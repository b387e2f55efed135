package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/jobs"
)

// foreignMix are jobs of a kind that the measured worker has no handler for.
func foreignMix(priority string) mix {
	return mix{"'foreign'", "'default'", priority, "clock_timestamp()"}
}

// jobsForeign compares workers behind many jobs that they cannot run with one that has
// only its own.
func jobsForeign(ctx context.Context, l *lab) (rows []row, err error) {
	places := []struct {
		about    string
		priority string
	}{{"", ""}, {"older, same priority", "5"}, {"better priority", "1"}}
	err = l.onJobs(ctx, func(l *lab, open func() (*jobBacklog, error)) error {
		var all []*jobBacklog
		for _, p := range places {
			b, err := open()
			if err != nil {
				return err
			}
			all = append(all, b)
			if p.priority == "" {
				continue
			}
			if err := b.add(ctx, l.size.foreign, foreignMix(p.priority)); err != nil {
				return err
			}
		}
		runs := make([][]jobsRun, len(all))
		for range l.size.jobRounds {
			for i, b := range all {
				r, err := b.runAll(ctx, l.size.jobs)
				if err != nil {
					return err
				}
				runs[i] = append(runs[i], r)
			}
		}
		var quiet durations
		for i, b := range all {
			about := fmt.Sprintf("behind %s foreign jobs, %s", grouped(l.size.foreign), places[i].about)
			if i > 0 {
				rows = append(rows, jobsRows(grouped(l.size.jobs)+" jobs "+about, grouped(l.size.jobs)+" jobs", runs[i], runs[0], 0.8)...)
			}
			starts, server, err := b.starts(ctx, l.size.foreignEach)
			if err != nil {
				return err
			}
			x := row{part: "until a job starts, " + about, measured: fmt.Sprintf("%s; the server used %.0f%% of a core", starts, 100*server), counted: len(starts)}
			if i == 0 {
				x.part, quiet = "until a job starts", starts
			} else {
				x.goal, x.reached = fmt.Sprintf("max <= 1 s + %s", short(quiet.max())), starts.max() <= time.Second+quiet.max()
			}
			rows = append(rows, x)
			if err := b.check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return rows, err
}

// starts enqueues jobs one by one and measures how long after that they start, and what
// share of a core the server used.
func (b *jobBacklog) starts(ctx context.Context, n int) (took durations, server float64, err error) {
	began := make(chan time.Time, n)
	handlers := jobs.NewHandlers()
	registerAll(handlers, func(context.Context, *jobs.Job[jobArgs]) error {
		began <- time.Now()
		return nil
	})
	w := jobs.NewWorker(b.db, handlers, jobs.WithQueue(jobs.DefaultQueue, jobSlots), jobs.WithNotifyConnectionString(b.url))
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	defer func() {
		w.Stop()
		err = errors.Join(err, <-ended)
	}()
	client := jobs.NewClient(b.db)
	one := func() (time.Duration, error) {
		at := time.Now()
		if _, err := client.Enqueue(ctx, nil, jobArgs{}); err != nil {
			return 0, err
		}
		b.ran++
		select {
		case start := <-began:
			return start.Sub(at), nil
		case <-time.After(limit):
			return 0, fmt.Errorf("the job has not started for %s", limit)
		}
	}
	if _, err := one(); err != nil { // when all that happens once has happened
		return nil, 0, err
	}
	before, errBefore := b.spent(ctx)
	since := time.Now()
	for range n {
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, 0, err
		}
		d, err := one()
		if err != nil {
			return nil, 0, err
		}
		took = append(took, d)
	}
	if after, errAfter := b.spent(ctx); errBefore == nil && errAfter == nil {
		server = (after.all - before.all).Seconds() / time.Since(since).Seconds()
	}
	return took, server, nil
}
