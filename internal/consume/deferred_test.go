package consume

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// A part defers a commit only if the page has neither an event of its own nor a missing
// position.
func TestDeferredCommitConditions(t *testing.T) {
	void := progress.Mark{Range: store.Range{First: 11, Last: 11}, Missing: 1, State: progress.Void}
	for name, c := range map[string]struct {
		change func(c *agenda, w *work)
		want   bool
	}{
		"nothing":                   {func(*agenda, *work) {}, true},
		"an event":                  {func(_ *agenda, w *work) { w.Events = make([]store.PersistedEvent, 1) }, false},
		"a dead letter":             {func(_ *agenda, w *work) { w.deadLetters = make([]progress.DeadLetter, 1) }, false},
		"a missing position":        {func(_ *agenda, w *work) { w.advance.Marks = []progress.Mark{void} }, false},
		"the end of a doubt":        {func(_ *agenda, w *work) { w.advance.Gone = []int64{1} }, false},
		"a doubt that is watched":   {func(_ *agenda, w *work) { w.from.Open = make([]progress.OpenRange, 1) }, false},
		"a dead letter tried again": {func(_ *agenda, w *work) { w.retried = &progress.Retry{} }, false},
		"a whole consumer":          {func(c *agenda, _ *work) { c.unit = c.unit.unit(partition.All) }, false},
		"a failing event":           {func(c *agenda, _ *work) { c.tally.Bisection.Until = 12 }, false},
		"a poison event":            {func(c *agenda, _ *work) { c.poison = &poison{} }, false},
		"parts that meet":           {func(c *agenda, _ *work) { arriveAtBarrier(&shared{}, c) }, false},
		"a caller waits":            {func(c *agenda, _ *work) { c.awaited.Wait("c", 12) }, false},
		"another process waits":     {func(c *agenda, _ *work) { c.awaited.Request("c", 11, func() int64 { return 10 }) }, false},
		"a wait is for later":       {func(c *agenda, _ *work) { c.awaited.Wait("c", 13) }, true},
		"a wait is for earlier":     {func(c *agenda, _ *work) { c.awaited.Wait("c", 10) }, true},
		"for a moment":              {func(c *agenda, _ *work) { c.deferred = batch.Deferred{UpTo: 11, Since: time.Now()} }, true},
		"for what many parts may": {func(c *agenda, _ *work) {
			c.unit = c.unit.unit(partition.Cut(64)[0])
			c.deferred = batch.Deferred{UpTo: 11, Since: time.Now().Add(-100 * time.Millisecond)}
		}, true},

		"for long": {func(c *agenda, _ *work) {
			c.deferred = batch.Deferred{UpTo: 11, Since: time.Now().Add(-100 * time.Millisecond)}
		}, false},
	} {
		unit := (&spec{consumerName: "c"}).unit(partition.Cut(2)[0])
		loop := &agenda{unit: unit, awaited: arrival.NewCallers(), progress: &progress.State{Position: 10}}
		w := &work{Page: reader.Page{}, advance: progress.Advance{To: 12}}
		c.change(loop, w)
		if got := loop.deferCommit(w); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if c.want && (loop.at() != 12 || loop.progress.Position != 10) {
			t.Errorf("%s: it goes on at %d, from %d", name, loop.at(), loop.progress.Position)
		}
		if loop.forget(); loop.deferred != (batch.Deferred{}) {
			t.Errorf("%s: the deferred move outlasts the progress", name)
		}
	}
}

// A part commits its deferred move as soon as a caller waits for a position in it. A caller
// for a later position changes nothing.
func TestDeferredCommitIsDueWhenAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unit := (&spec{consumerName: "c"}).unit(partition.Cut(64)[0])
		c := &consumerLoop{unit: unit, agenda: agenda{unit: unit, awaited: arrival.NewCallers(), progress: &progress.State{Position: 10}}}
		c.deferred = batch.Deferred{UpTo: 12, Since: time.Now()}
		wait := func(position int64) (after time.Duration) {
			began, n := time.Now(), signals{callers: c.awaited.Joined("c")}
			time.AfterFunc(time.Millisecond, func() { c.awaited.Wait("c", position) })
			c.rest(t.Context(), result{outcome: idle}, n)
			return time.Since(began)
		}
		if after := wait(13); after != time.Millisecond || c.deferredDue() {
			t.Errorf("a wait for a position beyond: woken after %v, and the commit is due: %v", after, c.deferredDue())
		}
		if after := wait(12); after != time.Millisecond || !c.deferredDue() {
			t.Errorf("a wait for the position: woken after %v, and the commit is due: %v", after, c.deferredDue())
		}
		c.progress.Position = 12
		if c.deferredDue() {
			t.Error("the commit is due again")
		}
		c.deferred = batch.Deferred{} // nothing is deferred, so a new caller does not wake the loop
		time.AfterFunc(time.Second, c.unit.reload.signal)
		if after := wait(14); after != time.Second {
			t.Errorf("a part that has deferred nothing is woken after %v", after)
		}
	})
}

// Positions in a deferred move do not count as waiting, although the checkpoint is behind
// them.
func TestStatusCountsDeferredPositions(t *testing.T) {
	u := &unitStatus{}
	u.assigned(true)
	u.begin()
	u.loaded(&progress.State{Position: 10})
	u.passed(12)
	u.recordOldest(oldest{Waiting: store.Waiting{Position: 11, Age: time.Hour}, at: time.Now()})
	head := int64(12)
	s := u.snapshot(&head, &head)
	if _, waits := u.behindAt(head); waits || s.Position != 10 || *s.Lag != 0 || *s.HeadLag != 0 || *s.OldestAge != 0 || s.Still != 0 {
		t.Errorf("a part that has passed the head: waits %v, %+v", waits, s)
	}
	u.loaded(&progress.State{Position: 10})
	if at, waits := u.behindAt(head); !waits || at != 10 || *u.snapshot(&head, &head).Lag != 2 {
		t.Errorf("a part that has loaded its progress again: at %d, waits %v", at, waits)
	}
}
