package metrics

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

const (
	outcomeCommitted = "committed"
	outcomeFailed    = "failed"
	outcomeOvertaken = "overtaken"

	causeHandler  = "handler"
	causeConflict = "conflict"
	causeDatabase = "database"
	causeKey      = "key"
)

// Observer counts the events of workers and Schedulers, for their WithObserver, and of
// VerifyEvery of package ops.
func (r *Recorder) Observer() observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.ConsumerStarted:
			r.came(e.Consumer)
		case observe.ConsumerStopped:
			r.went(e.Consumer)
		case observe.BatchDone:
			r.batchDone(e)
		case observe.Retrying:
			consumer, _ := split(e.Consumer)
			r.count(consumerRetries, 1, consumer, causeOf(e))
		case observe.DeadLettered:
			consumer, _ := split(e.Consumer)
			r.count(deadLettersAdded, 1, consumer)
		case observe.Skipped:
			consumer, _ := split(e.Consumer)
			r.count(consumerSkipped, float64(e.Missing), consumer, string(e.State))
		case observe.Verified:
			r.count(consumerVerified, 1, e.Consumer, outcomeOfVerified(e))
		case observe.Woken:
			r.count(workerWakeups, 1, string(e.Source))
		default:
			r.job(e)
		}
	}
}

func (r *Recorder) batchDone(b observe.BatchDone) {
	consumer, _ := split(b.Consumer)
	switch {
	case b.Overtaken:
		r.count(consumerBatches, 1, consumer, outcomeOvertaken)
		return
	case b.Err != nil:
		r.count(consumerBatches, 1, consumer, outcomeFailed)
		return
	}
	r.count(consumerBatches, 1, consumer, outcomeCommitted)
	r.count(consumerEvents, float64(b.Events-b.Late), consumer, "false")
	r.count(consumerEvents, float64(b.Late), consumer, "true")
	for _, p := range [...]struct {
		name string
		took time.Duration
	}{{"read", b.Read}, {"guard", b.Guard}, {"handle", b.Handle}, {"commit", b.Commit}} {
		r.record(context.Background(), batchDuration, p.took, consumer, p.name)
	}
}

func outcomeOfVerified(e observe.Verified) string {
	switch {
	case e.Err != nil:
		return outcomeFailed
	case e.Missing+e.Unexpected > 0:
		return "differs"
	}
	return "right"
}

func causeOf(t observe.Retrying) string {
	switch {
	case t.ByHandler:
		return causeHandler
	case t.Condition == observe.ConditionBatch:
		return causeConflict
	case t.Condition == observe.ConditionKey:
		return causeKey
	}
	return causeDatabase
}

// job counts the events of workers of jobs and Schedulers.
func (r *Recorder) job(e observe.Event) {
	switch e := e.(type) {
	case observe.JobsClaimed:
		r.count(jobsClaimed, float64(e.Jobs), e.Queue)
		r.record(context.Background(), jobsClaim, e.Took, e.Queue)
	case observe.StatementFailed:
		if e.Condition == observe.ConditionQueue {
			r.count(jobsUnclaimed, 1, e.Queue)
		}
	case observe.JobDone:
		r.count(jobsDone, 1, e.Queue, e.Kind, outcomeOf(e))
		r.record(context.Background(), jobsDuration, e.Took, e.Queue, e.Kind)
		r.record(context.Background(), jobsWait, e.Waited, e.Queue, e.Kind)
	case observe.FlowRunEnded:
		r.count(jobsRuns, 1, e.Flow, e.State)
		r.record(context.Background(), jobsRunTook, e.Took, e.Flow)
	case observe.JobLost:
		r.count(jobsLost, 1, e.Queue, e.Kind)
	case observe.Ticked:
		if e.Jobs == 0 {
			r.count(jobsTicks, 1, e.Schedule, "passed")
			return
		}
		r.count(jobsTicks, float64(e.Jobs), e.Schedule, "enqueued")
		r.record(context.Background(), jobsLateTick, e.Late, e.Schedule)
	case observe.TickFailed:
		r.count(jobsTicks, 1, e.Schedule, outcomeFailed)
	}
}

// TableObserver counts the events of a worker of package jobs/table, for Observers of its
// WorkerOptions. name is the attribute table: the tables of a program have different names.
func (r *Recorder) TableObserver(name string) observe.Observer {
	return func(e observe.Event) {
		switch e := e.(type) {
		case observe.JobsClaimed:
			r.count(tableClaimed, float64(e.Jobs), name)
			r.record(context.Background(), tableClaim, e.Took, name)
		case observe.JobDone:
			r.count(tableDone, 1, name, e.State)
			r.record(context.Background(), tableDuration, e.Took, name)
		case observe.JobLost:
			r.count(tableLost, 1, name)
		case observe.StatementFailed:
			r.count(tableFailures, 1, name, string(e.Condition))
		}
	}
}

func outcomeOf(d observe.JobDone) string {
	switch {
	case d.State != string(jobs.StateAvailable):
		return d.State
	case d.Failed:
		return "retried"
	}
	return "snoozed"
}
