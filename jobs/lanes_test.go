package jobs

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/store"
)

// backlog is the model of a queue. Claims pass over jobs of kind "foreign".
type backlog []queue.Job

// walk returns the runnable jobs of lanes in the order to run them, and how many foreign jobs it
// passed over.
func (b *backlog) walk(all []queue.Lane, now time.Time) (own []queue.Job, foreign int) {
	slices.SortFunc(*b, func(x, y queue.Job) int { return cmp.Or(x.RunAt.Compare(y.RunAt), cmp.Compare(x.ID, y.ID)) })
	for _, lane := range all {
		for _, j := range *b {
			above := lane.At == nil || j.RunAt.After(*lane.At) || j.RunAt.Equal(*lane.At) && j.ID > lane.ID
			above = above && (lane.Ago == nil || j.RunAt.After(now.Add(-time.Duration(*lane.Ago)*time.Microsecond)))
			switch {
			case j.Priority != lane.Priority || !above:
			case j.Kind == "foreign":
				foreign++
			default:
				own = append(own, j)
			}
		}
	}
	return own, foreign
}

// claim takes up to limit jobs as the statement does: lane by lane, each in order.
func (b *backlog) claim(all []queue.Lane, limit int, now time.Time) (got []queue.Job) {
	got, _ = b.walk(all, now)
	got = got[:min(len(got), limit)]
	*b = slices.DeleteFunc(*b, func(j queue.Job) bool {
		return slices.ContainsFunc(got, func(g queue.Job) bool { return g.ID == j.ID })
	})
	return got
}

// own returns how many runnable jobs are left.
func (b *backlog) own() (n int) {
	for _, j := range *b {
		if j.Kind != "foreign" {
			n++
		}
	}
	return n
}

// Jobs of any kind may be enqueued, committed late or released in any order. A low claim that is
// not full leaves no runnable job. Low claims come each second, and every job is found in the end.
// So a job is overtaken only by jobs that became visible within a second, or while more jobs were
// due than a claim takes.
func TestLanes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var l lanes
		var b backlog
		start := time.Now()
		now, lowAt, id := start, start, int64(0)
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		claim := func(low bool) []queue.Job {
			got := b.claim(l.next(low, now), limit, now)
			l.claimed(got, limit, low, false, now, now)
			return got
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "pause")) * time.Millisecond)
			for range rapid.IntRange(0, 4).Draw(t, "new") {
				id++
				late := time.Duration(rapid.IntRange(0, 2000).Draw(t, "late")) * time.Millisecond
				kind := rapid.SampledFrom([]string{"own", "own", "foreign"}).Draw(t, "kind")
				b = append(b, queue.Job{Run: queue.Run{ID: id}, Kind: kind, Priority: rapid.IntRange(1, 3).Draw(t, "priority"), RunAt: now.Add(-late)})
			}
			low := !now.Before(l.lowDue)
			if low {
				lowAt = now
			}
			if now.Sub(lowAt) > lowInterval {
				t.Fatalf("no low claim for %v", now.Sub(lowAt))
			}
			if got := claim(low); low && len(got) < limit && b.own() > 0 {
				t.Fatalf("a low claim of %d left %d jobs", limit, b.own())
			}
			if own, _ := b.walk(l.next(true, now), now); rapid.Bool().Draw(t, "look") && len(own) == 0 {
				l.nothingDue(now, now)
				lowAt = now
			}
		}
		for range 300 {
			now = now.Add(lowInterval)
			claim(!now.Before(l.lowDue))
		}
		if n := b.own(); n > 0 {
			t.Fatalf("%d jobs were never found", n)
		}
	})
}

// A low claim that ends in a lane leaves no job in the lanes before it. A peek that finds nothing
// leaves no job in any lane. The next claims do not pass over the foreign jobs in these lanes
// again. They still find jobs that become visible up to a second late.
func TestForeignLanes(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	var b backlog
	for i := range 50 {
		b = append(b, queue.Job{Run: queue.Run{ID: int64(i + 1)}, Kind: "foreign", Priority: 1 + 4*(i%2), RunAt: begin.Add(-time.Hour)})
	}
	own := func(id int64, late time.Duration, now time.Time) {
		b = append(b, queue.Job{Run: queue.Run{ID: id}, Kind: "own", Priority: 5, RunAt: now.Add(-late)})
	}
	for name, learn := range map[string]func(l *lanes){
		"claim": func(l *lanes) {
			own(100, 0, begin)
			l.claimed(b.claim(l.next(true, begin), 10, begin), 10, true, false, begin, begin)
		},
		"full claim": func(l *lanes) {
			own(100, 0, begin)
			l.claimed(b.claim(l.next(true, begin), 1, begin), 1, true, false, begin, begin)
		},
		"look": func(l *lanes) { l.nothingDue(begin, begin) },
	} {
		var l lanes
		learn(&l)
		now := begin.Add(500 * time.Millisecond)
		own(101, lateness, now)
		got, foreign := b.walk(l.next(false, now), now)
		if want := name == "look"; foreign > 0 || (len(got) == 1) != want {
			t.Errorf("after a %s the next walks over %d foreign jobs, and finds %d", name, foreign, len(got))
		}
		if own, foreign := b.walk(l.next(true, now), now); foreign != 50 || len(own) != 1 {
			t.Errorf("from the bottom it walks over %d, and finds %d", foreign, len(own))
		}
		b.claim(l.next(true, now), 10, now)
	}
	var l lanes
	own(102, 0, begin)
	l.claimed(b.claim(l.next(true, begin), 10, begin), 10, true, true, begin, begin)
	if lane := l.next(false, begin)[0]; lane.Ago != nil {
		t.Error("a claim with a condition says that nothing is left")
	}
	l.claimed(nil, 10, true, false, begin, begin)
	if lane := l.next(false, begin)[0]; lane.Ago != nil {
		t.Error("a claim that may not have looked says that nothing is left")
	}
}

