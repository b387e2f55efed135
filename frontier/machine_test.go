package frontier

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// script feeds a machine answers and checks what it asks for.
type script struct {
	testing.TB
	m   *machine
	now time.Time
}

func newScript(t *testing.T, change ...func(*rules)) *script {
	t.Helper()
	r := rules{staleAfter: time.Minute, interval: time.Second, raiseEvery: time.Hour, named: true}
	for _, c := range change {
		c(&r)
	}
	s := &script{TB: t, m: newMachine(r, func(d time.Duration) time.Duration { return d }), now: time.UnixMilli(0)}
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "t", found: true})
	return s
}

// expect checks what comes next and when, and lets that time come.
func (s *script) expect(do statement, in time.Duration) {
	s.Helper()
	a := s.m.next(s.now)
	wait := max(a.at.Sub(s.now), 0)
	if a.do != do || wait != in {
		s.Fatalf("next is statement %d in %v, want %d in %v", a.do, wait, do, in)
	}
	limit := tailLimit
	if s.m.closing {
		limit = lookLimit
	}
	if do == readTail && (a.after != s.m.safe || a.limit != limit) {
		s.Fatalf("next is a tail of %d positions after %d, want %d after %d", a.limit, a.after, limit, s.m.safe)
	}
	s.now = s.now.Add(wait)
}

// tail expects a tail and answers it. The sequence has come to last.
func (s *script) tail(in time.Duration, last int64, runs ...Span) {
	s.Helper()
	s.expect(readTail, in)
	s.m.onTail(s.now, tailRead{token: "t", last: last, runs: runs})
}

// scan expects a scan and answers it.
func (s *script) scan(holders ...sighting) {
	s.Helper()
	s.expect(scanLocks, 0)
	s.m.onScan(s.now, scanRead{token: "t", holders: holders})
}

func (s *script) published(settled, safe int64, doubts ...Span) {
	s.Helper()
	v := s.m.value
	if v.Token != "t" || v.Settled != settled || v.Safe != safe || !slices.Equal(v.Doubts, doubts) {
		s.Fatalf("published %+v, want settled %d, safe %d, doubts %v", *v, settled, safe, doubts)
	}
}

func active(id string) sighting { return sighting{ID: id, PID: 1} }
func idle(id, since string) sighting {
	return sighting{ID: id, PID: 1, IdleSince: since}
}
func old(h sighting) sighting { h.Age = 3600; return h }

const ms = time.Millisecond

func TestMachineInOrderNeedsTailsOnly(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{1, 2})
	s.published(2, 2)
	for range 3 {
		s.tail(time.Second, 2) // idle: one statement per Interval
	}
	s.m.wake(s.now)
	s.tail(0, 3, Span{3, 3})
	s.published(3, 3)
	s.expect(readTail, time.Second)
}

func TestMachineSettlesRollback(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, Span{1, 2}, Span{4, 5})
	s.published(2, 2)
	s.scan()
	s.published(5, 5)
	s.expect(readTail, time.Second)
}

func TestMachineScansLessAndLess(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(active("a"))
	for _, pause := range []time.Duration{5, 10, 20, 40, 80, 160, 200, 200} {
		s.tail(pause*ms, 2, Span{2, 2})
		s.scan(active("a"))
	}
	s.published(0, 0)
	s.m.wake(s.now) // a look, but no scan before its time
	s.tail(0, 2, Span{2, 2})
	s.tail(200*ms, 2, Span{2, 2})
	s.scan()
	s.published(2, 2)
}

// Tails do not wait for the next scan.
func TestMachineReadsBetweenScans(t *testing.T) {
	s := newScript(t, func(r *rules) { r.interval = 30 * ms })
	s.tail(0, 2, Span{2, 2})
	s.scan(active("a"))
	for _, pause := range []time.Duration{5, 10, 20} {
		s.tail(pause*ms, 2, Span{2, 2})
		s.scan(active("a"))
	}
	s.tail(30*ms, 2, Span{2, 2})
	s.tail(10*ms, 2, Span{2, 2})
	s.scan()
	s.published(2, 2)
}

