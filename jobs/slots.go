package jobs

import "sync"

// slots are how many jobs may run at once in a worker, and how many it may claim
// before it ends.
type slots struct {
	mu      sync.Mutex
	free    int
	left    int // that may still be claimed; below 0: any number
	asked   int // by claims that are under way, of what was left
	pending int // claimed, and not started
	freed   func()
	seats   []*seat
	denied  bool // slots were free that a queue did not get, as one of a higher priority wants them
}

// seat is the place of a queue among those that share the slots.
type seat struct {
	priority int         // 1 takes first
	room     func() int  // how many jobs the queue may start besides
	hangs    func() bool // reports whether its loop stands still, and takes nothing
	jobs     int         // that it could start, up to its room; guarded by slots
}

// seat adds a queue. Until it says how many jobs it could start, it has its room full of them.
func (s *slots) seat(priority int, room func() int, hangs func() bool) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &seat{priority: priority, room: room, hangs: hangs, jobs: maxConcurrency}
	s.seats = append(s.seats, of)
	return of
}

// want records how many jobs a queue could start if it had slots. Until it wants fewer, the
// queues of lower priorities leave that many slots to it.
func (s *slots) want(of *seat, jobs int) {
	s.mu.Lock()
	wake := jobs < of.jobs && s.denied
	s.denied = s.denied && !wake
	of.jobs = jobs
	s.mu.Unlock()
	if wake {
		s.freed()
	}
}

// leftFor returns how many of the free slots a queue may take.
func (s *slots) leftFor(of *seat) int {
	left := s.free
	for _, o := range s.seats {
		if o.priority < of.priority && o.jobs > 0 && left > 0 && !o.hangs() {
			left -= max(0, min(left, o.jobs, o.room()))
		}
	}
	s.denied = s.denied || left < s.free
	return left
}

// newSlots takes 0 for no bound.
func newSlots(total, jobs int, freed func()) *slots {
	s := &slots{free: total, left: jobs, freed: freed}
	if total == 0 {
		s.free = int(^uint(0) >> 1)
	}
	if jobs == 0 {
		s.left = -1
	}
	return s
}

// take takes up to want slots for a queue.
func (s *slots) take(of *seat, want int) (got int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got = max(0, min(want, s.leftFor(of)))
	s.free -= got
	return got
}

// available is how many slots a queue could take.
func (s *slots) available(of *seat) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leftFor(of)
}

// give returns slots.
func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	waited := s.free == 0 || s.denied
	s.denied = false
	s.free += n
	s.mu.Unlock()
	if waited {
		s.freed()
	}
}

// room lowers how many jobs could be claimed to what is left.
func (s *slots) room(want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < 0 {
		return want
	}
	return min(want, s.left)
}

// allot lowers how many jobs may be claimed to what is left. The claim is under way until
// restore is called.
func (s *slots) allot(want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < 0 {
		return want
	}
	got := min(want, s.left)
	s.left -= got
	s.asked += got
	return got
}

// restore ends a claim: it gives back what was allotted and not claimed. Of what was
// claimed, some jobs have started.
func (s *slots) restore(allotted, claimed, started int) {
	s.change(func() bool {
		s.asked -= allotted
		s.left += allotted - claimed
		s.pending += claimed - started
		return claimed < allotted
	})
}

// adopt takes note of a job whose claim was not answered, and was restored as if it had
// brought nothing.
func (s *slots) adopt() {
	s.change(func() bool {
		s.left = max(0, s.left-1)
		s.pending++
		return false
	})
}

// begin takes note of claimed jobs: some start, the others do not and count for nothing.
func (s *slots) begin(start, not int) {
	s.change(func() bool {
		s.pending -= start + not
		s.left += not
		return not > 0
	})
}

// change changes what is left, if that is bounded. It wakes those that wait for more.
func (s *slots) change(f func() (more bool)) {
	s.mu.Lock()
	more := s.left >= 0 && f()
	s.mu.Unlock()
	if more {
		s.freed()
	}
}

// spent reports whether no more jobs may be claimed, and all that were have started.
func (s *slots) spent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left == 0 && s.asked == 0 && s.pending == 0
}
