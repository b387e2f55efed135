package frontier

import (
	"math"
	"time"

	"github.com/pgfrontier/worker/store"
)

// Pauses between two scans while they are needed: what just began to be
// missing is usually there, or rolled back, within milliseconds.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

const (
	tailLimit = 1_000  // positions a tail returns at most
	lookLimit = 10_000 // the same, when going past doubts
)

// statement is what the machine wants to be run.
type statement int

const (
	readStart    statement = iota // the token and the settled row
	plantToken                    // the token table is empty, or another database's
	placeSettled                  // there is no settled row, or it cannot be true
	readTail
	readHead // far behind: the highest position instead of the tail
	readRows // after the tail cache's end
	scanLocks
	raiseSettled
)

// action is a statement, its arguments and when to run it.
type action struct {
	do      statement
	at      time.Time // not before; a wakeup makes a tail run at once
	after   int64     // readTail, readRows: positions above it
	limit   int       // readTail, readRows
	settled int64     // raiseSettled
	last    int64     // placeSettled: the sequence's last value
}

// The answers.
type (
	startRead struct {
		token   string // empty: there is none
		settled int64
		found   bool // the settled row
		last    int64
	}
	tailRead struct {
		token string
		last  int64         // the sequence's last value, read after all earlier answers
		runs  []store.Range // visible positions, ascending
		full  bool          // the limit was reached
	}
	headRead struct {
		token string
		last  int64
		head  int64
	}
	rowsRead struct {
		events []store.PersistedEvent // ascending
		full   bool                   // the limit was reached
	}
	scanRead struct {
		token   string
		holders []sighting
	}
)

// machine is the protocol without its I/O: answers in, the next statement and
// the Value out. It reads no clock and knows no SQL. A new machine knows
// nothing, and so does one whose token changed.
type machine struct {
	rules  rules
	jitter func(time.Duration) time.Duration

	token  string // empty: not started
	safe   int64
	head   int64 // the highest visible position seen
	fences []*fence
	doubts doubts
	// holders are those that the latest scan showed.
	holders map[string]*holder
	first   bool  // no fence was opened yet
	fenced  int64 // the highest position that ever had a fence
	closing bool  // the oldest fence waits for a look before it closes over doubts
	cache   tailCache

	todo     action
	behind   bool // the latest tail was full
	scanned  time.Time
	pause    time.Duration // between the latest scan and the next
	scanAt   time.Time
	raised   int64 // as the settled row has it
	raisedAt time.Time

	value  *Value
	turned []*holder // became stale since asked
}

// rules are the machine's settings.
type rules struct {
	policy     Policy
	staleAfter time.Duration
	harborLag  int64
	interval   time.Duration // between two tails while nothing happens
	raiseEvery time.Duration // between two writes of the settled row
	// named: the positions' sequence is known. Otherwise every transaction is
	// a holder, there is no last value, and nothing durable.
	named bool
}

func newMachine(r rules, jitter func(time.Duration) time.Duration) *machine {
	m := &machine{rules: r, jitter: jitter}
	m.forget()
	return m
}

// forget drops everything that was found out.
func (m *machine) forget() {
	*m = machine{rules: m.rules, jitter: m.jitter, value: m.value, holders: map[string]*holder{}, first: true, pause: firstPause}
	m.todo = action{do: readStart}
}

func (m *machine) started() bool { return m.token != "" }

// next returns what to run next, now or later.
func (m *machine) next(now time.Time) action {
	if m.cache.due || m.cache.upTo < m.safe {
		return action{do: readRows, after: m.cache.upTo, limit: cachedEvents}
	}
	if m.rules.named && m.started() && m.settled() > m.raised && now.Sub(m.raisedAt) >= m.rules.raiseEvery {
		return action{do: raiseSettled, settled: m.settled()}
	}
	a := m.todo
	if a.do == readTail {
		a.after = m.safe
	}
	return a
}

// wake makes a tail that waits for its time run at once, or the read of what
// consumers want in its place.
func (m *machine) wake(now time.Time) {
	if !m.rowsNow(now) {
		m.tailNow(now)
	}
}

func (m *machine) tailNow(now time.Time) {
	if m.todo.do == readTail && m.todo.at.After(now) {
		m.todo.at = now
	}
}

// onStart takes the answer to readStart.
func (m *machine) onStart(now time.Time, r startRead) {
	switch {
	case r.token == "":
		m.todo = action{do: plantToken}
		return
	case m.rules.named && (!r.found || r.settled > r.last):
		// Above the last value: the sequence was restarted under the row.
		m.todo = action{do: placeSettled, last: r.last}
		return
	}
	m.token = r.token
	m.safe, m.head, m.raised = r.settled, r.settled, r.settled
	m.raisedAt = now
	m.cache.restart(m.safe)
	m.publish()
	m.tailAt(now)
}

// onDone takes the end of plantToken and placeSettled: another frontier may
// have been first, so read again.
func (m *machine) onDone() { m.todo = action{do: readStart} }

