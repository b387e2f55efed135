package jobs

import "time"

// SetGrace sets how long a handler has to return after its context has ended.
func SetGrace(w *Worker, d time.Duration) { w.grace = d }

// SetLimit bounds the statements of a worker's own.
func SetLimit(w *Worker, d time.Duration) { w.limit = d }

// SetEchoes sets how often a worker looks for its echo.
func SetEchoes(w *Worker, d time.Duration) { w.echoes = d }

// SetChores sets how often a worker that leads does what is not urgent.
func SetChores(w *Worker, d time.Duration) { w.choreInterval = d }

// ForgetDead lets the worker forget who seems dead, as the end of its leadership does.
func ForgetDead(w *Worker) { w.rescuer.forget() }

// SetHangsAfter sets how long a turn of a worker's loop may take.
func SetHangsAfter(w *Worker, d time.Duration) { w.hangsAfter = d }

// WantsSlots reports whether a queue of a worker has jobs that it knows of, and that wait for
// slots.
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
