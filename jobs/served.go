package jobs

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/watchdog"
)

// servedQueue is a queue that the worker serves, for all of its goroutines. One of them runs its
// loop.
type servedQueue struct {
	name     string
	capacity int
	slots    *slots
	seat     *seat
	turn     watchdog.Iteration // of the loop

	woken          chan struct{}
	newJobs        atomic.Bool // a notification of new jobs has arrived
	reconcileAsked atomic.Bool // reconcile the jobs in flight now
	back           atomic.Bool // jobs were released, or are to be retried
	unwanted       atomic.Bool // the listening connection is new: the server may have lost the request for notifications

	mu      sync.Mutex // guards the fields below
	running int
	told    QueueStatus
}

// wake wakes the loop.
func (q *servedQueue) wake() { jobrun.Wake(q.woken) }

// poll makes the loop claim.
func (q *servedQueue) poll() {
	q.newJobs.Store(true)
	q.wake()
}

// requestPoll makes the loop poll soon. It is called when jobs have come back to the queue.
func (q *servedQueue) requestPoll() {
	q.back.Store(true)
	q.wake()
}

// begin records n jobs whose handlers are called. They hold slots.
func (q *servedQueue) begin(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running += n
}

// release gives back n slots after their handler has returned.
func (q *servedQueue) release(n int) {
	q.begin(-n)
	q.slots.give(n)
	q.wake()
}

// free returns how many slots of the queue itself are free.
func (q *servedQueue) free() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.capacity - q.running
}

// has reports whether a run is of this queue.
func (q *servedQueue) has(r *run) bool { return r.queue == q }

func (q *servedQueue) status() QueueStatus {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.told
	s.Running, s.UnknownKinds = q.running, slices.Clone(s.UnknownKinds)
	return s
}

func (q *servedQueue) change(f func(s *QueueStatus)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f(&q.told)
}

// count counts a settled job. In a capped queue the job's slot is free only now.
func (q *servedQueue) count(state queue.State, failed bool) {
	q.change(func(s *QueueStatus) {
		switch {
		case state == queue.Completed:
			s.Completed++
		case failed:
			s.Failed++
		}
	})
	if q.status().Capped {
		q.poll()
	}
	if state == queue.Available {
		q.requestPoll()
	}
}