// What is awaited is there: nothing is left to scan for.
func TestMachineForgetsFilledGap(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(active("a"))
	s.tail(5*ms, 2, Span{1, 2})
	s.published(2, 2)
	s.expect(readTail, time.Second)
}

// A new gap is scanned for soon, but not twice within the first pause.
func TestMachineBoundsTheRateOfScans(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan()
	s.m.wake(s.now)
	s.tail(0, 4, Span{4, 4})
	s.tail(5*ms, 4, Span{4, 4})
	s.scan()
	s.published(4, 4)
}

func TestMachineTwoFencesSuffice(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(active("a"))
	s.tail(5*ms, 4, Span{2, 2}, Span{4, 4})
	s.scan(active("a"), active("b"))
	s.tail(10*ms, 6, Span{2, 2}, Span{4, 4}, Span{6, 6})
	s.scan(active("a"), active("b"), active("c"))
	s.published(0, 0)
	s.tail(20*ms, 6, Span{2, 2}, Span{4, 4}, Span{6, 6})
	s.scan(active("b"), active("c")) // a, and with it the first fence, has ended
	s.published(2, 2)
	s.tail(0, 6, Span{4, 4}, Span{6, 6})
	s.tail(5*ms, 6, Span{4, 4}, Span{6, 6})
	s.scan(active("c")) // c came after the second fence
	s.published(4, 4)
}

func TestMachineFarBehind(t *testing.T) {
	s := newScript(t)
	s.expect(readTail, 0)
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []Span{{1, 1_000}}, full: true})
	s.published(1_000, 1_000)
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_000, head: 90_000})
	s.scan(active("a"))
	s.expect(readTail, 5*ms)
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []Span{{1_001, 2_000}}, full: true})
	s.expect(readTail, 0) // meanwhile, what is there can be read
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []Span{{2_002, 3_001}}, full: true})
	s.published(2_000, 2_000)
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_001, head: 90_001})
	s.scan()
	s.published(90_001, 90_001)
	s.tail(0, 90_001)
	s.expect(readTail, time.Second)
}

func TestMachineStaleHolder(t *testing.T) {
	s := newScript(t)
	s.tail(0, 3, Span{1, 1}, Span{3, 3})
	s.scan(active("a"))
	s.now = s.now.Add(time.Minute - ms)
	s.tail(0, 3, Span{3, 3})
	s.scan(active("a"))
	s.published(1, 1)
	if turned := s.m.takeTurned(); len(turned) > 0 {
		t.Fatalf("stale too early: %+v", turned)
	}
	s.now = s.now.Add(time.Second)
	s.tail(0, 3, Span{3, 3})
	s.scan(active("a"))
	s.tail(0, 5, Span{3, 3}, Span{5, 5}) // the look at what is missing, at once
	s.published(1, 3, Span{2, 2})
	if turned := s.m.takeTurned(); len(turned) != 1 || !turned[0].Stale || turned[0].VirtualTransaction != "a" {
		t.Fatalf("want a to be stale: %+v", turned)
	}
	// It delays no other fence, but may own what is missing there.
	s.tail(5*ms, 5, Span{5, 5})
	s.scan(active("a"))
	s.tail(0, 5, Span{5, 5})
	s.published(1, 5, Span{2, 2}, Span{4, 4})
	if turned := s.m.takeTurned(); len(turned) > 0 {
		t.Fatalf("reported twice: %+v", turned)
	}
	if b := s.m.blocked(); len(b) != 1 || b[0].VirtualTransaction != "a" {
		t.Fatalf("want a to be blocking: %+v", b)
	}
	s.tail(5*ms, 5)
	s.scan()
	s.published(5, 5)
	if b := s.m.blocked(); len(b) > 0 {
		t.Fatalf("nothing is blocked any more: %+v", b)
	}
}

