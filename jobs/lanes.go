package jobs

import (
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// lowInterval is how often a claim begins at the bottom of its lanes, at least.
const lowInterval = time.Second

// lanes remember, for each priority of a queue, up to which job this worker has
// claimed. A claim that begins there walks over neither the dead entries of the
// index nor the jobs that this worker has no code for. What lies below, because its
// transaction committed late or it was released, a low claim finds: one from the
// bottom, at least each second, or ten times as long as the last one took.
type lanes struct {
	floors [10]floor // by priority
	lowDue time.Time
}

type floor struct {
	at time.Time
	id int64
}

// next returns the lanes of the next claim, the first priority first.
func (l *lanes) next(low bool) []queue.Lane {
	all := make([]queue.Lane, 0, 9)
	for p := 1; p <= 9; p++ {
		lane := queue.Lane{Priority: p}
		if f := l.floors[p]; !low && f.id != 0 {
			lane.At, lane.ID = &f.at, f.id
		}
		all = append(all, lane)
	}
	return all
}

// claimed takes note of what a claim of at most limit jobs has brought. A low one
// that took its full share has more below the floors: they are lowered to where it
// ended.
func (l *lanes) claimed(jobs []queue.Job, limit int, low bool, took time.Duration, now time.Time) {
	last := 0 // the lane in which a full claim ended
	for _, j := range jobs {
		last = max(last, j.Priority)
	}
	var reached [10]floor
	for _, j := range jobs {
		if f := (floor{j.RunAt, j.ID}); f.above(reached[j.Priority]) {
			reached[j.Priority] = f
		}
	}
	for p, f := range reached {
		if f.id == 0 {
			continue
		}
		if f.above(l.floors[p]) || low && p == last && len(jobs) >= limit {
			l.floors[p] = f
		}
	}
	if low {
		l.lowDue = now.Add(max(lowInterval, 10*took))
		if len(jobs) >= limit {
			l.lowDue = now.Add(lowInterval)
		}
	}
}

func (f floor) above(g floor) bool {
	return g.id == 0 || f.at.After(g.at) || f.at.Equal(g.at) && f.id > g.id
}
