package sim

import (
	"sync"

	"github.com/pgfrontier/worker/sim/history"
)

// What a run counts beside faults.
const (
	transactionsCommitted history.Fault = "transactions committed"
	severalAggregates     history.Fault = "transactions over several aggregates"
	conflicts             history.Fault = "other conflicts and lock time-outs"
	transactionsBrokenOff history.Fault = "transactions that the server broke off"
	slowStarts            history.Fault = "workers too slow to start, replaced"
)

var plainCounters = []history.Fault{transactionsCommitted, severalAggregates, conflicts, transactionsBrokenOff, slowStarts}

// tally counts what has been done.
type tally struct {
	mu     sync.Mutex
	counts map[history.Fault]int64
	events map[string]int64 // committed, by aggregate type
	lag    int64            // positions between the head and the checkpoint furthest behind, when last looked at
}

func (t *tally) setLag(positions int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lag = positions
}

// slowdown says how many times as long the writers are to pause, so that the
// consumers can keep up: at the head there is most to get wrong.
func (t *tally) slowdown() float64 {
	const near = 150 // positions
	t.mu.Lock()
	defer t.mu.Unlock()
	return 1 + float64(t.lag)/near
}

func (t *tally) add(f history.Fault, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[history.Fault]int64{}
	}
	t.counts[f] += int64(n)
}

func (t *tally) committed(events []history.Event) {
	t.add(transactionsCommitted, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.events == nil {
		t.events = map[string]int64{}
	}
	for _, e := range events {
		t.events[e.Type]++
	}
}

// wanted counts the committed events that a consumer wants.
func (t *tally) wanted(by history.Scope) (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for aggregateType, events := range t.events {
		if by.Wants(aggregateType) {
			n += events
		}
	}
	return n
}

func (t *tally) count(f history.Fault) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[f]
}

func (t *tally) crashes() int64 {
	return t.count(history.Crashes) + t.count(history.CommitCrashes) + t.count(history.IdleCrashes)
}

// all returns the counts in the order of counters.
func (t *tally) all(counters []history.Fault) []history.Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []history.Count
	for _, f := range counters {
		all = append(all, history.Count{Fault: f, Count: t.counts[f]})
	}
	return all
}
