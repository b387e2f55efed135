package sim

import "sync"

// Fault is something that a run does to its writers and workers, as it is
// counted and printed.
type Fault string

// The faults, in the order in which they are printed.
const (
	Commits        Fault = "transactions committed"
	Rollbacks      Fault = "appends rolled back"
	Delays         Fault = "commits delayed"
	LateDraws      Fault = "commits delayed, with a draw in between"
	Idlers         Fault = "draws after idling in a transaction"
	Savepoints     Fault = "savepoints rolled back"
	Several        Fault = "transactions over several aggregates"
	StaleVersions  Fault = "appends to a stale version"
	Conflicts      Fault = "other conflicts and lock time-outs"
	Prepared       Fault = "transactions prepared"
	PreparedUndone Fault = "prepared transactions rolled back"
	LostCommits    Fault = "writers' commits with no answer"

	Crashes       Fault = "worker crashes, in a batch"
	CommitCrashes Fault = "worker crashes, at its commit"
	IdleCrashes   Fault = "worker crashes, between batches"
	Vanished      Fault = "of these with connections left half open"
	Cuts          Fault = "live workers cut off, recovered"
	Stalls        Fault = "live workers stalled"
	Restarts      Fault = "workers stopped and started"
	SlowStarts    Fault = "workers too slow to start, replaced"
	Flaps         Fault = "consumers moved away in a batch"

	EndedBatches  Fault = "backends ended, of a batch"
	EndedLocks    Fault = "backends ended, with a worker's or the leader's lock"
	EndedScanners Fault = "backends ended, of a frontier"
	Unregistered  Fault = "registrations deleted"
	HandlerErrors Fault = "handlers that failed"
	HandlerPanics Fault = "handlers that panicked"
	Pauses        Fault = "consumers paused for a moment by an operator"
)

var faults = []Fault{Commits, Rollbacks, Delays, LateDraws, Idlers, Savepoints, Several, StaleVersions, Conflicts,
	Prepared, PreparedUndone, LostCommits, Crashes, CommitCrashes, IdleCrashes, Vanished, Cuts, Stalls, Restarts, SlowStarts, Flaps,
	EndedBatches, EndedLocks, EndedScanners, Unregistered, HandlerErrors, HandlerPanics, Pauses}

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
	for _, f := range faults {
		all = append(all, Count{f, t.counts[f]})
	}
	return all
}

// Count is how often a fault happened.
type Count struct {
	Fault Fault `json:"fault"`
	Count int64 `json:"count"`
}
