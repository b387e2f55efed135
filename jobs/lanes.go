package jobs

import (
	"time"

	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/store"
)

const (
	// lowInterval is how often a claim begins at the bottom of its lanes, at least.
	lowInterval = time.Second
	// lateness is how long after its time a job may become visible and still lie above
	// the floor of a lane in which nothing was left.
	lateness = time.Second
	// cheapLow is how long a walk from the bottom may take and still be repeated at will.
	cheapLow = 10 * time.Millisecond
)

// lanes remember, for each priority of a queue, what need not be walked over again: all
// up to the last job that this worker has claimed, and all up to a moment at which a walk
// from the bottom has left nothing in the lane that this worker could run. A claim that
// begins there walks over neither the dead entries of the index nor the jobs that this
// worker has no code for. What lies below, because its transaction committed late or it
// was released, a low walk finds: one from the bottom, at least each second, or ten times
// as long as the last one took.
type lanes struct {
	floors  [10]floor // by priority
	lowDue  time.Time
	lowTook time.Duration // by the last walk from the bottom
}

// floor is where the next walk over a lane begins: above a job, and above a moment if
// that is later. The database's clock is not this process's, so it is told how long ago
// the moment was.
type floor struct {
	at   time.Time // of a job
	id   int64     // of it; 0: none was claimed
	bare time.Time // by this process's clock: nothing was left then; zero: never
}

// next returns the lanes of the next walk, the first priority first.
func (l *lanes) next(low bool, now time.Time) []queue.Lane {
	all := make([]queue.Lane, 0, 9)
	for p := 1; p <= 9; p++ {
		lane := queue.Lane{Priority: p}
		if f := l.floors[p]; !low {
			if f.id != 0 {
				lane.ID = f.id
				if f.at.After(store.EarliestTime) { // else the job may be older still
					lane.At = &f.at
				}
			}
			if !f.bare.IsZero() {
				ago := (now.Sub(f.bare) + lateness).Microseconds()
				lane.Ago = &ago
			}
		}
		all = append(all, lane)
	}
	return all
}

// walkIsLow reports whether a look for what is due should begin at the bottom.
func (l *lanes) walkIsLow(now time.Time) bool {
	return !now.Before(l.lowDue) || l.lowTook <= cheapLow
}

// claimed takes note of what a claim of at most limit jobs has brought, which began at
// that time. A low one that took its full share has more below the floors: they are
// lowered to where it ended. The lanes before that one had nothing left. picky is a
// claim that has left jobs which another one may take.
func (l *lanes) claimed(jobs []queue.Job, limit int, low, picky bool, began, now time.Time) {
	last := 0 // the lane in which a full claim ended
	for _, j := range jobs {
		last = max(last, j.Priority)
	}
	full := len(jobs) >= limit
	var reached [10]floor
	for _, j := range jobs {
		if f := (floor{at: j.RunAt, id: j.ID}); f.above(reached[j.Priority]) {
			reached[j.Priority] = f
		}
	}
	for p, f := range reached {
		switch {
		case f.id == 0:
		case low && full && p == last:
			l.floors[p] = f
		case f.above(l.floors[p]):
			l.floors[p].at, l.floors[p].id = f.at, f.id
		}
	}
	if !low {
		if now.Sub(began) >= lateness {
			l.lowDue = now // it waited, and the moments that it was told had moved on meanwhile
		}
		return
	}
	l.walked(began, now)
	if !full {
		last = len(l.floors)
	}
	// A claim that brings nothing may not have looked: the queue may be paused.
	if len(jobs) > 0 && !picky {
		l.leftBare(last, began)
	}
}

// nothingDue takes note of a look from the bottom that has found nothing to claim.
func (l *lanes) nothingDue(began, now time.Time) {
	l.walked(began, now)
	l.leftBare(len(l.floors), began)
}

// walked takes note of how long a walk from the bottom took.
func (l *lanes) walked(began, now time.Time) {
	l.lowTook = now.Sub(began)
	l.lowDue = now.Add(max(lowInterval, 10*l.lowTook))
}

// leftBare takes note that nothing was left in the lanes before the given one.
func (l *lanes) leftBare(before int, began time.Time) {
	for p := 1; p < before; p++ {
		l.floors[p].bare = began
	}
}

func (f floor) above(g floor) bool {
	return g.id == 0 || f.at.After(g.at) || f.at.Equal(g.at) && f.id > g.id
}
