package jobs

import "sync"

// slots counts how many jobs a worker may run at once, and how many it may claim before it ends.
type slots struct {
	mu      sync.Mutex
	free    int
	left    int // jobs that may still be claimed; below 0: any number
	asked   int // jobs allotted to claims under way
	pending int // claimed, and not started
	freed   func()
	seats   []*seat
	denied  bool // a queue did not get free slots, since a queue of higher priority wants them
}

// seat is a queue that shares the slots.
type seat struct {
	priority int         // 1 takes first
	room     func() int  // how many more jobs the queue may start
	hangs    func() bool // reports whether the loop of the queue hangs
	jobs     int         // jobs that it could start, bounded by room; guarded by slots
}

// seat adds a queue. Until its first call of want, the queue counts as having jobs for all of its
// slots.
func (s *slots) seat(priority int, room func() int, hangs func() bool) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &seat{priority: priority, room: room, hangs: hangs, jobs: maxConcurrency}
	s.seats = append(s.seats, of)
	return of
}

// want records how many jobs a queue could start if it had slots. Queues of lower priorities leave
// this many slots free.
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

// newSlots makes slots for total jobs at once, and for jobs claims in all. 0 is no bound.
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

// available returns how many slots a queue could take.
func (s *slots) available(of *seat) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leftFor(of)
}

// give returns n slots.
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

// room bounds want by the number of jobs that may still be claimed.
func (s *slots) room(want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < 0 {
		return want
	}
	return min(want, s.left)
}

// allot allots up to want jobs to a claim. The claim is under way until restore is called.
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

// restore ends a claim. It returns the allotted jobs that were not claimed. started of the claimed
// jobs have started.
func (s *slots) restore(allotted, claimed, started int) {
	s.change(func() bool {
		s.asked -= allotted
		s.left += allotted - claimed
		s.pending += claimed - started
		return claimed < allotted
	})
}

// adopt records a job whose claim got no answer. restore has counted that claim as empty.
func (s *slots) adopt() {
	s.change(func() bool {
		s.left = max(0, s.left-1)
		s.pending++
		return false
	})
}

// begin records claimed jobs that start, and claimed jobs that do not start. The latter may be
// claimed again.
func (s *slots) begin(start, not int) {
	s.change(func() bool {
		s.pending -= start + not
		s.left += not
		return not > 0
	})
}

// change changes the counts, if they are bounded. If more jobs may be claimed, change wakes the
// loops.
func (s *slots) change(f func() (more bool)) {
	s.mu.Lock()
	more := s.left >= 0 && f()
	s.mu.Unlock()
	if more {
		s.freed()
	}
}

// spent reports whether no more jobs may be claimed and every claimed job has started.
func (s *slots) spent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left == 0 && s.asked == 0 && s.pending == 0
}
