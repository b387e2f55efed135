package consume

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// simulated is a loop over a tally. Some of its events fail, and only pauses move its
// clock.
type simulated struct {
	tally
	cfg      Config
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
		cfg: Config{
			MaxConsecutiveFailures: rapid.IntRange(1, 6).Draw(t, "max failures"),
			FailurePolicy:          rapid.SampledFrom([]FailurePolicy{FailStop, FailPause, FailDeadLetter}).Draw(t, "policy"),
			PollInterval:           time.Second,
			MaxPollInterval:        30 * time.Second,
			BatchSize:              rapid.IntRange(2, 20).Draw(t, "batch size"),
		},
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
func (s *simulated) step(t *rapid.T) (v decision, known int64, failed bool) {
	page, through := s.bisect.next(s.events, s.position, s.cfg.BatchSize)
	at := slices.IndexFunc(page, func(e store.PersistedEvent) bool {
		return s.now.Before(s.away) || slices.Contains(s.poison, e.GlobalPosition)
	})
	if at < 0 {
		s.position = min(through, int64(len(s.events)))
		s.passed(through)
		s.now = s.now.Add(s.due())
		return decision{}, 0, false
	}
	if len(page) == 1 || s.named {
		known = page[at].GlobalPosition
		s.shown[known]++
	}
	if !s.named {
		at = -1
	}
	v = s.failed(&s.cfg, failure{outcome: handlerFailed, batch: true, events: page, at: at, now: s.now, random: rapid.Float64Range(0, 0.99).Draw(t, "random")})
	s.now = s.now.Add(v.pause)
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
		most := max(s.cfg.MaxConsecutiveFailures, 2) // a named one is still to fail alone once
		found := 0
		for steps := 0; s.position < int64(len(s.events)); steps++ {
			if steps > 3000 {
				t.Fatalf("no end at %d: %+v", s.position, s.tally)
			}
			v, known, failed := s.step(t)
			switch {
			case !failed:
				continue
			case !v.byHandler:
				t.Fatalf("the handler's failure is %+v", v)
			case !v.exhausted:
				continue
			case known != s.poison[found] || s.shown[known] < s.cfg.MaxConsecutiveFailures || s.shown[known] > most || v.tries != s.shown[known]:
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
			survives = time.Duration(s.cfg.MaxConsecutiveFailures-1) * time.Second / 2
		}
		s.away = s.now.Add(time.Duration(rapid.Int64Range(0, int64(survives)).Draw(t, "away")))
		for s.position < int64(len(s.events)) {
			if v, known, _ := s.step(t); v.exhausted {
				t.Fatalf("%+v for event %d after %v", v, known, s.now.Sub(time.Unix(0, 0)))
			}
		}
		if s.failures != 0 || s.attempt() != 1 {
			t.Fatalf("when all is done: %+v", s.tally)
		}
	})
}

// The events before a known failing event are not delayed. The failing event is tried again
// after a pause.
func TestPauseOnlyBeforeFailingEvent(t *testing.T) {
	s := &simulated{cfg: DefaultConfig(), events: make([]store.PersistedEvent, 5), shown: map[int64]int{}}
	for i := range s.events {
		s.events[i].GlobalPosition = int64(i + 1)
	}
	v := s.failed(&s.cfg, failure{outcome: handlerFailed, batch: true, events: s.events, at: 3})
	if v.pause != 0 || s.due() != 0 {
		t.Errorf("the events before it wait: %+v", v)
	}
	s.passed(3)
	if pause := s.due(); pause < s.cfg.PollInterval/2 {
		t.Errorf("the event is tried again after %v", pause)
	}
	if pause := s.due(); pause != 0 {
		t.Errorf("and again after %v", pause)
	}
	if v = s.failed(&s.cfg, failure{outcome: handlerFailed, batch: true, events: s.events[3:4], at: -1}); v.pause < s.cfg.PollInterval || v.tries != 2 {
		t.Errorf("alone, it leads to %+v", v)
	}
	if v = (&tally{}).failed(&s.cfg, failure{outcome: handlerFailed, batch: true, events: s.events, at: 0}); v.pause < s.cfg.PollInterval/2 {
		t.Errorf("the first event is tried again at once: %+v", v)
	}
}

// A failure that belongs to no event counts by itself.
func TestPolicyAppliesToABatchWithoutEvents(t *testing.T) {
	cfg := DefaultConfig()
	var c tally
	for n := 1; n <= cfg.MaxConsecutiveFailures; n++ {
		if v := c.failed(&cfg, failure{outcome: handlerFailed, batch: true, at: -1}); v.exhausted != (n == cfg.MaxConsecutiveFailures) || v.pause <= 0 {
			t.Errorf("failure %d: %+v", n, v)
		}
	}
}

