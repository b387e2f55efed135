package jobs

import "testing"

// A claim of another queue that is under way may give back what it has asked for: the
// worker has not claimed all its jobs before that.
func TestReservedIsNotSpent(t *testing.T) {
	s := newSlots(0, 10, func() {})
	if got := s.allot(30); got != 10 || s.spent() || !s.reserved() {
		t.Fatalf("a claim may bring %d; spent: %t, reserved: %t", got, s.spent(), s.reserved())
	}
	if got := s.allot(5); got != 0 {
		t.Errorf("another one may bring %d", got)
	}
	s.restore(10, 4)
	if s.spent() || s.reserved() || s.allot(30) != 6 {
		t.Error("six of ten are left")
	}
	if s.restore(6, 6); !s.spent() || s.reserved() {
		t.Error("all ten are claimed")
	}
}
