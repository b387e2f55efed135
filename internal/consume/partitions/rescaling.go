// Package partitions splits and merges the units of a consumer between two batches.
package partitions

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// firstPause is the pause, before jitter, after the first failed split or merge.
const firstPause = 100 * time.Millisecond

// Unit is the unit that is split or merged, with what that needs.
type Unit struct {
	Name        string
	Consumer    string // the name of the whole consumer
	Slots       partition.Range
	Key         Key
	Barriers    *Barriers // of all units of this worker
	Checkpoints *progress.Checkpoints
	Log         store.BoundLog
}

// Rescaling is a unit's state of splits and merges. It keeps nothing that may be outdated:
// any worker may run a step at any time, so each step reads everything that matters in its
// own transaction.
type Rescaling struct {
	unit        Unit
	wanted      int    // the wanted number of partitions, as last read
	target      string // the name of the unit to merge into; empty: none
	bounded     bool
	upTo        int64     // the last position to read, if bounded
	nextArrival time.Time // when to arrive at the barrier again, at the latest
	failures    int       // failed splits and merges in a row
	due         time.Time
}

// New returns the state of a unit that is neither split nor merged yet.
func New(u Unit) Rescaling { return Rescaling{unit: u} }

// Arrival is the state of a unit between two batches.
type Arrival struct {
	Position int64
	Unready  bool // the unit is paused or failing, so that no other part waits for it
	Deferred bool // the unit has deferred a move of its checkpoint
}

// Step is what a unit does before its next batch. The zero value is nothing.
type Step struct {
	Bound  bool // the bound of the unit's reads is new, so the last page does not count
	Reload bool // the unit drops its deferred move: parts merge at their checkpoints
	Wait   *Wait

	Task     string            // "split" or "merge"; empty: neither
	children []partition.Range // of a split
	target   partition.Range   // of a merge
	parts    []string          // of a merge
}

// Wait is a part's wait for the other parts at a barrier.
type Wait struct {
	Until   time.Time
	Changed <-chan struct{} // closed at the next change of a barrier
}

// Next returns the unit's step towards the wanted number of partitions. 0 means that no
// number is wanted: the unit leaves its barrier, and its failures are dropped.
func (r *Rescaling) Next(wanted int, a Arrival, now time.Time) (s Step) {
	r.setWanted(wanted)
	if wanted == 0 {
		return Step{Bound: r.Leave()}
	}
	children := r.unit.Slots.Children(wanted)
	target := partition.Target(wanted, r.unit.Slots.First)
	switch {
	case len(children) > 1:
		if s.Bound = r.Leave(); !now.Before(r.due) {
			s.Task, s.children = "split", children
		}
		return s
	case r.unit.Slots == target:
		return Step{Bound: r.Leave()}
	}
	return r.arrive(target, a, now)
}

// setWanted records the wanted number of partitions. A new number clears the failures.
func (r *Rescaling) setWanted(n int) {
	if n != r.wanted {
		r.wanted, r.failures, r.due = n, 0, time.Time{}
	}
}

// arrive takes part in the barrier of target's parts. The part that arrives last merges
// them.
func (r *Rescaling) arrive(target partition.Range, a Arrival, now time.Time) (s Step) {
	name := partition.Name(r.unit.Consumer, target)
	if r.target != name {
		s.Bound = r.Leave()
		if r.target = name; a.Deferred {
			s.Reload = true
			return s
		}
	}
	changed := r.unit.Barriers.Changed()
	do := r.unit.Barriers.arrive(name, target, r.unit.Name, now, participant{slots: r.unit.Slots, at: a.Position, unready: a.Unready})
	r.nextArrival = do.until
	s.Bound = r.setBound(do.bounded, do.upTo) || s.Bound
	switch {
	case do.merge:
		s.Task, s.target, s.parts = "merge", target, r.unit.Barriers.partsOf(name)
	case do.wait:
		s.Wait = &Wait{do.until, changed}
	}
	return s
}

// Ended records the end of a split or a merge. done reports whether units were replaced. A
// failure is retried after a pause.
func (r *Rescaling) Ended(s Step, done bool, now time.Time) {
	r.failures++
	if done {
		r.failures = 0
	}
	r.due = now.Add(backoff.Delay(r.failures, firstPause, barrierLimit, rand.Float64()))
	if s.parts != nil {
		r.unit.Barriers.abort(r.target, r.due)
	}
}

// Leave leaves the barrier, because the unit is not to be merged, or not by this worker. It
// reports whether the bound of the unit's reads is new.
func (r *Rescaling) Leave() (bound bool) {
	if r.target == "" {
		return false
	}
	r.unit.Barriers.leave(r.target, r.unit.Name)
	r.target = ""
	return r.setBound(false, 0)
}

// setBound sets the last position that the unit may read, and reports whether that is new.
func (r *Rescaling) setBound(bounded bool, upTo int64) (changed bool) {
	changed = r.bounded != bounded || bounded && r.upTo != upTo
	r.bounded, r.upTo = bounded, upTo
	return changed
}

// Bound returns the last position that the unit may read, if it is bounded.
func (r *Rescaling) Bound() (upTo int64, bounded bool) { return r.upTo, r.bounded }

// Merges reports whether the unit is at a barrier.
func (r *Rescaling) Merges() bool { return r.target != "" }

// Failures returns the number of failed splits and merges in a row.
func (r *Rescaling) Failures() int { return r.failures }

// Due returns when a waiting unit must call Next again without a signal. It returns the
// zero time if it need not.
func (r *Rescaling) Due() time.Time {
	switch {
	case r.target != "":
		return r.nextArrival
	case r.failures > 0:
		return r.due
	}
	return time.Time{}
}

// Await waits for a change of a barrier, for one of the caller's signals, or for the end of
// ctx.
func (w *Wait) Await(ctx context.Context, assignments, reload <-chan struct{}) {
	timer := time.NewTimer(time.Until(w.Until))
	defer timer.Stop()
	select {
	case <-w.Changed:
	case <-assignments:
	case <-timer.C:
	case <-reload:
	case <-ctx.Done():
	}
}
