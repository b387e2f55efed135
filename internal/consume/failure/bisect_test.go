package failure

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// next returns the batch after a position, as the loop reads it.
func (i Bisection) next(events []store.PersistedEvent, after int64, batchSize int) (page []store.PersistedEvent, through int64) {
	through = i.UpTo(1 << 40)
	for _, e := range events {
		if e.GlobalPosition <= after {
			continue
		}
		if e.GlobalPosition > through {
			break
		}
		if page = append(page, e); len(page) == i.Size(batchSize) {
			return page, e.GlobalPosition
		}
	}
	return page, through
}

func samePosition(a, b store.PersistedEvent) bool { return a.GlobalPosition == b.GlobalPosition }

// For any failing events, named or not: all events before the first failing one are
// committed, and the failing one is tried alone. In the end no other event is suspected.
func TestBisectionFindsFailingEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var events []store.PersistedEvent
		bad := map[int64]int{} // remaining failures
		position := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			position += rapid.Int64Range(1, 3).Draw(t, "step")
			events = append(events, store.PersistedEvent{GlobalPosition: position})
			if rapid.IntRange(0, 9).Draw(t, "bad") == 0 {
				bad[position] = rapid.IntRange(1, 12).Draw(t, "failures")
			}
		}
		batchSize := rapid.IntRange(1, 20).Draw(t, "batch size")
		named := rapid.Bool().Draw(t, "named")

		var i Bisection
		var done []int64
		after, attempts := int64(0), 0
		for len(done) < len(events) {
			if attempts++; attempts > 60*21 {
				t.Fatalf("no end: %+v at %d", i, after)
			}
			page, through := i.next(events, after, batchSize)
			culprit := slices.IndexFunc(page, func(e store.PersistedEvent) bool { return bad[e.GlobalPosition] > 0 })
			if culprit >= 0 {
				bad[page[culprit].GlobalPosition]--
				at := -1
				if named {
					at = culprit
				}
				before := i
				i = i.Failed(page, at)
				next, _ := i.next(events, after, batchSize)
				if again := !before.Active() && !named; again && !slices.EqualFunc(next, page, samePosition) {
					t.Fatalf("%+v: the next batch is %v, want the one that failed, %v", i, next, page)
				} else if !again && len(page) > 1 && len(next) >= len(page) {
					t.Fatalf("%+v after %+v: the next batch of %d is no smaller than that of %d which failed", i, before, len(next), len(page))
				}
				continue
			}
			for _, e := range page {
				done = append(done, e.GlobalPosition)
			}
			if len(page) > 0 {
				after = page[len(page)-1].GlobalPosition
			}
			i = i.Passed(through)
		}
		if !slices.IsSorted(done) || len(slices.Compact(done)) != len(events) {
			t.Fatalf("handled %v", done)
		}
		if i = i.Passed(after); i.Active() {
			t.Fatalf("%+v is under suspicion when all is done", i)
		}
	})
}

// The failing event is alone from its third try on. The first try shows that it fails.
// Before the second try the events before it were committed.
func TestBisectionOfNamedEventTakesThreeTries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 100).Draw(t, "events")
		events := make([]store.PersistedEvent, n)
		for k := range events {
			events[k].GlobalPosition = int64(k + 1)
		}
		at := rapid.IntRange(0, n-1).Draw(t, "culprit")
		i := Bisection{}.Failed(events, at)
		page, through := i.next(events, 0, n)
		if len(page) != at || through != int64(at) {
			t.Fatalf("first %d events through %d, want the %d before the culprit", len(page), through, at)
		}
		if i = i.Passed(through); !i.Active() {
			t.Fatal("nothing is under suspicion any more")
		}
		if page, _ = i.next(events, through, n); len(page) != 1 || page[0].GlobalPosition != int64(at+1) {
			t.Fatalf("then %v, want the culprit alone", page)
		}
	})
}
