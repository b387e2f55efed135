package coord

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func drawDuration(t *rapid.T, name string, low, high time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(int64(low), int64(high)).Draw(t, name))
}

func TestPause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1_000_000).Draw(t, "failures")
		random := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		d := pause(n, random)
		low, high := 250*time.Millisecond, 5*time.Second
		switch {
		case n == 1:
			low, high = 0, replacePause
		case n == 2:
			high = 500 * time.Millisecond
		case n > 10:
			low = 2500 * time.Millisecond
		}
		if d < low || d > high {
			t.Fatalf("%v after %d failures is outside %v to %v", d, n, low, high)
		}
		if next := pause(n+1, random); next < d {
			t.Fatalf("the pause shrank from %v to %v", d, next)
		}
	})
}

func TestLease(t *testing.T) {
	me, other := uuid.New(), uuid.New()
	begin := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		duration := drawDuration(t, "duration", time.Millisecond, time.Hour)
		interval := drawDuration(t, "interval", time.Millisecond, duration)
		l := lease{
			holder: rapid.SampledFrom([]uuid.UUID{me, other, uuid.Nil}).Draw(t, "holder"),
			left:   drawDuration(t, "left", -2*duration, 3*duration),
			most:   duration,
			read:   begin,
		}
		if l.holder == other { // by its own settings
			l.most = drawDuration(t, "most", time.Millisecond, 3*duration)
		}
		elapsed := drawDuration(t, "elapsed", -duration, 3*duration)
		valid := l.holder != uuid.Nil && l.left > 0 && l.left <= l.most
		if l.expired() == valid {
			t.Fatalf("expired: %v", !valid)
		}
		if got := l.heldBy(me); got != (valid && l.holder == me) {
			t.Fatalf("held by me: %v", got)
		}
		if valid && l.holder == other && l.due(me, duration, interval) {
			t.Fatal("due for a lease that another worker holds")
		}
		if !valid && !l.due(me, duration, interval) {
			t.Fatal("not due for a free lease")
		}
		if l.heldBy(me) && l.due(me, duration, interval) != (duration-l.left >= interval) {
			t.Fatalf("renews after %v of %v: %v", duration-l.left, interval, l.due(me, duration, interval))
		}
		got := l.remaining(begin.Add(elapsed), duration)
		if got < 0 || got > duration || got > 0 && !valid {
			t.Fatalf("%v remain of %v, valid: %v", got, duration, valid)
		}
		if elapsed >= 0 && got > max(l.left-elapsed-duration/10, 0) {
			t.Fatalf("%v remain, %v after there were %v at most", got, elapsed, l.left)
		}
		if later := l.remaining(begin.Add(elapsed+time.Millisecond), duration); later > got {
			t.Fatalf("the remaining time grew from %v to %v", got, later)
		}
		if !l.expired() && elapsed == 0 && l.left > duration/10 && got == 0 {
			t.Fatal("a lease has no remaining time right after the claim")
		}
	})
}

func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := []string{"a", "b", "c", "d"}
		var alive []member
		for range rapid.IntRange(0, 3).Draw(t, "alive") {
			alive = append(alive, member{ID: uuid.New(), Units: rapid.SliceOf(rapid.SampledFrom(units)).Draw(t, "units")})
		}
		workers := []uuid.UUID{uuid.New()}
		for _, m := range alive {
			workers = append(workers, m.ID)
		}
		owners := map[string]uuid.UUID{}
		for _, u := range rapid.SliceOfDistinct(rapid.SampledFrom(append(units, "retired")), rapid.ID).Draw(t, "assigned") {
			owners[u] = rapid.SampledFrom(workers).Draw(t, "owner")
		}
		sticky := rapid.Bool().Draw(t, "sticky")
		n := plan(alive, assignments{owners: owners}, sticky)
		changes := n.changes
		for _, u := range n.unowned {
			if slices.ContainsFunc(alive, func(m member) bool { return slices.Contains(m.Units, u) }) {
				t.Fatalf("%q is wrongly unowned", u)
			}
		}
		before := len(owners)
		added := 0
		for _, c := range changes {
			was, ok := owners[c.Unit]
			if ok && was == c.Worker {
				t.Fatalf("%q is written without a change", c.Unit)
			}
			if !ok {
				added++
			}
			owners[c.Unit] = c.Worker
		}
		if len(owners) != before+added {
			t.Fatal("a unit is written twice")
		}
		if again := plan(alive, assignments{owners: owners}, sticky); len(again.changes)+len(n.gone) > 0 {
			t.Fatalf("a second plan has more changes: %v, and gone are %v", again, n.gone)
		}
		if !slices.IsSortedFunc(changes, func(a, b change) int { return slices.Compare([]byte(a.Unit), []byte(b.Unit)) }) {
			t.Fatalf("not in order of name: %v", changes)
		}
	})
}
