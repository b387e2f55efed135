package table

import (
	"time"
)

// SetGrace sets how long a handler has to return after its context has ended.
func SetGrace(w *Worker, d time.Duration) { w.grace = d }

// SetHangsAfter sets after what time a turn of a loop hangs.
func SetHangsAfter(w *Worker, d time.Duration) { w.hangs = d }

// SetLimit bounds the statements of a worker's own.
func SetLimit(w *Worker, d time.Duration) { w.limit = d }
