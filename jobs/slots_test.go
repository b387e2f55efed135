package jobs

import "testing"

// A claim of another queue that is under way may give back what it has asked for, and a
// job that was prefetched may turn out not to start: the worker has not started all its
// jobs before that.
func TestWhatIsLeftIsSpentOnce(t *testing.T) {
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
func TestNoBoundIsNeverSpent(t *testing.T) {
	t.Parallel()
	s := newSlots(0, 0, func() { t.Error("somebody is woken") })
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
