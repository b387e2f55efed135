package jobs

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// A claim of another queue may give back allotted jobs, and a prefetched job may not start. Until
// then the worker has not started all its jobs.
func TestStopAfterJobsIsSpentOnce(t *testing.T) {
	t.Parallel()
	woken := 0
	s := newSlots(0, 10, func() { woken++ })
	check := func(what string, left, wakes int, spent bool) {
		t.Helper()
		if got := s.room(30); got != left || woken != wakes || s.spent() != spent {
			t.Errorf("%s: %d left, want %d; woken %d times, want %d; spent: %t, want %t", what, got, left, woken, wakes, s.spent(), spent)
		}
	}
	check("at first", 10, 0, false)
	if got := s.allot(30); got != 10 {
		t.Fatalf("a claim may bring %d", got)
	}
	check("while a claim is under way", 0, 0, false)
	if got := s.allot(5); got != 0 {
		t.Errorf("another one may bring %d", got)
	}
	s.restore(10, 4, 3)
	check("after a claim of four jobs, one of them prefetched", 6, 1, false)
	if got := s.allot(30); got != 6 {
		t.Errorf("the next may bring %d", got)
	}
	s.restore(6, 6, 6)
	check("while one job is prefetched", 0, 1, false)
	s.begin(0, 1)
	check("after it was cancelled", 1, 2, false)
	s.adopt()
	check("with a job whose claim was not answered", 0, 2, false)
	s.begin(1, 0)
	check("once that has started", 0, 2, true)
}

// Without a bound nothing is counted.
func TestUnboundedSlotsAreNeverSpent(t *testing.T) {
	t.Parallel()
	s := newSlots(0, 0, func() { t.Error("operator is woken") })
	if got := s.allot(30); got != 30 || s.room(7) != 7 {
		t.Errorf("a claim may bring %d of 30", got)
	}
	s.restore(30, 4, 2)
	s.adopt()
	s.begin(2, 1)
	if s.spent() {
		t.Error("spent")
	}
}

// A queue gets no slot for which a queue of a higher priority has jobs, and every other free slot.
// A queue that got fewer slots than were free is woken as soon as it may take more.
func TestSlotsGoToTheHigherPriority(t *testing.T) {
	tier.Checks(t, 2000, 100_000)
	rapid.Check(t, func(t *rapid.T) {
		total, woken := rapid.IntRange(1, 6).Draw(t, "slots"), false
		s := newSlots(total, 0, func() { woken = true })
		type queue struct {
			*seat
			capacity, running int
			hung              bool
		}
		var all []*queue
		for range rapid.IntRange(2, 4).Draw(t, "queues") {
			q := &queue{capacity: rapid.IntRange(1, 6).Draw(t, "capacity")}
			q.seat = s.seat(rapid.IntRange(1, 3).Draw(t, "priority"), func() int { return q.capacity - q.running }, func() bool { return q.hung })
			all = append(all, q)
		}
		free := total
		may := func(q *queue) int { // may gives out the slots one by one, as the rule says
			left := free
			for _, o := range all {
				for n := 0; o.priority < q.priority && !o.hung && n < o.jobs && n < o.capacity-o.running && left > 0; n++ {
					left--
				}
			}
			return left
		}
		denied := map[*queue]int{} // slots of the queues that sleep now
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			q := rapid.SampledFrom(all).Draw(t, "queue")
			woken = false
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				s.want(q.seat, rapid.IntRange(0, 6).Draw(t, "jobs"))
			case 1:
				want := rapid.IntRange(0, q.capacity-q.running).Draw(t, "take")
				left := may(q)
				got := s.take(q.seat, want)
				if got != min(want, left) {
					t.Fatalf("a queue of priority %d took %d slots of %d, want %d", q.priority, got, free, min(want, left))
				}
				q.running, free = q.running+got, free-got
			case 2:
				if n := rapid.IntRange(0, q.running).Draw(t, "give"); n > 0 {
					q.running, free = q.running-n, free+n
					s.give(n)
				}
			case 3:
				if left := may(q); s.available(q.seat) != left {
					t.Fatalf("%d slots are available to a queue of priority %d, want %d of %d", s.available(q.seat), q.priority, left, free)
				} else if left == 0 {
					denied[q] = 0
				}
			}
			if woken {
				clear(denied)
			}
			for o := range denied {
				if may(o) > 0 {
					t.Fatalf("a queue of priority %d sleeps while %d slots are left to it", o.priority, may(o))
				}
			}
		}
	})
}

// A queue whose loop hangs keeps no slots from the others.
func TestHungQueueKeepsNoSlots(t *testing.T) {
	t.Parallel()
	hung := false
	s := newSlots(2, 0, func() {})
	s.seat(1, func() int { return 2 }, func() bool { return hung })
	low := s.seat(5, func() int { return 2 }, func() bool { return false })
	if got := s.available(low); got != 0 {
		t.Errorf("%d slots are left beside a queue of a higher priority that has not looked for its jobs", got)
	}
	if hung = true; s.available(low) != 2 {
		t.Errorf("%d slots are left beside a queue that hangs, want both", s.available(low))
	}
}
