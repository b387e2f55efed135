package jobs

import "time"

// SetGrace sets how long a handler may run after its context has ended.
func SetGrace(w *Worker, d time.Duration) { w.grace = d }

// SetLimit bounds the statements of the worker's own.
func SetLimit(w *Worker, d time.Duration) { w.limit = d }

// SetEchoes sets how often a worker checks for its echo.
func SetEchoes(w *Worker, d time.Duration) { w.listener.Every = d }

// SetMaintenance sets how often a worker that leads does maintenance.
func SetMaintenance(w *Worker, d time.Duration) { w.maintenanceInterval = d }

// ForgetDead makes the worker forget which workers seem dead, as the end of its leadership does.
func ForgetDead(w *Worker) { w.rescuer.forget() }

// SetHangsAfter sets how long a turn of a worker's loop may take.
func SetHangsAfter(w *Worker, d time.Duration) { w.hangsAfter = d }

// WantsSlots reports whether a queue of the worker has jobs that wait for slots.
func WantsSlots(w *Worker, queue string) bool {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	for _, l := range w.loops {
		if l.name == queue {
			return l.seat.jobs > 0
		}
	}
	return false
}