// A walk from the bottom that takes long is not repeated soon, also if it was full. Most of its
// time went into dead entries.
func TestLongLowClaim(t *testing.T) {
	t.Parallel()
	var l lanes
	end := time.Now()
	begin := end.Add(-3 * time.Second)
	l.claimed([]queue.Job{{Run: queue.Run{ID: 1}, Priority: 5, RunAt: begin}}, 1, true, false, begin, end)
	if got := l.lowDue.Sub(end); got != 30*time.Second || l.walkIsLow(end) {
		t.Errorf("the next one from the bottom is in %v", got)
	}
	// A claim above the floors that has waited may have begun too late in its lanes.
	l.claimed(nil, 1, false, false, begin, end)
	if !l.walkIsLow(end) {
		t.Error("the next one does not begin at the bottom")
	}
}

// A full low claim lowers the floor of the lane in which it ended, so the next claims continue
// there. A lane that the claim did not reach keeps its floor.
func TestFullLowClaim(t *testing.T) {
	begin := time.Now()
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	var l lanes
	l.claimed([]queue.Job{{Run: queue.Run{ID: 9}, Priority: 5, RunAt: at(9)}, {Run: queue.Run{ID: 8}, Priority: 7, RunAt: at(8)}}, 10, false, false, begin, begin)
	l.claimed([]queue.Job{{Run: queue.Run{ID: 1}, Priority: 5, RunAt: at(1)}, {Run: queue.Run{ID: 2}, Priority: 5, RunAt: at(2)}}, 2, true, false, begin, begin)
	if l.floors[5].id != 2 || l.floors[7].id != 8 {
		t.Errorf("the floors are %+v", l.floors)
	}
	l.claimed([]queue.Job{{Run: queue.Run{ID: 1}, Priority: 7, RunAt: at(1)}}, 2, true, false, begin, begin)
	if l.floors[7].id != 8 {
		t.Errorf("a low claim that was not full lowered a floor: %+v", l.floors)
	}
}

// A job with run_at '-infinity' is read with a later time. The next claim still finds the jobs
// behind it.
func TestFloorOfEarliestTime(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	var l lanes
	l.claimed([]queue.Job{{Run: queue.Run{ID: 4}, Priority: 5, RunAt: store.EarliestTime}, {Run: queue.Run{ID: 3}, Priority: 5, RunAt: store.EarliestTime}}, 2, true, false, begin, begin)
	if lane := l.next(false, begin)[4]; lane.At != nil || lane.ID != 4 {
		t.Errorf("the next claim begins behind job %d at %v", lane.ID, lane.At)
	}
}

// A peek above the floors may have missed a job that was released, and whose notification is over.
// However seldom the worker polls, a peek from the bottom follows when a low walk is due.
func TestPeekAboveTheFloorsIsRepeated(t *testing.T) {
	now := time.Now()
	l := lanes{lowTook: 2 * cheapLow, lowDue: now.Add(lowInterval)}
	if l.walkIsLow(now) {
		t.Fatal("the peek begins at the bottom")
	}
	for _, c := range []struct {
		low        bool
		poll, want time.Duration
	}{{false, time.Hour, lowInterval}, {false, time.Millisecond, time.Millisecond}, {true, time.Hour, time.Hour}} {
		if got := l.nextPeek(c.low, now.Add(c.poll)).Sub(now); got != c.want {
			t.Errorf("low %t: a peek that was due in %v comes in %v, want %v", c.low, c.poll, got, c.want)
		}
	}
	if !l.walkIsLow(l.nextPeek(false, now.Add(time.Hour))) {
		t.Error("the next peek does not begin at the bottom either")
	}
}
