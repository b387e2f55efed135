package stage

import (
	"sync"

	"github.com/pgfrontier/worker/sim/history"
)

// What runs of both kinds count beside faults.
const (
	Conflicts             history.Fault = "other conflicts and lock time-outs"
	TransactionsBrokenOff history.Fault = "transactions that the server broke off"
	SlowStarts            history.Fault = "workers too slow to start, replaced"
)

// Tally counts what has been done.
type Tally struct {
	mu     sync.Mutex
	counts map[history.Fault]int64
	lag    int64 // positions between the head and the checkpoint furthest behind, when last read
}

// SetLag records how far the consumers are behind.
func (t *Tally) SetLag(positions int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lag = positions
}

// Slowdown returns how many times as long the writers must pause, so that the consumers can keep
// up: most goes wrong at the head.
func (t *Tally) Slowdown() float64 {
	const near = 150 // positions
	t.mu.Lock()
	defer t.mu.Unlock()
	return 1 + float64(t.lag)/near
}

// Add counts a fault n times.
func (t *Tally) Add(f history.Fault, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[history.Fault]int64{}
	}
	t.counts[f] += int64(n)
}

// Count is how often a fault was counted.
func (t *Tally) Count(f history.Fault) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[f]
}

func (t *Tally) Crashes() int64 {
	return t.Count(history.Crashes) + t.Count(history.CommitCrashes) + t.Count(history.IdleCrashes)
}

// All returns the counts in the order of counters.
func (t *Tally) All(counters []history.Fault) []history.Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []history.Count
	for _, f := range counters {
		all = append(all, history.Count{Fault: f, Count: t.counts[f]})
	}
	return all
}

// What faults of runs of both kinds are counted as.
const (
	MachinesVanished      history.Fault = "of these with connections left half open"
	WorkersRestarted      history.Fault = "workers stopped and started"
	LockBackendsEnded     history.Fault = "backends ended, with a worker's or the leader's lock"
	ListenerBackendsEnded history.Fault = "backends ended, of a listener"
	BackendCrashes                      = history.BackendCrashes
	AsyncCommits          history.Fault = "transactions committed asynchronously"
	AsyncWorkers          history.Fault = "workers that commit asynchronously"
)

// The settings for which a crash takes commits back: who connects reads them.
const (
	AsyncWritersOn = "async-writers"
	AsyncWorkersOn = "async-workers"
)
