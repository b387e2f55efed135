package worker

import "time"

// SetTurn sets after what time a loop hangs.
func SetTurn(w *Worker, d time.Duration) { w.limits.turn = d }
