package frontier

import (
	"math"
	"time"

	"github.com/pgfrontier/worker/store"
)

// Pauses between two scans while scans are needed. A position that just went missing usually
// appears or rolls back within milliseconds.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

const (
	tailLimit      = 1_000  // most positions of a tail
	doubtTailLimit = 10_000 // most positions of a tail that passes doubts
)

// statement is a statement that the machine requests.
type statement int

const (
	readStart    statement = iota // the token and the settled row
	insertToken                   // the token table is empty, or its token is of another database
	placeSettled                  // the settled row is missing or above the sequence
	readTail
	readHead // far behind: read the highest position instead of the tail
	readRows // after the end of the tail cache
	scanLocks
	raiseSettled
)

// action is a statement, its arguments and its time.
type action struct {
	do      statement
	at      time.Time // earliest time; a wakeup makes a tail run at once
	after   int64     // readTail, readRows: positions above it
	limit   int       // readTail, readRows
	settled int64     // raiseSettled
	last    int64     // placeSettled: the sequence's last value
}

// The answers to statements.
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

// machine is the protocol without its I/O. It takes answers, and returns the next statement
// and the Value. Its proof decides what the answers prove. A machine reads no clock and knows
// no SQL. A new machine, and a machine whose token changed, knows nothing.
type machine struct {
	proof
	jitter func(time.Duration) time.Duration

	token string // empty: not started
	cache tailCache

	todo     action
	behind   bool // the latest tail was full
	scanned  time.Time
	pause    time.Duration // between the latest scan and the next
	scanAt   time.Time
	raised   int64 // as written in the settled row
	raisedAt time.Time

	value *Value
}

func newMachine(r rules, jitter func(time.Duration) time.Duration) *machine {
	m := &machine{proof: proof{rules: r}, jitter: jitter}
	m.forget()
	return m
}

// forget resets the machine to the state of a new one. The published Value stays.
func (m *machine) forget() {
	*m = machine{proof: proof{rules: m.rules, holders: map[string]*holder{}, first: true}, jitter: m.jitter, value: m.value, pause: firstPause}
	m.todo = action{do: readStart}
}

func (m *machine) started() bool { return m.token != "" }

// next returns the next statement, which may be due later.
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

// wake makes a waiting tail run at once. If consumers want rows, wake requests a read of rows
// instead.
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

// onStart handles the answer to readStart.
func (m *machine) onStart(now time.Time, r startRead) {
	switch {
	case r.token == "":
		m.todo = action{do: insertToken}
		return
	case m.rules.named && (!r.found || r.settled > r.last):
		// A settled row above the last value is older than a restart of the sequence.
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

// onDone handles the end of insertToken and placeSettled. It requests another readStart, since
// another frontier may have written first.
func (m *machine) onDone() { m.todo = action{do: readStart} }

// onRaised handles the end of raiseSettled.
func (m *machine) onRaised(now time.Time, settled int64) { m.raised, m.raisedAt = settled, now }

// recognize reports whether an answer comes from the machine's incarnation and its sequence
// was not set back. If not, recognize forgets everything.
func (m *machine) recognize(token string, last int64) bool {
	if token == m.token && (!m.rules.named || last >= m.safe) {
		return true
	}
	m.forget()
	return false
}

// onTail handles the answer to readTail. A run that joins safe is safe at once, so
// transactions that commit in order need no other statement.
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

// onHead handles the answer to readHead.
func (m *machine) onHead(now time.Time, r headRead) {
	if !m.recognize(r.token, r.last) {
		return
	}
	m.narrow(r.last)
	m.head = max(m.head, r.head)
	m.planScan(now)
}

// onScan handles the answer to scanLocks.
func (m *machine) onScan(now time.Time, r scanRead) {
	if !m.recognize(r.token, math.MaxInt64) {
		return
	}
	before := m.safe
	m.matchHolders(r.holders)
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

// planAfterTail chooses the statement after a tail.
func (m *machine) planAfterTail(now time.Time, progress bool) {
	if progress || len(m.fences) == 0 && m.head > max(m.safe, m.fenced) {
		m.hurry()
	}
	switch {
	case m.behind && progress && len(m.fences) > 0:
		m.tailAt(now) // to read the rest of the missing positions, or rows that became visible
	case m.behind: // also when no other fence fits: the head shows the lag of the consumers
		m.todo = action{do: readHead}
	default:
		m.planScan(now)
	}
}

// planScan requests a scan if a scan is needed and due. Otherwise it requests a tail, which
// may show that no scan is needed.
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
		m.todo.limit = doubtTailLimit
	}
}

// hurry makes the next scan due after firstPause and resets the pause.
func (m *machine) hurry() {
	m.pause = firstPause
	if soon := m.scanned.Add(firstPause); soon.Before(m.scanAt) {
		m.scanAt = soon
	}
}

// publish makes a new Value if the state changed and the tail cache reaches safe.
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

// sameSlice reports whether the doubts were not reviewed, since published slices are never
// modified. After a review, a new Value is needed even if the same positions stay in doubt.
// One of their owners has ended, and its events are visible now.
func sameSlice(a, b []store.Range) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
