package worker

import "reflect"

// Tee returns an Observer that passes everything on to all of several, in
// this order.
func Tee(all ...Observer) Observer { return unite(all, nil) }

// unite makes one Observer of several. report, if it is there, is told of hooks
// that panic.
func unite(all []Observer, report func(HookPanic)) Observer {
	return Observer{
		WorkerStarted:       join(all, report, "WorkerStarted", func(o Observer) func(WorkerInfo) { return o.WorkerStarted }),
		WorkerStopped:       join(all, report, "WorkerStopped", func(o Observer) func(WorkerInfo) { return o.WorkerStopped }),
		ShutdownTimedOut:    join(all, report, "ShutdownTimedOut", func(o Observer) func(WorkerInfo) { return o.ShutdownTimedOut }),
		WorkerReregistered:  join(all, report, "WorkerReregistered", func(o Observer) func(WorkerInfo) { return o.WorkerReregistered }),
		StaleWorkersRemoved: join(all, report, "StaleWorkersRemoved", func(o Observer) func(int) { return o.StaleWorkersRemoved }),
		RolesHidden:         join(all, report, "RolesHidden", func(o Observer) func(string) { return o.RolesHidden }),
		LeadershipChanged:   join(all, report, "LeadershipChanged", func(o Observer) func(Leadership) { return o.LeadershipChanged }),
		Rebalanced:          join(all, report, "Rebalanced", func(o Observer) func(Rebalance) { return o.Rebalanced }),
		CoordinationFailed:  join(all, report, "CoordinationFailed", func(o Observer) func(error) { return o.CoordinationFailed }),
		ConsumerStarted:     join(all, report, "ConsumerStarted", func(o Observer) func(ConsumerInfo) { return o.ConsumerStarted }),
		ConsumerStopped:     join(all, report, "ConsumerStopped", func(o Observer) func(ConsumerInfo) { return o.ConsumerStopped }),
		ConsumerUnowned:     join(all, report, "ConsumerUnowned", func(o Observer) func(ConsumerInfo) { return o.ConsumerUnowned }),
		ConsumerFailed:      join(all, report, "ConsumerFailed", func(o Observer) func(ConsumerFailure) { return o.ConsumerFailed }),
		ConsumerPaused:      join(all, report, "ConsumerPaused", func(o Observer) func(ConsumerInfo) { return o.ConsumerPaused }),
		ConsumerWaiting:     join(all, report, "ConsumerWaiting", func(o Observer) func(ConsumerWait) { return o.ConsumerWaiting }),
		BatchStarted:        join(all, report, "BatchStarted", func(o Observer) func(Batch) { return o.BatchStarted }),
		BatchDone:           join(all, report, "BatchDone", func(o Observer) func(Batch) { return o.BatchDone }),
		HandlerOverdue:      join(all, report, "HandlerOverdue", func(o Observer) func(Batch) { return o.HandlerOverdue }),
		Retrying:            join(all, report, "Retrying", func(o Observer) func(Retry) { return o.Retrying }),
		DeadLettered:        join(all, report, "DeadLettered", func(o Observer) func(DeadLetter) { return o.DeadLettered }),
		DeadLetterFailed:    join(all, report, "DeadLetterFailed", func(o Observer) func(DeadLetter) { return o.DeadLetterFailed }),
		Rescaled:            join(all, report, "Rescaled", func(o Observer) func(Rescaled) { return o.Rescaled }),
		DeadBatchEnded:      join(all, report, "DeadBatchEnded", func(o Observer) func(DeadBatch) { return o.DeadBatchEnded }),
		TransactionEnded:    join(all, report, "TransactionEnded", func(o Observer) func(TransactionEnd) { return o.TransactionEnded }),
		FrontierBlocked:     join(all, report, "FrontierBlocked", func(o Observer) func(BlockingTransaction) { return o.FrontierBlocked }),
		FrontierFailed:      join(all, report, "FrontierFailed", func(o Observer) func(error) { return o.FrontierFailed }),
		Skipped:             join(all, report, "Skipped", func(o Observer) func(Skip) { return o.Skipped }),
		NotifyFailed:        join(all, report, "NotifyFailed", func(o Observer) func(error) { return o.NotifyFailed }),
		Recovered:           join(all, report, "Recovered", func(o Observer) func(Recovery) { return o.Recovered }),
		Woken:               join(all, report, "Woken", func(o Observer) func(Wakeup) { return o.Woken }),
		PoolTooSmall:        join(all, report, "PoolTooSmall", func(o Observer) func(PoolUse) { return o.PoolTooSmall }),
		PoolSwept:           join(all, report, "PoolSwept", func(o Observer) func(PoolSweep) { return o.PoolSwept }),
		TaskFailed:          join(all, report, "TaskFailed", func(o Observer) func(TaskFailure) { return o.TaskFailed }),
		HookPanicked:        join(all, report, "HookPanicked", func(o Observer) func(HookPanic) { return o.HookPanicked }),
	}
}

// join returns a hook that calls those that are there, nil if none is.
func join[T any](all []Observer, report func(HookPanic), name string, hook func(Observer) func(T)) func(T) {
	var there []func(T)
	for i, o := range all {
		if h := hook(o); h != nil && !logsAlready(all[:i], o, func(other Observer) bool { return sameCode(hook(other), h) }) {
			there = append(there, protect(report, name, h))
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
