package worker

import "time"

// SetTurn sets after what time a loop hangs.
func SetTurn(w *Worker, d time.Duration) { w.limits.turn = d }

// SetLeave bounds the last statements when the worker stops.
func SetLeave(w *Worker, d time.Duration) { w.limits.leave = d }

// SetGuard bounds, beyond two batches, the wait of a guard whose blocker is unknown.
func SetGuard(w *Worker, d time.Duration) { w.limits.guard = d }

// SetQuick bounds quick statements, from when the worker has started. A loop tries such a
// statement again, with more time. A start does not, so a short bound would end a worker on
// a slow machine.
func SetQuick(w *Worker, d time.Duration) {
	tellStarted := w.observer.WorkerStarted
	w.observer.WorkerStarted = func(i WorkerInfo) {
		w.limits.quick = d
		tell(tellStarted, i)
	}
}
