package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// fan is a flow of eight steps side by side, and one that joins them. Its handlers are
// those of plain jobs.
var fan = newFan()

// fanSteps are the handlers that a run of fan calls.
const fanSteps = 9

func newFan() *flow.Flow[int] {
	f := flow.New[int]("fan")
	var all []flow.Dependency
	for i := range fanSteps - 1 {
		all = append(all, flow.Add[flow.None](f, fmt.Sprintf("step %d", i), func(n int) jobArgs { return jobArgs{n} }))
	}
	flow.Add[flow.None](f, "join", func(n int) jobArgs1 { return jobArgs1{jobArgs{n}} }, flow.After(all...))
	return f
}

// jobsFlow compares the steps of flows with as many plain jobs; and plain jobs of a
// worker that advances flows with those of one that does not.
func jobsFlow(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onJobs(ctx, func(l *lab, open func() (*jobBacklog, error)) error {
		n := l.size.jobs / fanSteps * fanSteps
		var backlogs [3]*jobBacklog
		for i := range backlogs {
			if backlogs[i], err = open(); err != nil {
				return err
			}
		}
		steps, bare, beside := backlogs[0], backlogs[1], backlogs[2]
		var runs [3][]jobsRun
		for range l.size.jobRounds {
			if err := steps.startRuns(ctx, n/fanSteps); err != nil {
				return err
			}
			for _, b := range []*jobBacklog{bare, beside} {
				if err := b.add(ctx, n, plain); err != nil {
					return err
				}
			}
			for i, b := range backlogs {
				if err := b.ready(ctx); err != nil {
					return err
				}
				r, err := b.runWith(ctx, role{Jobs: n, Flows: b != bare})
				if err != nil {
					return err
				}
				runs[i] = append(runs[i], r)
			}
		}
		rows = jobsRows(fmt.Sprintf("%s steps: flows of 8 and a join", grouped(n)), grouped(n)+" plain jobs", runs[0], runs[1], 0.5)
		rows = append(rows, jobsRows(fmt.Sprintf("%s plain jobs of a worker that advances flows", grouped(n)), grouped(n)+" plain jobs", runs[2], runs[1], 0.9)[1:]...)
		for _, b := range backlogs {
			if err := b.check(ctx); err != nil {
				return err
			}
		}
		return steps.checkRuns(ctx)
	})
	return rows, err
}

func (b *jobBacklog) startRuns(ctx context.Context, n int) error {
	client := flow.NewClient(jobs.NewClient(b.db))
	tx, err := b.db.BeginTx(ctx, &sql.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for i := range n {
		if _, err := fan.Start(ctx, client, tx, i); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// tellRest has another worker tell of the steps that the last one had no time for when it
// stopped. There are no jobs left.
func (b *jobBacklog) tellRest(ctx context.Context) (err error) {
	handlers := jobs.NewHandlers()
	registerAll(handlers, func(context.Context, *jobs.Job[jobArgs]) error { return errors.New("a job is left") })
	w := jobs.NewWorker(b.db, handlers, flow.Advance())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	defer func() {
		w.Stop()
		err = errors.Join(err, <-ended)
	}()
	return until(ctx, "all runs to end", func() bool {
		var running int
		err := b.db.QueryRowContext(ctx, `SELECT count(*) FROM jobs_flow_runs WHERE state = 'running'`).Scan(&running)
		return err == nil && running == 0
	})
}

// checkRuns returns an error unless each run has completed, once, and no locks met
// crosswise.
func (b *jobBacklog) checkRuns(ctx context.Context) error {
	if err := b.tellRest(ctx); err != nil {
		return err
	}
	var wrong, deadlocks int
	err := b.db.QueryRowContext(ctx, `
SELECT (SELECT count(*) FROM jobs_flow_runs WHERE state <> 'completed' OR unfinished <> 0 OR bad <> 0)
	+ (SELECT count(*) FROM jobs_flow_steps WHERE state <> 'completed' OR need <> 0 OR may_fail <> 0),
	(SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())`).Scan(&wrong, &deadlocks)
	if err == nil && wrong+deadlocks > 0 {
		err = fmt.Errorf("%d runs and steps have not completed as they should, and %d deadlocks", wrong, deadlocks)
	}
	return err
}
