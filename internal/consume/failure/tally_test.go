package failure

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// usual are the limits of a worker with default options.
var usual = Limits{Attempts: 5, Stop: true, Pause: time.Second, MaxPause: 30 * time.Second}

// simulated is a loop over a tally. Some of its events fail, and only pauses move its
// clock.
type simulated struct {
	Tally
	limits   Limits
	size     int // of a batch
	events   []store.PersistedEvent
	position int64
	now      time.Time
	away     time.Time     // until when the dependency is down, which fails every event
	poison   []int64       // positions of events that always fail
	named    bool          // the consumer names the failing event
	shown    map[int64]int // how often an event was alone or named when it failed, by position
}

func drawSimulated(t *rapid.T) *simulated {
	s := &simulated{
		limits: Limits{
			Attempts: rapid.IntRange(1, 6).Draw(t, "max failures"),
			Stop:     rapid.Bool().Draw(t, "stop"),
			Pause:    time.Second,
			MaxPause: 30 * time.Second,
		},
		size:  rapid.IntRange(2, 20).Draw(t, "batch size"),
		now:   time.Unix(0, 0),
		named: rapid.Bool().Draw(t, "named"),
		shown: map[int64]int{},
	}
	for p := range rapid.Int64Range(1, 60).Draw(t, "events") {
		s.events = append(s.events, store.PersistedEvent{GlobalPosition: p + 1})
	}
	return s
}

// step makes a batch. It returns the decision if the batch failed, and the event that was
// alone or named.
func (s *simulated) step(t *rapid.T) (v Decision, known int64, failed bool) {
	page, through := s.Bisection.next(s.events, s.position, s.size)
	at := slices.IndexFunc(page, func(e store.PersistedEvent) bool {
		return s.now.Before(s.away) || slices.Contains(s.poison, e.GlobalPosition)
	})
	if at < 0 {
		s.position = min(through, int64(len(s.events)))
		s.Passed(through)
		s.now = s.now.Add(s.Due())
		return Decision{}, 0, false
	}
	if len(page) == 1 || s.named {
		known = page[at].GlobalPosition
		s.shown[known]++
	}
	if !s.named {
		at = -1
	}
	v = s.Failed(&s.limits, Failure{Kind: Handler, Batch: true, Events: page, At: at, Now: s.now, Random: rapid.Float64Range(0, 0.99).Draw(t, "random")})
	s.now = s.now.Add(v.Pause)
	return v, known, true
}

// The policy applies to an event only after that event has failed alone or named as often
// as the option says, however many events fail. It applies to no other event.
func TestPolicyAppliesToThePoisonEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSimulated(t)
		for _, e := range s.events {
			if rapid.IntRange(0, 9).Draw(t, "poison") == 0 {
				s.poison = append(s.poison, e.GlobalPosition)
			}
		}
		most := max(s.limits.Attempts, 2) // a named one is still to fail alone once
		found := 0
		for steps := 0; s.position < int64(len(s.events)); steps++ {
			if steps > 3000 {
				t.Fatalf("no end at %d: %+v", s.position, s.Tally)
			}
			v, known, failed := s.step(t)
			switch {
			case !failed:
				continue
			case !v.ByHandler:
				t.Fatalf("the handler's failure is %+v", v)
			case !v.Exhausted:
				continue
			case known != s.poison[found] || s.shown[known] < s.limits.Attempts || s.shown[known] > most || v.Tries != s.shown[known]:
				t.Fatalf("%+v for event %d, which has failed %d times; the poison events are %v", v, known, s.shown[known], s.poison)
			}
			found++ // as if it became a dead letter
			s.poison[found-1] = 0
		}
		if found != len(s.poison) {
			t.Fatalf("%d of %d poison events were found", found, len(s.poison))
		}
	})
}

// A short outage of a dependency is survived, however many events it fails. It may last a
// second if the batch must be narrowed down, and otherwise half a second for each try.
func TestRetriesOutlastShortOutage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSimulated(t)
		survives := time.Second
		if s.named || len(s.events) == 1 {
			survives = time.Duration(s.limits.Attempts-1) * time.Second / 2
		}
		s.away = s.now.Add(time.Duration(rapid.Int64Range(0, int64(survives)).Draw(t, "away")))
		for s.position < int64(len(s.events)) {
			if v, known, _ := s.step(t); v.Exhausted {
				t.Fatalf("%+v for event %d after %v", v, known, s.now.Sub(time.Unix(0, 0)))
			}
		}
		if s.Failures != 0 || s.Attempt() != 1 {
			t.Fatalf("when all is done: %+v", s.Tally)
		}
	})
}

// The events before a known failing event are not delayed. The failing event is tried again
// after a pause.
func TestPauseOnlyBeforeFailingEvent(t *testing.T) {
	s := &simulated{limits: usual, events: make([]store.PersistedEvent, 5), shown: map[int64]int{}}
	for i := range s.events {
		s.events[i].GlobalPosition = int64(i + 1)
	}
	v := s.Failed(&s.limits, Failure{Kind: Handler, Batch: true, Events: s.events, At: 3})
	if v.Pause != 0 || s.Due() != 0 {
		t.Errorf("the events before it wait: %+v", v)
	}
	s.Passed(3)
	if pause := s.Due(); pause < s.limits.Pause/2 {
		t.Errorf("the event is tried again after %v", pause)
	}
	if pause := s.Due(); pause != 0 {
		t.Errorf("and again after %v", pause)
	}
	if v = s.Failed(&s.limits, Failure{Kind: Handler, Batch: true, Events: s.events[3:4], At: -1}); v.Pause < s.limits.Pause || v.Tries != 2 {
		t.Errorf("alone, it leads to %+v", v)
	}
	if v = (&Tally{}).Failed(&s.limits, Failure{Kind: Handler, Batch: true, Events: s.events, At: 0}); v.Pause < s.limits.Pause/2 {
		t.Errorf("the first event is tried again at once: %+v", v)
	}
}