func TestMachineOneLookServesTwoFences(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(active("a"))
	s.tail(5*ms, 4, Span{2, 2}, Span{4, 4})
	s.scan(active("a"))
	s.now = s.now.Add(time.Hour)
	s.tail(0, 4, Span{2, 2}, Span{4, 4})
	s.scan(active("a"))
	s.tail(0, 4, Span{2, 2}, Span{4, 4})
	s.published(0, 4, Span{1, 1}, Span{3, 3})
	s.expect(readTail, 5*ms)
}

// Going past doubts far behind takes several looks, one after the other.
func TestMachineLooksInParts(t *testing.T) {
	s := newScript(t)
	full := func(runs ...Span) {
		t.Helper()
		s.expect(readTail, 0)
		s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: runs, full: true})
	}
	full(Span{2, 1_001})
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_000, head: 90_000})
	s.scan(old(active("a")))
	full(Span{2, 4_000}, Span{4_002, 10_002})
	s.published(0, 10_002, Span{1, 1}, Span{4_001, 4_001})
	full(Span{10_003, 20_002})
	s.published(0, 20_002, Span{1, 1}, Span{4_001, 4_001})
	s.tail(0, 90_000, Span{20_004, 90_000})
	s.published(0, 90_000, Span{1, 1}, Span{4_001, 4_001}, Span{20_003, 20_003})
	s.expect(readTail, 5*ms)
}

func TestMachineWaits(t *testing.T) {
	s := newScript(t, func(r *rules) { r.policy = Wait })
	s.tail(0, 2, Span{2, 2})
	s.scan(old(active("a")))
	for range 5 {
		s.now = s.now.Add(time.Hour)
		s.tail(0, 2, Span{2, 2})
		s.scan(old(active("a")))
		s.published(0, 0)
	}
	if turned := s.m.takeTurned(); len(turned) != 1 {
		t.Fatalf("want it reported once: %+v", turned)
	}
	s.tail(160*ms, 2, Span{2, 2})
	s.scan()
	s.published(2, 2)
}

// Only at the first fence does the age of a transaction count: later, a long
// one may just have drawn its position.
func TestMachineOldTransactionIsStaleAtTheFirstFence(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(old(active("a")))
	s.tail(0, 2, Span{2, 2})
	s.published(0, 2, Span{1, 1})
	s.tail(5*ms, 4, Span{4, 4})
	s.scan(old(active("a")), old(active("b")))
	s.tail(5*ms, 4, Span{4, 4})
	s.scan(old(active("a")), old(active("b")))
	s.published(0, 2, Span{1, 1})
}

// stale makes a holder stale over positions 1 to 9, with 10 visible, and
// leaves the machine after the look.
func stale(t *testing.T, h sighting) *script {
	s := newScript(t)
	s.tail(0, 10, Span{10, 10})
	s.scan(old(h))
	s.tail(0, 10, Span{10, 10})
	s.published(0, 10, Span{1, 9})
	return s
}

func TestMachineNarrows(t *testing.T) {
	s := stale(t, idle("a", "x"))
	// a shows the same state after the last value 10 was read.
	s.tail(5*ms, 15, Span{12, 15})
	s.scan(idle("a", "x"))
	s.published(0, 15, Span{1, 9}) // so it owns nothing above 10, and 11 is void
	s.expect(readTail, 5*ms)
}

func TestMachineNarrowsDoubts(t *testing.T) {
	s := stale(t, active("a"))
	s.tail(5*ms, 12, Span{12, 12})
	s.scan(active("a"))
	s.tail(0, 12, Span{12, 12})
	s.published(0, 12, Span{1, 9}, Span{11, 11})
	// As if 7 had been read while it was idle.
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].IdleSince = 7, true, "x"
	s.tail(5*ms, 12)
	s.scan(idle("a", "x"))
	s.published(0, 12, Span{1, 7})
	if b := s.m.blocked(); len(b) != 1 {
		t.Fatalf("want a to be blocking: %+v", b)
	}
}

