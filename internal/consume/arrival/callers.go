// Package arrival waits until consumers reach positions.
package arrival

import "sync"

// maxRequested limits the positions of one consumer for which other processes have
// requested a notification. A process beyond the limit gets no notification and polls.
const maxRequested = 10_000

// Callers keeps the callers that wait until a consumer has reached a position. A caller of
// WaitFor is in this process, or in another process that has sent a request. Requests and
// replies are hints: every caller also polls.
type Callers struct {
	mu       sync.Mutex
	waiters  map[string]map[chan struct{}]int64 // by consumer; closed when the position is reached
	requests map[string]map[int64]struct{}      // positions that other processes wait for, by consumer
	replies  map[string]int64                   // positions to broadcast, by consumer
	ReplyDue chan struct{}                      // receives a value when replies is not empty
	joins    map[string]chan struct{}           // by consumer; closed when another caller begins to wait
}

// NewCallers makes a Callers without callers.
func NewCallers() *Callers {
	return &Callers{
		waiters: map[string]map[chan struct{}]int64{}, requests: map[string]map[int64]struct{}{},
		replies: map[string]int64{}, ReplyDue: make(chan struct{}, 1), joins: map[string]chan struct{}{},
	}
}

// Wait returns a channel that is closed when the consumer may have reached the position.
// The caller must call forget in the end.
func (a *Callers) Wait(consumer string, position int64) (there chan struct{}, forget func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	there = make(chan struct{})
	if a.waiters[consumer] == nil {
		a.waiters[consumer] = map[chan struct{}]int64{}
	}
	a.waiters[consumer][there] = position
	a.join(consumer)
	return there, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.drop(consumer, there)
	}
}

func (a *Callers) drop(consumer string, there chan struct{}) {
	if delete(a.waiters[consumer], there); len(a.waiters[consumer]) == 0 {
		delete(a.waiters, consumer)
	}
}

// Reached releases the local callers after another process has reported a consumer's
// position.
func (a *Callers) Reached(consumer string, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(consumer, at)
}

func (a *Callers) release(consumer string, at int64) {
	for there, position := range a.waiters[consumer] {
		if position <= at {
			close(there)
			a.drop(consumer, there)
		}
	}
}

// Advanced releases all callers that a move of this worker's consumer satisfies.
func (a *Callers) Advanced(consumer string, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(consumer, at)
	before := len(a.requests[consumer])
	for position := range a.requests[consumer] {
		if position <= at {
			delete(a.requests[consumer], position)
		}
	}
	if len(a.requests[consumer]) < before {
		a.reply(consumer, at)
	}
}

// Request records that another process waits for a consumer of this worker. at returns the
// consumer's position. Request calls at under the lock, so that a concurrent Advanced is
// not missed.
func (a *Callers) Request(consumer string, position int64, at func() int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := at(); now >= position {
		a.reply(consumer, now)
		return
	}
	if a.requests[consumer] == nil {
		a.requests[consumer] = map[int64]struct{}{}
	}
	if len(a.requests[consumer]) < maxRequested {
		a.requests[consumer][position] = struct{}{}
		a.join(consumer)
	}
}

// IsWaitedFor reports whether a caller waits for the consumer at a position p with after <
// p <= upTo.
func (a *Callers) IsWaitedFor(consumer string, after, upTo int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, position := range a.waiters[consumer] {
		if after < position && position <= upTo {
			return true
		}
	}
	for position := range a.requests[consumer] {
		if after < position && position <= upTo {
			return true
		}
	}
	return false
}

// Joined returns a channel that is closed when another caller begins to wait for a
// consumer. Callers take the channel before they call IsWaitedFor.
func (a *Callers) Joined(consumer string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.joins[consumer] == nil {
		a.joins[consumer] = make(chan struct{})
	}
	return a.joins[consumer]
}

func (a *Callers) join(consumer string) {
	if c := a.joins[consumer]; c != nil {
		close(c)
		delete(a.joins, consumer)
	}
}

func (a *Callers) reply(consumer string, at int64) {
	a.replies[consumer] = max(a.replies[consumer], at)
	select {
	case a.ReplyDue <- struct{}{}:
	default:
	}
}

// ReleaseAll makes all local callers poll, because notifications may have been lost.
func (a *Callers) ReleaseAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, all := range a.waiters {
		for there := range all {
			close(there)
		}
	}
	clear(a.waiters)
}

// TakeReplies returns the pending replies and clears them.
func (a *Callers) TakeReplies() map[string]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.replies
	a.replies = map[string]int64{}
	return due
}
