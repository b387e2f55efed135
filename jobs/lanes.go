package jobs

import (
	"time"

	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/store"
)

const (
	// lowInterval is how often a claim begins at the bottom of its lanes, at least.
	lowInterval = time.Second
	// lateness is how late after its due time a job may become visible and still be found above the
	// floor of an empty lane.
	lateness = time.Second
	// cheapLow is how long a walk from the bottom may take to be repeated without a pause.
	cheapLow = 10 * time.Millisecond
)

// lanes records, for each priority of a queue, which part of the index need not be read again. A
// lane is the jobs of one priority. A walk over a lane may begin above its floor: the last job that
// this worker has claimed, or the moment of the last low walk that left no job for this worker in
// the lane. Such a walk reads no dead index entries and no jobs without a handler in this worker.
//
// Jobs may become visible below a floor, because their transaction committed late or they were
// released. A low walk, from the bottom, finds these jobs. A low walk comes each second, or after
// ten times the duration of the last low walk if that is longer.
type lanes struct {
	floors  [10]floor // by priority
	lowDue  time.Time
	lowTook time.Duration // of the last walk from the bottom
}

// floor is where the next walk over a lane begins: above a job, or above a moment if that is later.
// The clocks of the database and of this process differ. So the statement gets the age of the
// moment.
type floor struct {
	at      time.Time // due time of the job
	id      int64     // ID of the job; 0: no job was claimed
	emptyAt time.Time // when a walk left no job in the lane, by this process's clock; zero: never
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
			if !f.emptyAt.IsZero() {
				ago := (now.Sub(f.emptyAt) + lateness).Microseconds()
				lane.Ago = &ago
			}
		}
		all = append(all, lane)
	}
	return all
}

// walkIsLow reports whether a peek should begin at the bottom.
func (l *lanes) walkIsLow(now time.Time) bool {
	return !now.Before(l.lowDue) || l.lowTook <= cheapLow
}

// nextPeek returns the time of the next peek: pollAt, or when a low walk is due if the last peek did
// not begin at the bottom. Nothing notifies again of a released job below the floors.
func (l *lanes) nextPeek(low bool, pollAt time.Time) time.Time {
	if low {
		return pollAt
	}
	return earlier(pollAt, l.lowDue)
}

// claimed records the result of a claim. The claim began at began and could take limit jobs. A low
// claim that is full leaves jobs behind, so the floor of its last lane is lowered to the last job
// that it took. The lanes before the last lane have no jobs left. picky reports that the claim had
// a condition: it may have left jobs that another claim takes.
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
			l.lowDue = now // the claim waited, so the moments in its lanes were too late
		}
		return
	}
	l.walked(began, now)
	if !full {
		last = len(l.floors)
	}
	// A claim without jobs may not have read the lanes: the queue may be paused.
	if len(jobs) > 0 && !picky {
		l.recordEmpty(last, began)
	}
}

// nothingDue records a peek from the bottom that has found no due job.
func (l *lanes) nothingDue(began, now time.Time) {
	l.walked(began, now)
	l.recordEmpty(len(l.floors), began)
}

// walked records how long a walk from the bottom took.
func (l *lanes) walked(began, now time.Time) {
	l.lowTook = now.Sub(began)
	l.lowDue = now.Add(max(lowInterval, 10*l.lowTook))
}

// recordEmpty records that no job was left in the lanes before the given lane.
func (l *lanes) recordEmpty(before int, began time.Time) {
	for p := 1; p < before; p++ {
		l.floors[p].emptyAt = began
	}
}

func (f floor) above(g floor) bool {
	return g.id == 0 || f.at.After(g.at) || f.at.Equal(g.at) && f.id > g.id
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
