package oracle

import "github.com/pgfrontier/worker/sim/history"

// course is a consumer's way through the log as operators have directed it: a
// reset ends one epoch and begins the next. Whenever a consumer is set back
// over a position, a new life of that position begins: its event is to be
// applied again.
type course struct {
	placed    int64               // its first checkpoint
	resets    []history.Operation // the n-th ends epoch n
	skips     []history.Operation
	forgotten []history.Skip
}

func courseOf(e *history.Evidence, consumer string) (c course) {
	for _, p := range e.Placements {
		if p.Consumer == consumer {
			c.placed = p.Position
		}
	}
	for _, o := range e.Operations {
		switch {
		case o.Consumer != consumer:
		case o.Kind == history.OperationReset:
			c.resets = append(c.resets, o)
		default:
			c.skips = append(c.skips, o)
		}
	}
	for _, s := range e.Forgotten {
		if s.Consumer == consumer {
			c.forgotten = append(c.forgotten, s)
		}
	}
	return c
}

func (c course) last() int64 { return int64(len(c.resets)) }

// life returns which life of a position an epoch belongs to, counted from 0.
func (c course) life(position, epoch int64) (n int) {
	for _, r := range c.resets[:min(epoch, c.last())] {
		if r.To < position && position <= r.From {
			n++
		}
	}
	return n
}

// wanted reports for each life of a position whether its event must be applied. It need not be if
// the consumer was placed above it, if an operator went past it, or if a reset made the consumer
// forget its open range.
func (c course) wanted(position int64) []bool {
	lives := make([]bool, c.life(position, c.last())+1)
	for i := range lives {
		lives[i] = i > 0 || position > c.placed
	}
	for _, r := range c.resets {
		if r.From < position && position <= r.To {
			lives[c.life(position, r.Epoch)] = false
		}
	}
	for _, s := range c.skips {
		if s.To == position {
			lives[c.life(position, s.Epoch)] = false
		}
	}
	for _, s := range c.forgotten {
		if s.Holds(position) {
			lives[c.life(position, s.Epoch)] = false
		}
	}
	return lives
}

// start is the checkpoint at which an epoch began.
func (c course) start(epoch int64) int64 {
	if epoch == 0 {
		return c.placed
	}
	return c.resets[epoch-1].To
}

// reach is up to where the consumer was taken in an epoch, by itself or by the
// reset that ended it. checkpoint is where it stands now.
func (c course) reach(epoch, checkpoint int64) int64 {
	if epoch < c.last() {
		return max(c.resets[epoch].From, c.resets[epoch].To)
	}
	return checkpoint
}
