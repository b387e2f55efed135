package consume

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/pgfrontier/worker/internal/changes"
)

// maxAsked bounds the positions of one consumer that other processes wait for.
// Beyond it they look by themselves.
const maxAsked = 10_000

// awaited knows who waits until a consumer has reached a position: callers of
// WaitFor in this process, and in others, who have asked by a notification.
// Asking and answering are hints. Who waits also looks now and then.
type awaited struct {
	mu    sync.Mutex
	here  map[string]map[chan struct{}]int64 // by consumer; closed when it is there
	asked map[string]map[int64]struct{}      // by consumer, for other processes
	due   map[string]int64                   // how far consumers are that were asked for and not answered
	now   chan struct{}                      // something is due
	joins map[string]chan struct{}           // by consumer; closed when another begins to wait
}

func newAwaited() *awaited {
	return &awaited{
		here: map[string]map[chan struct{}]int64{}, asked: map[string]map[int64]struct{}{},
		due: map[string]int64{}, now: make(chan struct{}, 1), joins: map[string]chan struct{}{},
	}
}

// wait returns a channel that is closed when the consumer is at the position,
// or may be. The caller forgets it in the end.
func (a *awaited) wait(consumer string, position int64) (there chan struct{}, forget func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	there = make(chan struct{})
	if a.here[consumer] == nil {
		a.here[consumer] = map[chan struct{}]int64{}
	}
	a.here[consumer][there] = position
	a.join(consumer)
	return there, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.drop(consumer, there)
	}
}

func (a *awaited) drop(consumer string, there chan struct{}) {
	if delete(a.here[consumer], there); len(a.here[consumer]) == 0 {
		delete(a.here, consumer)
	}
}

// reached takes note that a consumer is at a position, as another process says.
func (a *awaited) reached(consumer string, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(consumer, at)
}

func (a *awaited) release(consumer string, at int64) {
	for there, position := range a.here[consumer] {
		if position <= at {
			close(there)
			a.drop(consumer, there)
		}
	}
}

// advanced takes note that a consumer of this worker is at a position.
func (a *awaited) advanced(consumer string, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(consumer, at)
	before := len(a.asked[consumer])
	for position := range a.asked[consumer] {
		if position <= at {
			delete(a.asked[consumer], position)
		}
	}
	if len(a.asked[consumer]) < before {
		a.answer(consumer, at)
	}
}

// ask takes note that another process waits for a consumer of this worker. at
// reads how far that is: after the question is known, lest a step between the
// two is missed.
func (a *awaited) ask(consumer string, position int64, at func() int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := at(); now >= position {
		a.answer(consumer, now)
		return
	}
	if a.asked[consumer] == nil {
		a.asked[consumer] = map[int64]struct{}{}
	}
	if len(a.asked[consumer]) < maxAsked {
		a.asked[consumer][position] = struct{}{}
		a.join(consumer)
	}
}

// isWaitedFor reports whether somebody waits until a consumer of this worker has
// reached a position above after, up to upTo.
func (a *awaited) isWaitedFor(consumer string, after, upTo int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, position := range a.here[consumer] {
		if after < position && position <= upTo {
			return true
		}
	}
	for position := range a.asked[consumer] {
		if after < position && position <= upTo {
			return true
		}
	}
	return false
}

// joined returns a channel that is closed when another begins to wait for a consumer. Take
// it before isWaitedFor.
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

func (a *awaited) answer(consumer string, at int64) {
	a.due[consumer] = max(a.due[consumer], at)
	select {
	case a.now <- struct{}{}:
	default:
	}
}

// again lets all callers look: what was said meanwhile may be lost.
func (a *awaited) again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, all := range a.here {
		for there := range all {
			close(there)
		}
	}
	clear(a.here)
}

// take returns what is due, and forgets it.
func (a *awaited) take() map[string]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.due
	a.due = map[string]int64{}
	return due
}

// word is what processes tell each other about a consumer: that one waits for
// it at a position, or that it is there.
type word struct {
	Consumer string `json:"consumer"`
	Position int64  `json:"position"`
	Reached  bool   `json:"reached,omitempty"`
}

// noticeWord hears another process, or itself. Nothing is said after a new
// connection: what was said before may be lost.
func (w *Worker) noticeWord(said string) {
	var heard word
	switch err := json.Unmarshal([]byte(said), &heard); {
	case said == "":
		w.awaited.again()
	case err != nil: // of a later version
	case heard.Reached:
		w.awaited.reached(heard.Consumer, heard.Position)
	default:
		if u := w.unit(heard.Consumer); u != nil {
			w.awaited.ask(heard.Consumer, heard.Position, func() int64 { return w.reached(u.declared) })
		}
	}
}

// say tells the other processes. If they do not hear, they look.
func (w *Worker) say(ctx context.Context, words ...word) {
	said := make([]string, len(words))
	for i, s := range words {
		text, err := json.Marshal(s)
		if err != nil {
			return // no name of a consumer does that
		}
		said[i] = string(text)
	}
	conn := &pooled{w: w}
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		return changes.Send(ctx, conn, w.waitChannel, said)
	})
	conn.giveBack(err)
	w.taskFailed(ctx, taskAnnounce, "", err)
}

// answerWaits tells other processes how far consumers are that they wait for.
func (w *Worker) answerWaits(ctx context.Context) {
	for {
		select {
		case <-w.awaited.now:
		case <-ctx.Done():
			return
		}
		var words []word
		for consumer, at := range w.awaited.take() {
			words = append(words, word{consumer, at, true})
		}
		w.say(ctx, words...)
	}
}
