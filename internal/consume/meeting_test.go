package consume

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
)

// meetingPart is a part that goes over a log as its loop does.
type meetingPart struct {
	name  string
	slots partition.Range
	at    int64
	do    move
	tells <-chan struct{}
}

// Parts that go on, at whatever pace and in whatever order, are merged when all
// of them stand at one position, by one of them. A meeting that fails, a part
// that leaves or is paused for a while hold it up, and nothing else.
func TestPartsMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m meetings
		now := time.Unix(0, 0)
		of := partition.Target(2, 0)
		head := int64(100)
		var parts []*meetingPart
		for _, slots := range of.Children(2 * rapid.IntRange(2, 5).Draw(t, "parts")) {
			parts = append(parts, &meetingPart{name: partition.Name("c", slots), slots: slots, at: rapid.Int64Range(0, head).Draw(t, "at")})
		}
		attending := map[*meetingPart]bool{}
		var notBefore time.Time // the next meeting
		attend := func(p *meetingPart, unready bool) {
			attending[p] = true
			before := p.do
			news := m.changed()
			p.do = m.attend("c", of, p.name, now, stand{slots: p.slots, at: p.at, unready: unready})
			p.tells = news
			switch {
			case p.do.bounded && p.at > p.do.upTo, p.do.wait && (p.at != p.do.upTo || unready), p.do.merge && p.do.wait:
				t.Fatalf("at %d: %+v after %+v", p.at, p.do, before)
			case p.do.bounded && (len(attending) < len(parts) || now.Before(notBefore)):
				t.Fatalf("at %v, with %d of %d parts, it is in a meeting: %+v", now, len(attending), len(parts), p.do)
			case p.do.merge:
				for _, other := range parts {
					if other.at != p.at || other != p && !other.do.wait {
						t.Fatalf("%s merges at %d, and %s is at %d: %+v", p.name, p.at, other.name, other.at, other.do)
					}
				}
			}
		}
		// told demands that no part waits without having heard that the meeting is over.
		told := func() {
			for _, p := range parts {
				select {
				case <-p.tells:
				default:
					if p.do.wait && attending[p] {
						t.Fatalf("%s still waits: %+v", p.name, p.do)
					}
				}
			}
		}
		// step lets a part handle a batch, or wait as its loop does.
		step := func(p *meetingPart, unready bool) {
			if p.do.wait {
				select {
				case <-p.tells:
				default:
					if now.Before(p.do.until) {
						return
					}
				}
			}
			if upTo := head; !unready {
				if p.do.bounded {
					upTo = min(upTo, p.do.upTo)
				}
				p.at = max(p.at, min(upTo, p.at+rapid.Int64Range(1, 20).Draw(t, "batch")))
			}
			attend(p, unready)
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
			p := parts[rapid.IntRange(0, len(parts)-1).Draw(t, "part")]
			head += rapid.Int64Range(0, 5).Draw(t, "appended")
			switch rapid.IntRange(0, 19).Draw(t, "what") {
			case 0:
				m.leave("c", p.name)
				p.do = move{}
				if delete(attending, p); len(attending) == 0 {
					notBefore = time.Time{} // nobody remembers
				}
				told()
			case 1:
				p.at = rapid.Int64Range(0, p.at).Draw(t, "reset to")
				p.do = move{}
				attend(p, false)
			case 2:
				step(p, true)
			default:
				step(p, false)
			}
			if p.do.merge { // which was refused
				for _, other := range parts {
					if attend(other, false); other.do.merge && other != p {
						t.Fatalf("%s and %s merge", p.name, other.name)
					}
				}
				notBefore = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "pause")) * time.Millisecond)
				m.adjourn("c", notBefore)
				told()
			}
		}
		for i := range 2000 {
			now = now.Add(50 * time.Millisecond)
			p := parts[i%len(parts)]
			step(p, false)
			if p.do.merge {
				return
			}
		}
		t.Fatalf("they never meet: %+v", m.all["c"])
	})
}

// A part that is far behind holds up nobody.
func TestNobodyWaitsForAPartFarBehind(t *testing.T) {
	var m meetings
	of := partition.All
	now := time.Unix(0, 0)
	low, high := of.Children(2)[0], of.Children(2)[1]
	far, near := int64(0), int64(1_000_000)
	for range 50 {
		now = now.Add(100 * time.Millisecond)
		for _, p := range []struct {
			slots partition.Range
			at    *int64
			gone  int64
		}{{low, &far, 100}, {high, &near, 100}} {
			*p.at += p.gone
			if do := m.attend("c", of, partition.Name("c", p.slots), now, stand{slots: p.slots, at: *p.at}); do.bounded {
				t.Fatalf("at %d and %d: %+v", far, near, do)
			}
		}
	}
	far = near - 4_000 // at its pace, four seconds
	m = meetings{}
	for range 3 {
		now = now.Add(100 * time.Millisecond)
		far += 100
		m.attend("c", of, "low", now, stand{slots: low, at: far})
		m.attend("c", of, "high", now, stand{slots: high, at: near})
	}
	if do := m.attend("c", of, "high", now, stand{slots: high, at: near}); !do.wait || do.upTo != near {
		t.Errorf("%+v", do)
	}
	if do := m.attend("c", of, "high", now.Add(meetingLimit), stand{slots: high, at: near}); do.bounded {
		t.Errorf("it waits for ever: %+v", do)
	}
}

// Nor does anybody wait for one that is paused, or fails.
func TestNobodyWaitsForAPartInTrouble(t *testing.T) {
	var m meetings
	now := time.Unix(0, 0)
	low, high := partition.Cut(2)[0], partition.Cut(2)[1]
	for range 20 {
		now = now.Add(time.Second)
		m.attend("c", partition.All, "low", now, stand{slots: low, at: 10, unready: true})
		if do := m.attend("c", partition.All, "high", now, stand{slots: high, at: 10}); do.bounded || do.wait {
			t.Fatalf("%+v", do)
		}
	}
}

// Nobody waits again and again for a part that was quick, and attends no longer: its batch
// fails or lasts.
func TestNobodyWaitsForAPartThatIsSilent(t *testing.T) {
	var m meetings
	now := time.Unix(0, 0)
	low, high := partition.Cut(2)[0], partition.Cut(2)[1]
	for i := range 100 {
		now = now.Add(time.Second)
		m.attend("c", partition.All, "low", now, stand{slots: low, at: int64(1000 * i)})
	}
	held := time.Duration(0)
	for i := range 300 {
		now = now.Add(time.Second)
		if do := m.attend("c", partition.All, "high", now, stand{slots: high, at: int64(100_000 + 10*i)}); do.bounded {
			held += time.Second
		}
	}
	if held > meetingLimit+time.Second {
		t.Errorf("the other part was held for %v of 5m, want %v at most", held, meetingLimit)
	}
}
