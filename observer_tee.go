package worker

import (
	"reflect"
	"slices"
)

// Tee returns an Observer that passes everything on to all of several, in
// this order.
func Tee(all ...Observer) Observer { return unite(all, nil) }

// unite makes one Observer of several, with protection if it is there.
func unite(all []Observer, p *protection) Observer {
	return Observer{
		logs:                slices.ContainsFunc(all, func(o Observer) bool { return o.logs }),
		WorkerStarted:       join(all, p, "WorkerStarted", func(o Observer) func(WorkerInfo) { return o.WorkerStarted }),
		WorkerStopped:       join(all, p, "WorkerStopped", func(o Observer) func(WorkerInfo) { return o.WorkerStopped }),
		ShutdownTimedOut:    join(all, p, "ShutdownTimedOut", func(o Observer) func(WorkerInfo) { return o.ShutdownTimedOut }),
		WorkerReregistered:  join(all, p, "WorkerReregistered", func(o Observer) func(WorkerInfo) { return o.WorkerReregistered }),
		StaleWorkersRemoved: join(all, p, "StaleWorkersRemoved", func(o Observer) func(int) { return o.StaleWorkersRemoved }),
		RolesHidden:         join(all, p, "RolesHidden", func(o Observer) func(string) { return o.RolesHidden }),
		LeadershipChanged:   join(all, p, "LeadershipChanged", func(o Observer) func(Leadership) { return o.LeadershipChanged }),
		Rebalanced:          join(all, p, "Rebalanced", func(o Observer) func(Rebalance) { return o.Rebalanced }),
		CoordinationFailed:  join(all, p, "CoordinationFailed", func(o Observer) func(error) { return o.CoordinationFailed }),
		ConsumerStarted:     join(all, p, "ConsumerStarted", func(o Observer) func(ConsumerInfo) { return o.ConsumerStarted }),
		ConsumerStopped:     join(all, p, "ConsumerStopped", func(o Observer) func(ConsumerInfo) { return o.ConsumerStopped }),
		ConsumerUnowned:     join(all, p, "ConsumerUnowned", func(o Observer) func(ConsumerInfo) { return o.ConsumerUnowned }),
		ConsumerFailed:      join(all, p, "ConsumerFailed", func(o Observer) func(ConsumerFailure) { return o.ConsumerFailed }),
		ConsumerPaused:      join(all, p, "ConsumerPaused", func(o Observer) func(ConsumerInfo) { return o.ConsumerPaused }),
		ConsumerWaiting:     join(all, p, "ConsumerWaiting", func(o Observer) func(ConsumerWait) { return o.ConsumerWaiting }),
		BatchStarted:        join(all, p, "BatchStarted", func(o Observer) func(Batch) { return o.BatchStarted }),
		BatchDone:           join(all, p, "BatchDone", func(o Observer) func(Batch) { return o.BatchDone }),
		HandlerOverdue:      join(all, p, "HandlerOverdue", func(o Observer) func(Batch) { return o.HandlerOverdue }),
		Retrying:            join(all, p, "Retrying", func(o Observer) func(Retry) { return o.Retrying }),
		DeadLettered:        join(all, p, "DeadLettered", func(o Observer) func(DeadLetter) { return o.DeadLettered }),
		DeadLetterFailed:    join(all, p, "DeadLetterFailed", func(o Observer) func(DeadLetter) { return o.DeadLetterFailed }),
		Rescaled:            join(all, p, "Rescaled", func(o Observer) func(Rescaled) { return o.Rescaled }),
		ScopeChanged:        join(all, p, "ScopeChanged", func(o Observer) func(ScopeChange) { return o.ScopeChanged }),
		DeadBatchEnded:      join(all, p, "DeadBatchEnded", func(o Observer) func(DeadBatch) { return o.DeadBatchEnded }),
		TransactionEnded:    join(all, p, "TransactionEnded", func(o Observer) func(TransactionEnd) { return o.TransactionEnded }),
		FrontierBlocked:     join(all, p, "FrontierBlocked", func(o Observer) func(BlockingTransaction) { return o.FrontierBlocked }),
		FrontierFailed:      join(all, p, "FrontierFailed", func(o Observer) func(error) { return o.FrontierFailed }),
		Skipped:             join(all, p, "Skipped", func(o Observer) func(Skip) { return o.Skipped }),
		NotifyFailed:        join(all, p, "NotifyFailed", func(o Observer) func(error) { return o.NotifyFailed }),
		Recovered:           join(all, p, "Recovered", func(o Observer) func(Recovery) { return o.Recovered }),
		Woken:               join(all, p, "Woken", func(o Observer) func(Wakeup) { return o.Woken }),
		PoolTooSmall:        join(all, p, "PoolTooSmall", func(o Observer) func(PoolUse) { return o.PoolTooSmall }),
		PoolSwept:           join(all, p, "PoolSwept", func(o Observer) func(PoolSweep) { return o.PoolSwept }),
		TaskFailed:          join(all, p, "TaskFailed", func(o Observer) func(TaskFailure) { return o.TaskFailed }),
		HookPanicked:        join(all, p, "HookPanicked", func(o Observer) func(HookPanic) { return o.HookPanicked }),
	}
}

// join returns a hook that calls those that are there, nil if none is.
func join[T any](all []Observer, p *protection, name string, hook func(Observer) func(T)) func(T) {
	var there []func(T)
	for i, o := range all {
		if h := hook(o); h != nil && !logsAlready(all[:i], o, func(other Observer) bool { return sameCode(hook(other), h) }) {
			there = append(there, protect(p, name, h))
		}
	}
	switch len(there) {
	case 0:
		return nil
	case 1:
		return there[0]
	}
	return func(about T) {
		for _, h := range there {
			h(about)
		}
	}
}

// logsAlready reports whether one of several Observers logs the same as o, to
// the same logger: nothing is reported twice. An Observer of NewSlogObserver
// whose hooks were changed since logs by those that were not.
func logsAlready(several []Observer, o Observer, same func(Observer) bool) bool {
	for _, other := range several {
		if o.logger != nil && o.logger == other.logger && same(other) {
			return true
		}
	}
	return false
}

// sameCode reports whether two hooks of one logger are the same.
func sameCode[T any](a, b func(T)) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
