package frontier

import (
	"time"

	"github.com/pgfrontier/worker/store"
)

// proof is what the answers to statements prove: how far the log is safe, which transactions a
// fence waits for, and which positions are in doubt. It requests no statement and publishes
// nothing.
type proof struct {
	rules rules

	safe   int64
	head   int64 // the highest visible position read so far
	fences []*fence
	doubts doubts
	// holders are the holders of the latest scan, by virtualtransaction.
	holders map[string]*holder
	first   bool  // no fence has been opened yet
	fenced  int64 // the highest position that a fence has covered
	closing bool  // the oldest fence waits for a read before it closes with doubts

	newlyStale []*holder // became stale since the last takeNewlyStale
}

// rules are the settings of the machine.
type rules struct {
	strict     bool // see Config.Strict
	staleAfter time.Duration
	harborLag  int64
	interval   time.Duration // between two tails of an idle log
	raiseEvery time.Duration // between two writes of the settled row
	// named reports whether the sequence of the positions is known. If not, every transaction
	// is a holder, there is no last value, and nothing is durable.
	named bool
}

// wantsScan reports whether positions are missing or the end of a transaction is awaited.
func (m *proof) wantsScan() bool {
	return m.head > m.safe || len(m.fences) > 0 || len(m.doubts.all) > 0
}

// join advances safe over the runs that join it without a gap.
func (m *proof) join(runs []store.Range) {
	for _, run := range runs {
		if run.First > m.safe+1 {
			return
		}
		m.advance(run.Last)
	}
}

// advance raises safe. While doubts exist, safe stays HarborLag behind the head.
func (m *proof) advance(to int64) {
	if len(m.doubts.all) > 0 {
		to = min(to, m.head-m.rules.harborLag)
	}
	m.safe = max(m.safe, to)
}

func (m *proof) settled() int64 {
	if len(m.doubts.all) > 0 {
		return min(m.safe, m.doubts.all[0].First-1)
	}
	return m.safe
}
