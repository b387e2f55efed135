package runtime

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/observe"
)

// A condition's end is reported once, however often the condition was reported. The report
// has the time since the first report and the latest error.
func TestConditionEndsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all conditions
		open := map[Subject]episode{}
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Second)
			s := Subject{
				Condition: rapid.SampledFrom([]observe.Condition{observe.ConditionDatabase, observe.ConditionBatch, observe.ConditionUnowned}).Draw(t, "condition"),
				Consumer:  rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "consumer"),
				Detail:    rapid.SampledFrom([]string{"", "x"}).Draw(t, "detail"),
			}
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				e, was := open[s]
				if !was {
					e.since = now
				}
				e.err = errors.New(now.String())
				open[s] = e
				all.begin(s, e.err, now)
			case 3, 4:
				want, was := open[s]
				delete(open, s)
				if got, ended := all.end(s); ended != was || got != want {
					t.Fatalf("the end of %+v is %+v, %t, want %+v, %t", s, got, ended, want, was)
				}
			case 5:
				which := func(s Subject) bool { return s.Consumer == "a" && s.Condition != observe.ConditionUnowned }
				all.Forget(which)
				for s := range open {
					if which(s) {
						delete(open, s)
					}
				}
			}
			if n := all.n.Load(); n != int64(len(open)) {
				t.Fatalf("%d conditions are open, want %d", n, len(open))
			}
		}
	})
}
