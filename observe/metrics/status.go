package metrics

import (
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// sampleWorker emits the metrics of a worker's Status.
func sampleWorker(s worker.Status, now time.Time, sample Sample) {
	if s.State == observe.StateDrained {
		return // as an operator asked: it is neither up nor down
	}
	up := s.State == observe.StateRunning || s.State == observe.StateDraining
	sample(workerUp, truth(up))
	if !up {
		return
	}
	sample(workerInfo, 1, liveness.Build())
	sample(workerLeader, truth(s.Leader))
	if !s.LastHeartbeat.IsZero() {
		sample(workerHeartbeat, max(now.Sub(s.LastHeartbeat), 0).Seconds())
	}
	if s.Leader {
		sample(workerUnowned, float64(len(s.Unowned)))
	}
	sample(openRangesLimit, float64(s.MaxOpenRanges))
	sample(logHead, float64(s.Head))
	sample(frontierSafe, float64(s.Safe))
	sample(frontierSettled, float64(s.Settled))
	sample(frontierUp, truth(s.FrontierError == nil && s.LoopError == nil))
	if !s.LastRead.IsZero() {
		sample(frontierReadAge, max(now.Sub(s.LastRead), 0).Seconds())
	}
	sample(frontierStill, s.SafeStill.Seconds())
	sampleBlocked(s.Blocked, sample)
	assigned := 0
	for _, c := range s.Consumers {
		if c.Assigned {
			assigned++
			sampleConsumer(c, sample)
		}
	}
	sample(workerAssigned, float64(assigned))
}

func sampleBlocked(all []observe.BlockingTransaction, sample Sample) {
	var oldest time.Duration
	var holding, passed int
	for _, b := range all {
		if b.Passed {
			passed++
			continue
		}
		holding++
		oldest = max(oldest, b.Age)
	}
	sample(frontierBlocked, oldest.Seconds())
	sample(frontierBlockers, float64(holding), "holding")
	sample(frontierBlockers, float64(passed), "passed")
}

// sampleConsumer emits the metrics of a consumer that this worker runs. It emits none until the
// worker has loaded the consumer's progress.
func sampleConsumer(c observe.ConsumerStatus, sample Sample) {
	if c.Lag == nil {
		return
	}
	sample(consumerPosition, float64(c.Position), c.Consumer, c.Partition)
	sample(consumerLag, float64(*c.Lag), c.Consumer, c.Partition)
	if c.HeadLag != nil {
		sample(consumerBehind, float64(*c.HeadLag), c.Consumer, c.Partition)
	}
	if c.OldestAge != nil {
		sample(consumerOldest, c.OldestAge.Seconds(), c.Consumer, c.Partition)
	}
	sample(consumerPaused, truth(c.Paused != nil), c.Consumer, c.Partition)
	sample(deadLettersOpen, float64(c.DeadLetters), c.Consumer, c.Partition)
	sample(openRanges, float64(c.OpenRanges), c.Consumer, c.Partition)
}

// sampleJobs emits the metrics of the Status of a worker of jobs.
func sampleJobs(s jobs.Status, now time.Time, sample Sample) {
	if s.State == observe.StateDrained {
		return
	}
	up := s.State == observe.StateRunning || s.State == observe.StateDraining
	sample(jobsUp, truth(up))
	if !up {
		return
	}
	sample(jobsLeader, truth(s.Leader))
	if !s.LastHeartbeat.IsZero() {
		sample(jobsHeartbeat, max(now.Sub(s.LastHeartbeat), 0).Seconds())
	}
	sample(jobsUnsettled, float64(s.Unsettled))
	for _, q := range s.Queues {
		sample(jobsConcurrent, float64(q.Concurrency), q.Name)
		sample(jobsRunning, float64(q.Running), q.Name)
		sample(jobsLostSlots, float64(q.Overdue), q.Name)
		sample(jobsPrefetched, float64(q.Prefetched), q.Name)
		sample(jobsQueueUp, truth(q.LastError == nil || q.Refused > 0), q.Name)
		sample(jobsPaused, truth(q.Paused), q.Name)
		sample(jobsUnknown, float64(len(q.UnknownKinds)), q.Name)
	}
}

// sampleTable emits the metrics of the Status of a worker of package jobs/table.
func sampleTable(name string, s table.Status, now time.Time, sample Sample) {
	up := s.State == observe.StateRunning || s.State == observe.StateDraining
	sample(tableUp, truth(up), name, "worker")
	if !up {
		return
	}
	sample(tableUp, truth(s.LoopError == nil), name, "loops")
	for _, of := range []struct {
		what    observe.Condition
		err     error
		refused int
		success time.Time
	}{
		{observe.ConditionClaim, s.ClaimError, s.Refused.Claim, s.LastSuccess.Claim},
		{observe.ConditionHeartbeat, s.HeartbeatError, s.Refused.Heartbeat, s.LastSuccess.Heartbeat},
		{observe.ConditionSettle, s.SettleError, s.Refused.Settle, s.LastSuccess.Settle},
		{observe.ConditionReset, s.ResetError, s.Refused.Reset, s.LastSuccess.Reset},
	} {
		sample(tableUp, truth(of.err == nil || of.refused > 0), name, string(of.what))
		sample(tableRefused, float64(of.refused), name, string(of.what))
		if !of.success.IsZero() {
			sample(tableSuccess, max(now.Sub(of.success), 0).Seconds(), name, string(of.what))
		}
	}
	sample(tableSlots, float64(s.NumHandlers-s.Running), name, "free")
	sample(tableSlots, float64(max(s.Running-s.Unsettled-s.Overdue, 0)), name, "running")
	sample(tableSlots, float64(s.Unsettled), name, "unsettled")
	sample(tableSlots, float64(s.Overdue), name, "lost")
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
