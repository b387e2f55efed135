package consume

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/delivered"
)

// A shadow that is fast enough to catch up does so with its pauses, too. In a quiet log it takes half of
// the time. A consumer that is no shadow does not pause.
func TestPacing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const batch, takes = 100, 10 * time.Millisecond
		arrivals := rapid.Float64Range(0, 0.95).Draw(t, "of what it can handle")
		perSecond := arrivals * batch / takes.Seconds()
		var p pacing
		began, now, working := time.Time{}, time.Time{}, time.Duration(0)
		at, old := int64(0), int64(100_000)
		head := func() int64 { return old + int64(perSecond*now.Sub(began).Seconds()) }
		effects := delivered.Shadow()
		for range 1_000_000 {
			if head()-at < batch {
				break
			}
			r := result{began: now, work: &work{head: head()}}
			r.work.from.Position, r.work.from.Effects, r.work.advance.To = at, effects, at+batch
			at += batch
			working += takes
			now = now.Add(takes)
			if d := (&pacing{}).pause(result{began: r.began, work: &work{head: 0, from: r.work.from, advance: r.work.advance}}, now); d != takes {
				t.Fatalf("a shadow in a quiet log pauses for %v, want %v", d, takes)
			}
			now = now.Add(p.pause(r, now))
		}
		if head()-at >= batch {
			t.Fatalf("with %.0f%% of what it can handle it does not catch up: %d behind", 100*arrivals, head()-at)
		}
		if share := working.Seconds() / now.Sub(began).Seconds(); arrivals < 0.2 && share > 0.55 {
			t.Fatalf("with %.0f%% it works %.0f%% of the time", 100*arrivals, 100*share)
		}
	})
	if d := new(pacing).pause(result{work: new(work)}, time.Now()); d != 0 {
		t.Errorf("a consumer that is no shadow pauses for %v", d)
	}
}
