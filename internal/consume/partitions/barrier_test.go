package partitions

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/partition"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// barrierPart is a part that passes a log as its loop does.
type barrierPart struct {
	name  string
	slots partition.Range
	at    int64
	do    instruction
	tells <-chan struct{}
}

// Parts at any pace and in any order are merged when all of them are at one position, by
// one of them. Only a failed merge, a part that leaves and a paused part delay the merge.
func TestPartsMergeAtBarrier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Barriers
		now := time.Unix(0, 0)
		of := partition.Target(2, 0)
		head := int64(100)
		var parts []*barrierPart
		for _, slots := range of.Children(2 * rapid.IntRange(2, 5).Draw(t, "parts")) {
			parts = append(parts, &barrierPart{name: partition.Name("c", slots), slots: slots, at: rapid.Int64Range(0, head).Draw(t, "at")})
		}
		attending := map[*barrierPart]bool{}
		var notBefore time.Time // the earliest begin of the next barrier
		attend := func(p *barrierPart, unready bool) {
			attending[p] = true
			before := p.do
			news := m.Changed()
			p.do = m.arrive("c", of, p.name, now, participant{slots: p.slots, at: p.at, unready: unready})
			p.tells = news
			switch {
			case p.do.bounded && p.at > p.do.upTo, p.do.wait && (p.at != p.do.upTo || unready), p.do.merge && p.do.wait:
				t.Fatalf("at %d: %+v after %+v", p.at, p.do, before)
			case p.do.bounded && (len(attending) < len(parts) || now.Before(notBefore)):
				t.Fatalf("at %v, with %d of %d parts, a barrier is open: %+v", now, len(attending), len(parts), p.do)
			case p.do.merge:
				for _, other := range parts {
					if other.at != p.at || other != p && !other.do.wait {
						t.Fatalf("%s merges at %d, and %s is at %d: %+v", p.name, p.at, other.name, other.at, other.do)
					}
				}
			}
		}
		// notified asserts that no part waits without a notification that the barrier has
		// closed.
		notified := func() {
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
		// step makes a part handle a batch, or wait as its loop does.
		step := func(p *barrierPart, unready bool) {
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
				p.do = instruction{}
				if delete(attending, p); len(attending) == 0 {
					notBefore = time.Time{} // all parts have left, and the state is gone
				}
				notified()
			case 1:
				p.at = rapid.Int64Range(0, p.at).Draw(t, "reset to")
				p.do = instruction{}
				attend(p, false)
			case 2:
				step(p, true)
			default:
				step(p, false)
			}
			if p.do.merge { // the merge was refused
				for _, other := range parts {
					if attend(other, false); other.do.merge && other != p {
						t.Fatalf("%s and %s merge", p.name, other.name)
					}
				}
				notBefore = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "pause")) * time.Millisecond)
				m.abort("c", notBefore)
				notified()
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

// A part that is far behind delays no other part.
func TestBarrierStaysClosedWithPartFarBehind(t *testing.T) {
	var m Barriers
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
			if do := m.arrive("c", of, partition.Name("c", p.slots), now, participant{slots: p.slots, at: *p.at}); do.bounded {
				t.Fatalf("at %d and %d: %+v", far, near, do)
			}
		}
	}
	far = near - 4_000 // four seconds at its pace
	m = Barriers{}
	for range 3 {
		now = now.Add(100 * time.Millisecond)
		far += 100
		m.arrive("c", of, "low", now, participant{slots: low, at: far})
		m.arrive("c", of, "high", now, participant{slots: high, at: near})
	}
	if do := m.arrive("c", of, "high", now, participant{slots: high, at: near}); !do.wait || do.upTo != near {
		t.Errorf("%+v", do)
	}
	if do := m.arrive("c", of, "high", now.Add(barrierLimit), participant{slots: high, at: near}); do.bounded {
		t.Errorf("it waits for ever: %+v", do)
	}
}

// No part waits for a part that is paused or failing.
func TestBarrierStaysClosedWithUnreadyPart(t *testing.T) {
	var m Barriers
	now := time.Unix(0, 0)
	low, high := partition.Cut(2)[0], partition.Cut(2)[1]
	for range 20 {
		now = now.Add(time.Second)
		m.arrive("c", partition.All, "low", now, participant{slots: low, at: 10, unready: true})
		if do := m.arrive("c", partition.All, "high", now, participant{slots: high, at: 10}); do.bounded || do.wait {
			t.Fatalf("%+v", do)
		}
	}
}

// No part waits again and again for a part that was fast and no longer arrives: its batch
// fails or takes long.
func TestBarrierStaysClosedWithSilentPart(t *testing.T) {
	var m Barriers
	now := time.Unix(0, 0)
	low, high := partition.Cut(2)[0], partition.Cut(2)[1]
	for i := range 100 {
		now = now.Add(time.Second)
		m.arrive("c", partition.All, "low", now, participant{slots: low, at: int64(1000 * i)})
	}
	held := time.Duration(0)
	for i := range 300 {
		now = now.Add(time.Second)
		if do := m.arrive("c", partition.All, "high", now, participant{slots: high, at: int64(100_000 + 10*i)}); do.bounded {
			held += time.Second
		}
	}
	if held > barrierLimit+time.Second {
		t.Errorf("the other part was held for %v of 5m, want %v at most", held, barrierLimit)
	}
}
