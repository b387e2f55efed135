package consume

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// maxRequested limits the positions of one consumer for which other processes have
// requested a notification. A process beyond the limit gets no notification and polls.
const maxRequested = 10_000

// awaited keeps the callers that wait until a consumer has reached a position. A caller of
// WaitFor is in this process, or in another process that has sent a request. Requests and
// replies are hints: every caller also polls.
type awaited struct {
	mu       sync.Mutex
	waiters  map[string]map[chan struct{}]int64 // by consumer; closed when the position is reached
	requests map[string]map[int64]struct{}      // positions that other processes wait for, by consumer
	replies  map[string]int64                   // positions to broadcast, by consumer
	replyDue chan struct{}                      // receives a value when replies is not empty
	joins    map[string]chan struct{}           // by consumer; closed when another caller begins to wait
}

func newAwaited() *awaited {
	return &awaited{
		waiters: map[string]map[chan struct{}]int64{}, requests: map[string]map[int64]struct{}{},
		replies: map[string]int64{}, replyDue: make(chan struct{}, 1), joins: map[string]chan struct{}{},
	}
}

// wait returns a channel that is closed when the consumer may have reached the position.
// The caller must call forget in the end.
func (a *awaited) wait(consumer string, position int64) (there chan struct{}, forget func()) {
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

func (a *awaited) drop(consumer string, there chan struct{}) {
	if delete(a.waiters[consumer], there); len(a.waiters[consumer]) == 0 {
		delete(a.waiters, consumer)
	}
}

// reached releases the local callers after another process has reported a consumer's
// position.
func (a *awaited) reached(consumer string, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(consumer, at)
}

func (a *awaited) release(consumer string, at int64) {
	for there, position := range a.waiters[consumer] {
		if position <= at {
			close(there)
			a.drop(consumer, there)
		}
	}
}

// advanced releases all callers that a move of this worker's consumer satisfies.
func (a *awaited) advanced(consumer string, at int64) {
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

// request records that another process waits for a consumer of this worker. at returns the
// consumer's position. request calls at under the lock, so that a concurrent advanced is
// not missed.
func (a *awaited) request(consumer string, position int64, at func() int64) {
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

// isWaitedFor reports whether a caller waits for the consumer at a position p with after <
// p <= upTo.
func (a *awaited) isWaitedFor(consumer string, after, upTo int64) bool {
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

// joined returns a channel that is closed when another caller begins to wait for a
// consumer. Callers take the channel before they call isWaitedFor.
func (a *awaited) joined(consumer string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.joins[consumer] == nil {
		a.joins[consumer] = make(chan struct{})
	}
	return a.joins[consumer]
}

func (a *awaited) join(consumer string) {
	if c := a.joins[consumer]; c != nil {
		close(c)
		delete(a.joins, consumer)
	}
}

func (a *awaited) reply(consumer string, at int64) {
	a.replies[consumer] = max(a.replies[consumer], at)
	select {
	case a.replyDue <- struct{}{}:
	default:
	}
}

// releaseAll makes all local callers poll, because notifications may have been lost.
func (a *awaited) releaseAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, all := range a.waiters {
		for there := range all {
			close(there)
		}
	}
	clear(a.waiters)
}

// takeReplies returns the pending replies and clears them.
func (a *awaited) takeReplies() map[string]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.replies
	a.replies = map[string]int64{}
	return due
}

// message is a notification between processes about a consumer. It is a request to report a
// position, or the report that the position is reached.
type message struct {
	Consumer string `json:"consumer"`
	Position int64  `json:"position"`
	Reached  bool   `json:"reached,omitempty"`
}

// arrivals tells the callers of this process and of other processes how far consumers are.
type arrivals struct {
	*env
	awaited *awaited
	channel string // for requests and replies; empty: none are sent
}

// handle handles a notification of another process or of this one. An empty payload
// follows each new connection: earlier notifications may be lost.
func (r *arrivals) handle(payload string) {
	var m message
	switch err := json.Unmarshal([]byte(payload), &m); {
	case payload == "":
		r.awaited.releaseAll()
	case err != nil: // a message of a later version
	case m.Reached:
		r.awaited.reached(m.Consumer, m.Position)
	default:
		if u := r.unit(m.Consumer); u != nil {
			r.awaited.request(m.Consumer, m.Position, func() int64 { return r.reached(u.spec) })
		}
	}
}

// broadcast sends messages to the other processes. A process that misses a message polls.
func (r *arrivals) broadcast(ctx context.Context, messages ...message) {
	payloads := make([]string, len(messages))
	for i, s := range messages {
		text, err := json.Marshal(s)
		if err != nil {
			return // unreachable: every message can be marshalled
		}
		payloads[i] = string(text)
	}
	err := r.onPooled(ctx, r.limits.quick, func(ctx context.Context, conn *pooled) error {
		return changes.Send(ctx, conn, r.channel, payloads)
	})
	r.taskFailed(ctx, taskAnnounce, "", err)
}

// answer broadcasts the positions that other processes wait for.
func (r *arrivals) answer(ctx context.Context) {
	for {
		select {
		case <-r.awaited.replyDue:
		case <-ctx.Done():
			return
		}
		var messages []message
		for consumer, at := range r.awaited.takeReplies() {
			messages = append(messages, message{consumer, at, true})
		}
		r.broadcast(ctx, messages...)
	}
}

// ask asks the worker that runs a consumer for a notification at a position.
func (r *arrivals) ask(ctx context.Context, consumer string, position int64, _ bool) {
	if u := r.unit(consumer); r.channel != "" && !(u != nil && u.status.isAssigned()) {
		r.broadcast(ctx, message{Consumer: consumer, Position: position})
	}
}

// read reads how far a consumer is, in the incarnation that the worker reads. An
// abandoned primary may be ahead of the promoted one.
func (r *arrivals) read(ctx context.Context, consumer string, position int64) (a progress.Arrival, err error) {
	err = r.onPooled(ctx, r.limits.quick, func(ctx context.Context, conn *pooled) (err error) {
		var at string
		a, at, err = r.checkpoints.Arrived(ctx, conn, consumer, position)
		if err == nil && a.Unknown {
			at, err = r.checkpoints.Incarnation(ctx, conn)
		}
		known := r.frontier.Value().Token
		switch {
		case err != nil:
			return err
		case known != "" && at != known: // at is empty on a server without a token, as after a crash
			return store.ErrIncarnation
		case a.Unknown && r.unit(consumer) != nil:
			return nil
		}
		return checkArrival(ctx, &r.checkpoints, conn, a, consumer, position)
	})
	return a, err
}

// announce releases the callers that wait for the position of the unit's consumer. position
// is the unit's.
func (s statements) announce(position int64) {
	if s.unit.isPart() {
		position = s.w.reached(s.unit.spec)
	}
	s.w.awaited.advanced(s.unit.consumerName, position)
}