// onRaised takes the end of raiseSettled.
func (m *machine) onRaised(now time.Time, settled int64) { m.raised, m.raisedAt = settled, now }

// recognize forgets everything if the answer stems from another life of the
// server, or from a sequence that was set back.
func (m *machine) recognize(token string, last int64) bool {
	if token == m.token && (!m.rules.named || last >= m.safe) {
		return true
	}
	m.forget()
	return false
}

// onTail takes the answer to readTail. A run that joins safe is safe at once:
// transactions that commit in order need nothing else.
func (m *machine) onTail(now time.Time, r tailRead) {
	if !m.recognize(r.token, r.last) {
		return
	}
	m.narrow(r.last)
	before := m.safe
	m.behind = r.full
	if n := len(r.runs); n > 0 {
		m.head = max(m.head, r.runs[n-1].Last)
	}
	for m.closing && m.pass(r) {
		m.close()
	}
	m.join(r.runs)
	m.cache.gap = m.head > m.safe
	m.close()
	m.publish()
	m.planAfterTail(now, m.safe > before)
}

// onHead takes the answer to readHead.
func (m *machine) onHead(now time.Time, r headRead) {
	if !m.recognize(r.token, r.last) {
		return
	}
	m.narrow(r.last)
	m.head = max(m.head, r.head)
	m.planScan(now)
}

// onScan takes the answer to scanLocks.
func (m *machine) onScan(now time.Time, r scanRead) {
	if !m.recognize(r.token, math.MaxInt64) {
		return
	}
	before := m.safe
	m.meet(r.holders)
	m.open(now)
	m.age(now)
	m.close()
	m.publish()

	m.scanned, m.scanAt = now, now.Add(m.jitter(m.pause))
	m.pause = min(2*m.pause, lastPause)
	if m.safe > before || len(m.fences)+len(m.doubts.all) == 0 {
		m.hurry()
	}
	switch {
	case m.closing, m.safe > before && (m.behind || m.head > m.safe):
		m.tailAt(now)
	default:
		m.planLater(now)
	}
}

// planAfterTail decides what follows a tail.
func (m *machine) planAfterTail(now time.Time, progress bool) {
	if progress || len(m.fences) == 0 && m.head > max(m.safe, m.fenced) {
		m.hurry()
	}
	switch {
	case m.behind && progress && len(m.fences) > 0:
		m.tailAt(now) // the rest of a look, or rows to be read meanwhile
	case m.behind: // without room for another fence, too: the head tells how far behind all are
		m.todo = action{do: readHead}
	default:
		m.planScan(now)
	}
}

// planScan scans at once if that is needed and due. Otherwise a tail comes
// first, which may show that no scan is needed any more.
func (m *machine) planScan(now time.Time) {
	if m.wantsScan() && !now.Before(m.scanAt) {
		m.todo = action{do: scanLocks}
		return
	}
	m.planLater(now)
}

func (m *machine) planLater(now time.Time) {
	at := now.Add(m.rules.interval)
	if m.wantsScan() && m.scanAt.Before(at) {
		at = m.scanAt
	}
	m.tailAt(at)
}

func (m *machine) tailAt(at time.Time) {
	m.todo = action{do: readTail, at: at, limit: tailLimit}
	if m.closing {
		m.todo.limit = lookLimit
	}
}

// wantsScan: something is missing, or the end of a transaction is awaited.
func (m *machine) wantsScan() bool {
	return m.head > m.safe || len(m.fences) > 0 || len(m.doubts.all) > 0
}

// hurry lets the next scan come soon, and the pauses after it grow anew.
func (m *machine) hurry() {
	m.pause = firstPause
	if soon := m.scanned.Add(firstPause); soon.Before(m.scanAt) {
		m.scanAt = soon
	}
}

// join advances safe over the run that joins it.
func (m *machine) join(runs []store.Range) {
	for _, run := range runs {
		if run.First > m.safe+1 {
			return
		}
		m.advance(run.Last)
	}
}

// advance raises safe, with doubts no nearer to the head than HarborLag.
func (m *machine) advance(to int64) {
	if len(m.doubts.all) > 0 {
		to = min(to, m.head-m.rules.harborLag)
	}
	m.safe = max(m.safe, to)
}

func (m *machine) settled() int64 {
	if len(m.doubts.all) > 0 {
		return min(m.safe, m.doubts.all[0].First-1)
	}
	return m.safe
}

// publish makes a new Value if there is something new, once the tail cache has it.
func (m *machine) publish() {
	if !m.fillCache() {
		return
	}
	v := Value{Token: m.token, Settled: m.settled(), Safe: m.safe, Doubts: m.doubts.published()}
	if old := m.value; old == nil || old.Token != v.Token || old.Settled != v.Settled || old.Safe != v.Safe || !sameSlice(old.Doubts, v.Doubts) {
		v.recent = m.cache.recent()
		m.value = &v
	}
}

// sameSlice tells that the doubts were not even reviewed: published slices are
// never modified. A review is news also if the same positions stay in doubt: one
// of their owners has ended, and what it wrote is visible now.
func sameSlice(a, b []store.Range) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
