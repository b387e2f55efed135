package metrics

import (
	"context"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/jobs/table"
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

// Observer counts what a worker does, for [worker.WithObserver].
func (r *Recorder) Observer() worker.Observer {
	return worker.Observer{
		ConsumerStarted: func(c worker.ConsumerInfo) { r.came(c.Consumer) },
		ConsumerStopped: func(c worker.ConsumerInfo) { r.went(c.Consumer) },
		BatchDone:       r.batchDone,
		Retrying: func(t worker.Retry) {
			consumer, _ := split(t.Consumer)
			r.count(consumerRetries, 1, consumer, causeOf(t))
		},
		DeadLettered: func(d worker.DeadLetter) {
			consumer, _ := split(d.Consumer)
			r.count(lettersAdded, 1, consumer)
		},
		Skipped: func(s worker.Skip) {
			consumer, _ := split(s.Consumer)
			r.count(consumerSkipped, float64(s.Missing), consumer, string(s.State))
		},
		Woken: func(w worker.Wakeup) { r.count(workerWakeups, 1, string(w.Source)) },
	}
}

func (r *Recorder) batchDone(b worker.Batch) {
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

func causeOf(t worker.Retry) string {
	switch {
	case t.ByHandler:
		return causeHandler
	case t.Trouble == worker.TroubleBatch:
		return causeConflict
	case t.Trouble == worker.TroubleKey:
		return causeKey
	}
	return causeDatabase
}

// JobsObserver counts what a worker of jobs does, for [jobs.WithObserver].
func (r *Recorder) JobsObserver() jobs.Observer {
	return jobs.Observer{
		JobsClaimed: func(c jobs.Claimed) {
			r.count(jobsClaimed, float64(c.Jobs), c.Queue)
			r.record(context.Background(), jobsClaim, c.Took, c.Queue)
		},
		QueueFailed: func(t jobs.Trouble) { r.count(jobsUnclaimed, 1, t.Queue) },
		JobDone: func(d jobs.Done) {
			r.count(jobsDone, 1, d.Queue, d.Kind, outcomeOf(d))
			r.record(context.Background(), jobsDuration, d.Took, d.Queue, d.Kind)
			r.record(context.Background(), jobsWait, d.Waited, d.Queue, d.Kind)
		},
		FlowRunEnded: func(f jobs.FlowRun) {
			r.count(jobsRuns, 1, f.Flow, string(f.State))
			r.record(context.Background(), jobsRunTook, f.Took, f.Flow)
		},
		JobLost: func(h jobs.Header) { r.count(jobsLost, 1, h.Queue, h.Kind) },
	}
}

// TableObserver counts what a worker of package jobs/table does, for the Observers of its
// WorkerOptions. name is the attribute table: give each table of the program its own.
func (r *Recorder) TableObserver(name string) table.Observer {
	return table.Observer{
		JobsClaimed: func(c table.Claimed) {
			r.count(tableClaimed, float64(c.Jobs), name)
			r.record(context.Background(), tableClaim, c.Took, name)
		},
		JobDone: func(d table.Done) {
			r.count(tableDone, 1, name, string(d.State))
			r.record(context.Background(), tableDuration, d.Took, name)
		},
		JobLost: func(table.Header) { r.count(tableLost, 1, name) },
		Failed:  func(t table.Trouble) { r.count(tableFailures, 1, name, t.What) },
	}
}

// ScheduleObserver counts what a Scheduler does, for its method WithObserver.
func (r *Recorder) ScheduleObserver() schedule.Observer {
	return schedule.Observer{
		Ticked: func(k schedule.Ticked) {
			if k.Jobs == 0 {
				r.count(jobsTicks, 1, k.Schedule, "passed")
				return
			}
			r.count(jobsTicks, float64(k.Jobs), k.Schedule, "enqueued")
			r.record(context.Background(), jobsLateTick, k.Late, k.Schedule)
		},
		TickFailed: func(f schedule.TickFailure) { r.count(jobsTicks, 1, f.Schedule, outcomeFailed) },
	}
}

func outcomeOf(d jobs.Done) string {
	switch {
	case d.State != jobs.StateAvailable:
		return string(d.State)
	case d.Failed:
		return "retried"
	}
	return "snoozed"
}
