package worker

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// A part passes without a batch only what leaves no trace: nothing of its own, and
// nothing missing.
func TestWhatAPartPassesLazily(t *testing.T) {
	void := progress.Mark{Range: store.Range{First: 11, Last: 11}, Missing: 1, State: progress.Void}
	for name, c := range map[string]struct {
		change func(c *consumerLoop, w *work)
		want   bool
	}{
		"nothing":                   {func(*consumerLoop, *work) {}, true},
		"an event":                  {func(_ *consumerLoop, w *work) { w.Events = make([]store.PersistedEvent, 1) }, false},
		"a dead letter":             {func(_ *consumerLoop, w *work) { w.deadLetters = make([]progress.DeadLetter, 1) }, false},
		"a missing position":        {func(_ *consumerLoop, w *work) { w.advance.Marks = []progress.Mark{void} }, false},
		"the end of a doubt":        {func(_ *consumerLoop, w *work) { w.advance.Gone = []int64{1} }, false},
		"a doubt that is watched":   {func(_ *consumerLoop, w *work) { w.from.Open = make([]progress.OpenRange, 1) }, false},
		"a dead letter tried again": {func(_ *consumerLoop, w *work) { w.retried = &progress.Retry{} }, false},
		"a whole consumer":          {func(c *consumerLoop, _ *work) { c.unit = c.unit.unit(partition.All) }, false},
		"a failing event":           {func(c *consumerLoop, _ *work) { c.tally.bisect.until = 12 }, false},
		"a poison event":            {func(c *consumerLoop, _ *work) { c.poison = &poison{} }, false},
		"parts that meet":           {func(c *consumerLoop, _ *work) { c.rescaling.target = "c" }, false},
		"somebody waits":            {func(c *consumerLoop, _ *work) { c.w.awaited.wait("c", 12) }, false},
		"for a moment":              {func(c *consumerLoop, _ *work) { c.lazily = lazily{11, time.Now()} }, true},
		"for long":                  {func(c *consumerLoop, _ *work) { c.lazily = lazily{11, time.Now().Add(-lazyFor)} }, false},
	} {
		loop := &consumerLoop{w: &Worker{awaited: newAwaited()}, unit: (&declared{title: "c"}).unit(partition.Cut(2)[0]), progress: &progress.State{Position: 10}}
		w := &work{Page: reader.Page{}, advance: progress.Advance{To: 12}}
		c.change(loop, w)
		if got := loop.passesLazily(w); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if c.want && (loop.at() != 12 || loop.progress.Position != 10) {
			t.Errorf("%s: it goes on at %d, from %d", name, loop.at(), loop.progress.Position)
		}
		if loop.forget(); loop.lazily != (lazily{}) {
			t.Errorf("%s: what was passed outlasts the progress", name)
		}
	}
}