// A failure that belongs to no event counts by itself.
func TestPolicyAppliesToABatchWithoutEvents(t *testing.T) {
	limits := usual
	var c Tally
	for n := 1; n <= limits.Attempts; n++ {
		if v := c.Failed(&limits, Failure{Kind: Handler, Batch: true, At: -1}); v.Exhausted != (n == limits.Attempts) || v.Pause <= 0 {
			t.Errorf("failure %d: %+v", n, v)
		}
	}
}

// A loss of all connections is never the handler's failure, however often it happens. A
// loss of one connection alone is, from the second time at the same event on.
func TestRepeatedLossCountsIfOthersSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := usual
		events := []store.PersistedEvent{{GlobalPosition: 1}, {GlobalPosition: 2}, {GlobalPosition: 3}}
		var c Tally
		lostBefore := 0
		at := rapid.IntRange(-1, 2).Draw(t, "at")
		for range rapid.IntRange(1, 30).Draw(t, "losses") {
			f := Failure{Kind: Loss, Batch: true, Events: events, At: at, Well: rapid.Bool().Draw(t, "well")}
			v := c.Failed(&limits, f)
			if want := f.Well && lostBefore > 0; v.ByHandler != want {
				t.Fatalf("byHandler %v, want %v: %+v after %d such losses, %+v", v.ByHandler, want, f, lostBefore, c)
			}
			if v.Pause <= 0 && at <= 0 {
				t.Fatalf("no pause: %+v", v)
			}
			if f.Well {
				lostBefore++
			}
		}
	})
}

// Losses at one event after the other are no handler's failure.
func TestLossesAtSeveralEvents(t *testing.T) {
	limits := usual
	var c Tally
	for p := range int64(20) {
		e := []store.PersistedEvent{{GlobalPosition: p + 1}}
		if v := c.Failed(&limits, Failure{Kind: Loss, Batch: true, Events: e, At: 0, Well: true}); v.ByHandler {
			t.Fatalf("at event %d: %+v", p+1, v)
		}
	}
}

// A COMMIT names no event. Its losses keep counting while the batch is narrowed down.
func TestLossesCountDuringBisection(t *testing.T) {
	limits := usual
	e := []store.PersistedEvent{{GlobalPosition: 1}, {GlobalPosition: 2}, {GlobalPosition: 3}}
	var c Tally
	for i, events := range [][]store.PersistedEvent{e, e, e, e[2:], e[2:]} {
		if v := c.Failed(&limits, Failure{Kind: Loss, Batch: true, Events: events, At: -1, Well: true}); v.ByHandler != (i > 0) {
			t.Fatalf("loss %d: %+v", i+1, v)
		}
		if i == 2 {
			c.Passed(2)
		}
	}
}

func TestConflictsCountFromTheSixthOn(t *testing.T) {
	limits := usual
	events := []store.PersistedEvent{{GlobalPosition: 1}}
	var c Tally
	conflict := func(want bool, inARow int) {
		t.Helper()
		v := c.Failed(&limits, Failure{Kind: Conflict, Batch: true, Events: events, At: 0})
		if v.ByHandler != want || v.InARow != inARow || v.Pause <= 0 || v.Exhausted {
			t.Errorf("conflict %d in a row: %+v", c.conflicts, v)
		}
	}
	for range 2 {
		for n := 1; n <= conflictsTolerated; n++ {
			conflict(false, n)
		}
		conflict(true, 1)
		c.Passed(1)
	}
}

// RetryLimit limits a lasting failure: failures that have ended do not add up.
func TestRetryLimitRestartsAfterSuccess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := usual
		limits.RetryLimit = time.Minute
		var c Tally
		now, began := time.Unix(0, 0), time.Time{} // of the failure
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(40*time.Second)).Draw(t, "later")))
			if rapid.Bool().Draw(t, "works") {
				if over := c.Worked(); over != !began.IsZero() {
					t.Fatalf("over is %v, failing since %v", over, began)
				}
				began = time.Time{}
				continue
			}
			if began.IsZero() {
				began = now
			}
			kind := rapid.SampledFrom([]Kind{Database, Loss, Ended}).Draw(t, "kind")
			if v := c.Failed(&limits, Failure{Kind: kind, Now: now, At: -1}); v.ByHandler || v.Exhausted != (now.Sub(began) > limits.RetryLimit) {
				t.Fatalf("%+v, after %v", v, now.Sub(began))
			}
		}
	})
}

// An answer of the server ends a failure of the database, also if the answer is a handler's
// failure or a conflict. After a committed batch, the step reports the end.
func TestServerAnswerEndsDatabaseFailure(t *testing.T) {
	limits := usual
	limits.RetryLimit = time.Minute
	now := time.Unix(0, 0)
	for _, answer := range []Kind{Conflict, Handler} {
		var c Tally
		c.Failed(&limits, Failure{Kind: Database, Now: now})
		c.Failed(&limits, Failure{Kind: answer, Batch: true, At: -1, Now: now.Add(time.Second)})
		if v := c.Failed(&limits, Failure{Kind: Database, Now: now.Add(time.Hour)}); v.Exhausted || v.InARow != 1 {
			t.Errorf("after a failure of kind %d, a new failure is %+v", answer, v)
		}
	}
	var c Tally
	c.Failed(&limits, Failure{Kind: Database, Now: now})
	if c.Passed(1); !c.Worked() {
		t.Error("a failure is cleared before a step reports its end")
	}
}
