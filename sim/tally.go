package sim

import "sync"

// tally counts what has been done.
type tally struct {
	mu     sync.Mutex
	counts map[Fault]int64
	events map[string]int64 // committed, by aggregate type
	lag    int64            // positions between the head and the checkpoint furthest behind, when last looked at
}

func (t *tally) setLag(positions int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lag = positions
}

// crowded reports that the consumers cannot keep up: this machine is slow.
func (t *tally) crowded() bool {
	const tooFar = 6_000
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lag > tooFar
}

func (t *tally) add(f Fault, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[Fault]int64{}
	}
	t.counts[f] += int64(n)
}

func (t *tally) committed(events []Event) {
	t.add(Commits, 1)
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
func (t *tally) wanted(by Scope) (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for aggregateType, events := range t.events {
		if by.Wants(aggregateType) {
			n += events
		}
	}
	return n
}

func (t *tally) count(f Fault) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[f]
}

func (t *tally) crashes() int64 {
	return t.count(Crashes) + t.count(CommitCrashes) + t.count(IdleCrashes)
}

// all returns the counts in the order of printing.
func (t *tally) all() []Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Count
	for _, f := range EveryFault {
		all = append(all, Count{f, t.counts[f]})
	}
	return all
}