// A loss of all connections is never the handler's failure, however often it happens. A
// loss of one connection alone is, from the second time at the same event on.
func TestRepeatedLossCountsIfOthersSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		events := []store.PersistedEvent{{GlobalPosition: 1}, {GlobalPosition: 2}, {GlobalPosition: 3}}
		var c tally
		lostBefore := 0
		at := rapid.IntRange(-1, 2).Draw(t, "at")
		for range rapid.IntRange(1, 30).Draw(t, "losses") {
			f := failure{outcome: lost, batch: true, events: events, at: at, well: rapid.Bool().Draw(t, "well")}
			v := c.failed(&cfg, f)
			if want := f.well && lostBefore > 0; v.byHandler != want {
				t.Fatalf("byHandler %v, want %v: %+v after %d such losses, %+v", v.byHandler, want, f, lostBefore, c)
			}
			if v.pause <= 0 && at <= 0 {
				t.Fatalf("no pause: %+v", v)
			}
			if f.well {
				lostBefore++
			}
		}
	})
}

// Losses at one event after the other are no handler's failure.
func TestLossesAtSeveralEvents(t *testing.T) {
	cfg := DefaultConfig()
	var c tally
	for p := range int64(20) {
		e := []store.PersistedEvent{{GlobalPosition: p + 1}}
		if v := c.failed(&cfg, failure{outcome: lost, batch: true, events: e, at: 0, well: true}); v.byHandler {
			t.Fatalf("at event %d: %+v", p+1, v)
		}
	}
}

// A COMMIT names no event. Its losses keep counting while the batch is narrowed down.
func TestLossesCountDuringBisection(t *testing.T) {
	cfg := DefaultConfig()
	e := []store.PersistedEvent{{GlobalPosition: 1}, {GlobalPosition: 2}, {GlobalPosition: 3}}
	var c tally
	for i, events := range [][]store.PersistedEvent{e, e, e, e[2:], e[2:]} {
		if v := c.failed(&cfg, failure{outcome: lost, batch: true, events: events, at: -1, well: true}); v.byHandler != (i > 0) {
			t.Fatalf("loss %d: %+v", i+1, v)
		}
		if i == 2 {
			c.passed(2)
		}
	}
}

func TestConflictsCountFromTheSixthOn(t *testing.T) {
	cfg := DefaultConfig()
	events := []store.PersistedEvent{{GlobalPosition: 1}}
	var c tally
	conflict := func(want bool, inARow int) {
		t.Helper()
		v := c.failed(&cfg, failure{outcome: conflicted, batch: true, events: events, at: 0})
		if v.byHandler != want || v.inARow != inARow || v.pause <= 0 || v.exhausted {
			t.Errorf("conflict %d in a row: %+v", c.conflicts, v)
		}
	}
	for range 2 {
		for n := 1; n <= conflictsTolerated; n++ {
			conflict(false, n)
		}
		conflict(true, 1)
		c.passed(1)
	}
}

// RetryLimit limits a lasting failure: failures that have ended do not add up.
func TestRetryLimitRestartsAfterSuccess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.RetryLimit = time.Minute
		var c tally
		now, began := time.Unix(0, 0), time.Time{} // of the failure
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(40*time.Second)).Draw(t, "later")))
			if rapid.Bool().Draw(t, "works") {
				if over := c.worked(); over != !began.IsZero() {
					t.Fatalf("over is %v, failing since %v", over, began)
				}
				began = time.Time{}
				continue
			}
			if began.IsZero() {
				began = now
			}
			outcome := rapid.SampledFrom([]outcome{disturbed, lost}).Draw(t, "outcome")
			if v := c.failed(&cfg, failure{outcome: outcome, now: now, at: -1}); v.byHandler || v.exhausted != (now.Sub(began) > cfg.RetryLimit) {
				t.Fatalf("%+v, after %v", v, now.Sub(began))
			}
		}
	})
}

// An answer of the server ends a failure of the database, also if the answer is a handler's
// failure or a conflict. After a committed batch, the step reports the end.
func TestServerAnswerEndsDatabaseFailure(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RetryLimit = time.Minute
	now := time.Unix(0, 0)
	for _, answer := range []outcome{conflicted, handlerFailed} {
		var c tally
		c.failed(&cfg, failure{outcome: disturbed, now: now})
		c.failed(&cfg, failure{outcome: answer, batch: true, at: -1, now: now.Add(time.Second)})
		if v := c.failed(&cfg, failure{outcome: disturbed, now: now.Add(time.Hour)}); v.exhausted || v.inARow != 1 {
			t.Errorf("after outcome %d, a new failure is %+v", answer, v)
		}
	}
	var c tally
	c.failed(&cfg, failure{outcome: disturbed, now: now})
	if c.passed(1); !c.worked() {
		t.Error("a failure is cleared before a step reports its end")
	}
}
