package batch

import (
	"time"

	"github.com/pgfrontier/worker/internal/partition"
)

const (
	// leastDefer is the lower bound of DeferLimit.
	leastDefer = 100 * time.Millisecond
	// deferredCommits is the most deferred commits a second of all parts of one consumer,
	// where leastDefer allows more.
	deferredCommits = 40
)

// DeferLimit is how long a part defers the commit of positions without events of its own.
// It grows with the number of parts, so that their total number of commits does not. A
// position that a caller waits for is committed at once.
func DeferLimit(slots partition.Range) time.Duration {
	return max(leastDefer, partition.Slots*time.Second/time.Duration(deferredCommits*slots.Size()))
}

// Deferred is the move of the checkpoint that a part has deferred. Events of other
// parts need no immediate commit. At the head of the log, each of many parts would
// otherwise commit for each event. The next batch moves the checkpoint, or a commit of its
// own after DeferLimit.
//
// A move with a missing position is never deferred: the missing position must be in the
// audit table, or be watched.
type Deferred struct {
	UpTo  int64 // 0: nothing is deferred
	Since time.Time
}

// Due returns when the move of a part with these slots must be committed.
func (d Deferred) Due(slots partition.Range) time.Time { return d.Since.Add(DeferLimit(slots)) }

// Gathering is how long a consumer lets further events gather after a batch.
const Gathering = 10 * time.Millisecond

// GatheringOf returns how long a part lets events gather. The time grows with the number of
// parts, up to three times Gathering. Each part has its own transactions, with fewer events
// in each.
func GatheringOf(slots partition.Range) time.Duration {
	n := partition.Slots / slots.Size()
	return min(Gathering+time.Duration(n)*Gathering/16, 3*Gathering)
}