// A doubt that changes and no other is news, too.
func TestMachinePublishesNarrowedDoubt(t *testing.T) {
	s := stale(t, active("a"))
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].IdleSince = 7, true, "x"
	s.tail(5*ms, 10)
	s.scan(idle("a", "x"))
	s.published(0, 10, Span{1, 7})
}

// Who can own nothing in doubt any more is not shown as blocking.
func TestMachineNarrowedBelowItsDoubtsBlocksNothing(t *testing.T) {
	s := stale(t, active("a"))
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].IdleSince = 0, true, "x"
	s.tail(5*ms, 10)
	s.scan(idle("a", "x"))
	s.published(10, 10)
	if b := s.m.blocked(); len(b) > 0 {
		t.Fatalf("want none: %+v", b)
	}
}

func TestMachineDiscardsLastValue(t *testing.T) {
	for _, between := range []sighting{idle("a", "y"), active("a")} {
		s := stale(t, idle("a", "x"))
		s.tail(5*ms, 12, Span{12, 12})
		s.scan(between) // it ran something: 11 may be its own
		s.tail(0, 12, Span{12, 12})
		s.published(0, 12, Span{1, 9}, Span{11, 11})
	}
}

func TestMachineHarborLag(t *testing.T) {
	s := newScript(t, func(r *rules) { r.harborLag = 3 })
	s.tail(0, 4, Span{2, 4})
	s.scan(old(active("a")))
	s.tail(0, 4, Span{2, 4})
	s.published(0, 1, Span{1, 1})
	for _, pause := range []time.Duration{5, 5, 10, 20} { // nothing new: less and less
		s.tail(pause*ms, 4, Span{2, 4})
		s.scan(old(active("a")))
		s.tail(0, 4, Span{2, 4})
	}
	s.tail(40*ms, 6, Span{2, 6})
	s.published(0, 3, Span{1, 1})
	s.scan()
	s.published(6, 6) // the doubt is over, and with it the lag
}

func TestMachineRenamedHolder(t *testing.T) {
	s := stale(t, active("3/7"))
	s.tail(5*ms, 10)
	s.scan(sighting{ID: "-1/700"})
	s.published(0, 10, Span{1, 9})
	s.tail(5*ms, 10)
	s.scan()
	s.published(10, 10)
}

func TestMachineForgetsUnderAnotherToken(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, Span{1, 5})
	s.expect(readTail, time.Second)
	s.m.onTail(s.now, tailRead{token: "other", last: 5, runs: []Span{{6, 6}}})
	s.published(5, 5) // true under the old token
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{})
	s.expect(plantToken, 0)
	s.m.onDone()
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "other", found: true, settled: 3, last: 5})
	if v := s.m.value; v.Token != "other" || v.Settled != 3 || v.Safe != 3 || v.Doubts != nil {
		t.Fatalf("published %+v", *v)
	}
}

func TestMachineForgetsWhenTheSequenceFalls(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, Span{1, 5})
	s.expect(readTail, time.Second)
	s.m.onTail(s.now, tailRead{token: "t", last: 4})
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "t", found: true, settled: 5, last: 4})
	if a := s.m.next(s.now); a.do != placeSettled || a.last != 4 {
		t.Fatalf("next is %+v, want the settled row to be replaced", a)
	}
}

func TestMachineRaisesTheSettledRow(t *testing.T) {
	s := newScript(t, func(r *rules) { r.raiseEvery = time.Second })
	s.tail(0, 0)
	s.tail(time.Second, 5, Span{1, 5})
	for range 2 {
		if a := s.m.next(s.now); a.do != raiseSettled || a.settled != 5 {
			t.Fatalf("next is %+v, want the settled row raised to 5", a)
		}
	}
	s.m.onRaised(s.now, 5)
	s.tail(time.Second, 5)
	s.tail(time.Second, 6, Span{6, 6})
	s.expect(raiseSettled, 0)
}

