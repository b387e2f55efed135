package frontier

import (
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/store"
)

// script feeds answers to a machine and checks its statements.
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

// expect checks the next statement and its delay, and moves the clock to its time.
func (s *script) expect(do statement, in time.Duration) {
	s.Helper()
	a := s.m.next(s.now)
	wait := max(a.at.Sub(s.now), 0)
	if a.do != do || wait != in {
		s.Fatalf("next is statement %d in %v, want %d in %v", a.do, wait, do, in)
	}
	limit := tailLimit
	if s.m.closing {
		limit = doubtTailLimit
	}
	if do == readTail && (a.after != s.m.safe || a.limit != limit) {
		s.Fatalf("next is a tail of %d positions after %d, want %d after %d", a.limit, a.after, limit, s.m.safe)
	}
	s.now = s.now.Add(wait)
}

// tail expects a tail and answers it. The sequence's last value is last.
func (s *script) tail(in time.Duration, last int64, runs ...store.Range) {
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

func (s *script) published(settled, safe int64, doubts ...store.Range) {
	s.Helper()
	v := s.m.value
	if v.Token != "t" || v.Settled != settled || v.Safe != safe || !slices.Equal(v.Doubts, doubts) {
		s.Fatalf("published %+v, want settled %d, safe %d, doubts %v", *v, settled, safe, doubts)
	}
}

func active(id string) sighting { return sighting{ID: id, PID: 1} }
func idle(id, since string) sighting {
	return sighting{ID: id, PID: 1, Rest: since}
}

func old(h sighting) sighting { h.Age = 3600; return h }

const ms = time.Millisecond

func TestMachineInOrderNeedsTailsOnly(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 1, Last: 2})
	s.published(2, 2)
	for range 3 {
		s.tail(time.Second, 2) // idle: one statement per Interval
	}
	s.m.wake(s.now)
	s.tail(0, 3, store.Range{First: 3, Last: 3})
	s.published(3, 3)
	s.expect(readTail, time.Second)
}

func TestMachineSettlesRollback(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, store.Range{First: 1, Last: 2}, store.Range{First: 4, Last: 5})
	s.published(2, 2)
	s.scan()
	s.published(5, 5)
	s.expect(readTail, time.Second)
}

func TestMachineBacksOffScans(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(active("a"))
	for _, pause := range []time.Duration{5, 10, 20, 40, 80, 160, 200, 200} {
		s.tail(pause*ms, 2, store.Range{First: 2, Last: 2})
		s.scan(active("a"))
	}
	s.published(0, 0)
	s.m.wake(s.now) // a tail, but no scan before its time
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.tail(200*ms, 2, store.Range{First: 2, Last: 2})
	s.scan()
	s.published(2, 2)
}

// Tails do not wait for the next scan.
func TestMachineReadsBetweenScans(t *testing.T) {
	s := newScript(t, func(r *rules) { r.interval = 30 * ms })
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(active("a"))
	for _, pause := range []time.Duration{5, 10, 20} {
		s.tail(pause*ms, 2, store.Range{First: 2, Last: 2})
		s.scan(active("a"))
	}
	s.tail(30*ms, 2, store.Range{First: 2, Last: 2})
	s.tail(10*ms, 2, store.Range{First: 2, Last: 2})
	s.scan()
	s.published(2, 2)
}

// When the missing position appears, no scan is needed any more.
func TestMachineForgetsFilledGap(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(active("a"))
	s.tail(5*ms, 2, store.Range{First: 1, Last: 2})
	s.published(2, 2)
	s.expect(readTail, time.Second)
}

// The scan for a new gap comes soon, but not twice within the first pause.
func TestMachineBoundsTheRateOfScans(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan()
	s.m.wake(s.now)
	s.tail(0, 4, store.Range{First: 4, Last: 4})
	s.tail(5*ms, 4, store.Range{First: 4, Last: 4})
	s.scan()
	s.published(4, 4)
}

func TestMachineTwoFencesSuffice(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(active("a"))
	s.tail(5*ms, 4, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4})
	s.scan(active("a"), active("b"))
	s.tail(10*ms, 6, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.scan(active("a"), active("b"), active("c"))
	s.published(0, 0)
	s.tail(20*ms, 6, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.scan(active("b"), active("c")) // a, and with it the first fence, has ended
	s.published(2, 2)
	s.tail(0, 6, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.tail(5*ms, 6, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.scan(active("c")) // c came after the second fence
	s.published(4, 4)
}

func TestMachineFarBehind(t *testing.T) {
	s := newScript(t)
	s.expect(readTail, 0)
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []store.Range{{First: 1, Last: 1_000}}, full: true})
	s.published(1_000, 1_000)
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_000, head: 90_000})
	s.scan(active("a"))
	s.expect(readTail, 5*ms)
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []store.Range{{First: 1_001, Last: 2_000}}, full: true})
	s.expect(readTail, 0) // rows that are visible can be read now
	s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: []store.Range{{First: 2_002, Last: 3_001}}, full: true})
	s.published(2_000, 2_000)
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_001, head: 90_001})
	s.scan()
	s.published(90_001, 90_001)
	s.tail(0, 90_001)
	s.expect(readTail, time.Second)
}

func TestMachineForgetsUnderAnotherToken(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, store.Range{First: 1, Last: 5})
	s.expect(readTail, time.Second)
	s.m.onTail(s.now, tailRead{token: "other", last: 5, runs: []store.Range{{First: 6, Last: 6}}})
	s.published(5, 5) // true under the old token
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{})
	s.expect(insertToken, 0)
	s.m.onDone()
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "other", found: true, settled: 3, last: 5})
	if v := s.m.value; v.Token != "other" || v.Settled != 3 || v.Safe != 3 || v.Doubts != nil {
		t.Fatalf("published %+v", *v)
	}
}

func TestMachineForgetsWhenTheSequenceFalls(t *testing.T) {
	s := newScript(t)
	s.tail(0, 5, store.Range{First: 1, Last: 5})
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
	s.tail(time.Second, 5, store.Range{First: 1, Last: 5})
	for range 2 {
		if a := s.m.next(s.now); a.do != raiseSettled || a.settled != 5 {
			t.Fatalf("next is %+v, want the settled row raised to 5", a)
		}
	}
	s.m.onRaised(s.now, 5)
	s.tail(time.Second, 5)
	s.tail(time.Second, 6, store.Range{First: 6, Last: 6})
	s.expect(raiseSettled, 0)
}

// The machine does not write a settled row that is unchanged.
func TestMachineBeginsAtTheSettledRow(t *testing.T) {
	s := newScript(t, func(r *rules) { r.raiseEvery = time.Second })
	s.m.forget()
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "t", settled: 7, found: true, last: 9})
	s.published(7, 7)
	s.tail(0, 9)
	s.tail(time.Second, 9)
	s.tail(time.Second, 9, store.Range{First: 8, Last: 9})
	s.expect(raiseSettled, 0)
}

// A jump of the sequence is one range of any length.
func TestMachineSequenceJump(t *testing.T) {
	const far = 1_000_000_000_000
	s := newScript(t)
	s.tail(0, far, store.Range{First: 1, Last: 1}, store.Range{First: far, Last: far})
	s.scan(old(active("a")))
	s.tail(0, far, store.Range{First: far, Last: far})
	s.published(1, far, store.Range{First: 2, Last: far - 1})
	s.tail(5*ms, far)
	s.scan()
	s.published(far, far)
}
