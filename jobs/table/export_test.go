package table

import "time"

// SetGrace sets how long a handler may run after its context has ended.
func SetGrace(w *Worker, d time.Duration) { w.grace = d }

// SetHangsAfter sets how long a turn of a loop may take.
func SetHangsAfter(w *Worker, d time.Duration) { w.hangs = d }

// SetLimit bounds the statements of the worker's own.
func SetLimit(w *Worker, d time.Duration) { w.limit = d }