// What the row says already is not written again.
func TestMachineBeginsAtTheSettledRow(t *testing.T) {
	s := newScript(t, func(r *rules) { r.raiseEvery = time.Second })
	s.m.forget()
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "t", settled: 7, found: true, last: 9})
	s.published(7, 7)
	s.tail(0, 9)
	s.tail(time.Second, 9)
	s.tail(time.Second, 9, Span{8, 9})
	s.expect(raiseSettled, 0)
}

// A jump of the sequence is one range, whatever its length.
func TestMachineJump(t *testing.T) {
	const far = 1_000_000_000_000
	s := newScript(t)
	s.tail(0, far, Span{1, 1}, Span{far, far})
	s.scan(old(active("a")))
	s.tail(0, far, Span{far, far})
	s.published(1, far, Span{2, far - 1})
	s.tail(5*ms, far)
	s.scan()
	s.published(far, far)
}

// Who keeps a fence open, or may own what is in doubt, is told, the oldest
// first; others are not.
func TestMachineTellsWhoBlocks(t *testing.T) {
	blocked := func(s *script, want ...string) {
		t.Helper()
		var got []string
		for _, h := range s.m.blocked() {
			got = append(got, fmt.Sprint(h.VirtualTransaction, " ", h.Age))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("blocked by %v, want %v", got, want)
		}
	}
	aged := func(id string, age float64) sighting { h := active(id); h.Age = age; return h }
	s := newScript(t)
	s.tail(0, 2, Span{2, 2})
	s.scan(aged("a", 1), aged("b", 90), aged("c", 2.5), aged("d", 1))
	blocked(s, "b 1m30s", "c 2.5s", "a 1s", "d 1s")
	s.tail(5*ms, 2, Span{2, 2})
	s.scan(aged("b", 91), aged("d", 2), aged("e", 7)) // e came after the fence
	blocked(s, "b 1m31s", "d 2s")
	s.tail(10*ms, 2, Span{2, 2})
	s.scan(aged("b", 92), aged("e", 8))
	s.tail(0, 2, Span{2, 2})
	s.published(0, 2, Span{1, 1})
	blocked(s, "b 1m32s")
}

func TestRemedyNamesWhatToDo(t *testing.T) {
	for _, c := range []struct {
		h    Holder
		want string
	}{
		{Holder{PID: 1}, "let its application end it, or SELECT pg_terminate_backend(1)"},
		{Holder{GID: "g"}, "COMMIT PREPARED or ROLLBACK PREPARED 'g'"},
		{Holder{}, "COMMIT PREPARED or ROLLBACK PREPARED, see pg_prepared_xacts"},
	} {
		if got := c.h.Remedy(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.h, got, c.want)
		}
	}
}

// TestAttributeDecidesEachPosition compares attribute with what every holder
// may own.
func TestAttributeDecidesEachPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var owners []*holder
		for range rapid.IntRange(0, 4).Draw(t, "owners") {
			owners = append(owners, &holder{
				ended:    rapid.Bool().Draw(t, "ended"),
				narrowed: rapid.Bool().Draw(t, "narrowed"),
				last:     rapid.Int64Range(0, 10).Draw(t, "last"),
			})
		}
		given := slices.Clone(owners)
		missing := Span{First: rapid.Int64Range(1, 8).Draw(t, "first"), Last: 8}
		pieces := attribute(missing, owners)
		if !slices.Equal(owners, given) {
			t.Fatalf("the owners were modified: %v, now %v", given, owners)
		}
		for position := int64(0); position <= 12; position++ {
			var want, got []*holder
			for _, h := range owners {
				if missing.covers(Span{position, position}) && !h.ended && (!h.narrowed || h.last >= position) {
					want = append(want, h)
				}
			}
			for _, piece := range pieces {
				if piece.covers(Span{position, position}) {
					got = append(got, piece.owners...)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("position %d of %v: owners %v, want %v", position, missing, got, want)
			}
		}
	})
}
