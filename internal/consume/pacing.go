package consume

import "time"

// pacing lets a shadow that catches up pause for as long as its batches take. The consumer that has the
// effects then keeps its latency. A shadow does not pause where it would not catch up any more: if the
// log grows by more than half of what it passes.
type pacing struct {
	head int64 // after the full batch before
}

// pause returns the pause of a shadow after a full batch.
func (p *pacing) pause(r result, now time.Time) time.Duration {
	grown := r.work.head - p.head
	p.head = r.work.head
	if !r.work.from.Effects.IsShadow() || 2*grown > r.work.advance.To-r.work.from.Position {
		return 0
	}
	return now.Sub(r.began)
}
