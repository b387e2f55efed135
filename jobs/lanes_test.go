package jobs

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/queue"
)

// backlog is a queue as claims see it.
type backlog []queue.Job

// claim takes up to limit jobs as the statement does: lane by lane, each in order.
func (b *backlog) claim(all []queue.Lane, limit int) (got []queue.Job) {
	slices.SortFunc(*b, func(x, y queue.Job) int { return cmp.Or(x.RunAt.Compare(y.RunAt), cmp.Compare(x.ID, y.ID)) })
	for _, lane := range all {
		for _, j := range *b {
			above := lane.At == nil || j.RunAt.After(*lane.At) || j.RunAt.Equal(*lane.At) && j.ID > lane.ID
			if j.Priority == lane.Priority && above && len(got) < limit {
				got = append(got, j)
			}
		}
	}
	*b = slices.DeleteFunc(*b, func(j queue.Job) bool {
		return slices.ContainsFunc(got, func(g queue.Job) bool { return g.ID == j.ID })
	})
	return got
}

// Whatever is enqueued, committed late or released, in whatever order: a low claim
// that is not full leaves nothing, low claims come each second, and everything is
// found in the end. So a job is overtaken only by what became visible within a second
// of it, or while there was more to do than a claim takes.
func TestLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l lanes
		var b backlog
		start := time.Now()
		now, lowAt, id := start, start, int64(0)
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "pause")) * time.Millisecond)
			for range rapid.IntRange(0, 4).Draw(t, "new") {
				id++
				late := time.Duration(rapid.IntRange(0, 2000).Draw(t, "late")) * time.Millisecond
				b = append(b, queue.Job{Run: queue.Run{ID: id}, Priority: rapid.IntRange(1, 3).Draw(t, "priority"), RunAt: now.Add(-late)})
			}
			low := !now.Before(l.lowDue)
			if low {
				lowAt = now
			}
			if now.Sub(lowAt) > lowInterval {
				t.Fatalf("no low claim for %v", now.Sub(lowAt))
			}
			got := b.claim(l.next(low), limit)
			l.claimed(got, limit, low, time.Millisecond, now)
			if low && len(got) < limit && len(b) > 0 {
				t.Fatalf("a low claim of %d left %d jobs", limit, len(b))
			}
		}
		for range 300 {
			now = now.Add(lowInterval)
			low := !now.Before(l.lowDue)
			l.claimed(b.claim(l.next(low), limit), limit, low, time.Millisecond, now)
		}
		if len(b) > 0 {
			t.Fatalf("%d jobs were never found", len(b))
		}
	})
}

// A low claim that is full lowers the floor of the lane in which it ended, so that
// the next claims go on there; a lane that it did not reach keeps its floor.
func TestFullLowClaim(t *testing.T) {
	begin := time.Now()
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	var l lanes
	l.claimed([]queue.Job{{Run: queue.Run{ID: 9}, Priority: 5, RunAt: at(9)}, {Run: queue.Run{ID: 8}, Priority: 7, RunAt: at(8)}}, 10, false, 0, begin)
	l.claimed([]queue.Job{{Run: queue.Run{ID: 1}, Priority: 5, RunAt: at(1)}, {Run: queue.Run{ID: 2}, Priority: 5, RunAt: at(2)}}, 2, true, 0, begin)
	if l.floors[5].id != 2 || l.floors[7].id != 8 {
		t.Errorf("the floors are %+v", l.floors)
	}
	l.claimed([]queue.Job{{Run: queue.Run{ID: 1}, Priority: 7, RunAt: at(1)}}, 2, true, 0, begin)
	if l.floors[7].id != 8 {
		t.Errorf("a low claim that was not full lowered a floor: %+v", l.floors)
	}
}
