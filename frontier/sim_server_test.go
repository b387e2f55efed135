package frontier

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/store"
)

// The simulated server: a sequence, transactions that draw from it, become
// visible and then release their locks, crashes, and what is durable. Whatever
// happens between two calls of yield is one atomic step; everything else
// interleaves as the chooser likes.

type event struct {
	position     int64
	agg, version int
	uid          int // of the append; a position may be issued again after a crash
}

// transaction of a writer.
type transaction struct {
	id       string // virtualtransaction
	xid      int
	prepared bool
	locked   bool // holds the lock on the sequence
	wrote    bool // has a transaction id
	idle     bool
	aborted  bool // idle, and goes on from a savepoint only
	changed  int  // state_change
	age      time.Time
	events   []event // become visible if it commits
	aggs     map[int]bool
}

// disk is what survives a crash.
type disk struct {
	events   map[int64]event
	versions []int // of the aggregates
	sequence int64
	settled  int64 // -1: no row
	prepared map[*transaction]bool
	progress []*progress
}

// progress of one consumer, and what its handlers wrote.
type progress struct {
	owner      int
	checkpoint int64
	revision   int
	open       []store.Range
	audit      map[int64]byte // v void, o open, l late
	ledger     []event
}

func (d *disk) clone() *disk {
	n := &disk{
		events:   maps.Clone(d.events),
		versions: slices.Clone(d.versions),
		sequence: d.sequence,
		settled:  d.settled,
		prepared: maps.Clone(d.prepared),
	}
	for _, p := range d.progress {
		c := *p
		c.open, c.audit, c.ledger = slices.Clone(p.open), maps.Clone(p.audit), slices.Clone(p.ledger)
		n.progress = append(n.progress, &c)
	}
	return n
}

// write is a writer: transactions that append one event or several, slowly.
func (s *sim) write(a *actor) {
	for range simAppends {
		a.session(func(step func()) {
			t := s.begin()
			defer s.interrupted(t)
			s.append(a, t, step)
			s.finish(a, t, step)
		})
	}
}

func (s *sim) begin() *transaction {
	s.ids++
	s.xids++
	t := &transaction{id: fmt.Sprintf("3/%d", s.ids), xid: s.xids, age: s.now(), aggs: map[int]bool{}}
	s.running[t] = true
	s.change(t, false)
	return t
}

func byID(a, b *transaction) int { return strings.Compare(a.id, b.id) }

// change gives the transaction's session another state.
func (s *sim) change(t *transaction, idle bool) {
	s.changes++
	t.idle, t.aborted, t.changed = idle, false, s.changes
}

// append draws and inserts some events, each in a statement of its own, with
// its session idle between them.
func (s *sim) append(a *actor, t *transaction, step func()) {
	long := s.choose(s.idling) == 0
	for range 1 + s.choose(3) {
		s.change(t, false)
		step()
		agg := s.choose(simAggregates)
		for range 30 { // the row lock of the aggregate
			if owner := s.aggLocks[agg]; owner == nil || owner == t {
				break
			}
			step()
		}
		if owner := s.aggLocks[agg]; owner != nil && owner != t {
			s.change(t, true)
			continue // a lock timeout
		}
		savepoint := s.choose(6) == 0
		fresh := s.aggLocks[agg] == nil
		s.aggLocks[agg] = t
		step()
		t.locked = true
		step()
		s.disk.sequence++
		if s.choose(30) == 0 {
			s.disk.sequence += int64(s.choose(20)) // others drew, and rolled back
		}
		s.uids++
		e := event{position: s.disk.sequence, agg: agg, version: s.version(t, agg) + 1, uid: s.uids}
		s.trace("%s draws %d (savepoint: %v)", t.id, e.position, savepoint)
		if !savepoint {
			t.events = append(t.events, e)
			t.aggs[agg] = true
		}
		for range 1 + s.choose(5) { // triggers run before it is written
			step()
		}
		t.wrote = true
		if savepoint && fresh {
			delete(s.aggLocks, agg)
		}
		step()
		s.change(t, true)
		t.aborted = s.choose(4) == 0 // by a statement after a savepoint
		step()
		for range s.choose(120) {
			if !long {
				break
			}
			step()
		}
	}
}

func (s *sim) version(t *transaction, agg int) int {
	version := s.disk.versions[agg]
	for _, e := range t.events {
		if e.agg == agg {
			version = e.version
		}
	}
	return version
}

// finish ends a transaction, perhaps by way of a prepared one.
func (s *sim) finish(a *actor, t *transaction, step func()) {
	s.change(t, false)
	step()
	if t.locked && s.choose(s.prepares) == 0 {
		s.prepare(t)
		a.pause(100) // also across a crash
		if s.disk.prepared[t] {
			s.resolve(a, t)
		}
		return
	}
	if s.choose(10) < 7 {
		s.show(t)
		s.log()
		step()
	}
	s.release(t)
}

func (s *sim) prepare(t *transaction) {
	delete(s.running, t)
	t.prepared, t.idle, t.aborted = true, false, false
	if s.renames {
		s.rename(t)
	}
	s.disk.prepared[t] = true
	s.seen["prepared"]++
	s.trace("%s is prepared", t.id)
	s.log()
}

// rename gives a prepared transaction the name that some servers give it at once,
// and all give it when they recover it: of its xid, for it must be nobody else's
// when the numbers of virtualtransactions come again.
func (s *sim) rename(t *transaction) {
	t.id = fmt.Sprintf("-1/%d", t.xid)
	if s.mistake == renamedUnknown {
		t.id = "9" + t.id
	}
}

// resolve commits or rolls back a prepared transaction.
func (s *sim) resolve(a *actor, t *transaction) {
	if s.choose(10) < 7 {
		s.show(t)
		life := s.life
		delete(s.disk.prepared, t)
		s.running[t] = true // visible, still locked
		s.log()
		a.yield()
		if s.life != life {
			return
		}
	} else {
		delete(s.disk.prepared, t)
		s.log()
	}
	s.release(t)
}

// show makes a transaction's events visible.
func (s *sim) show(t *transaction) {
	for _, e := range t.events {
		s.disk.events[e.position] = e
		s.disk.versions[e.agg] = e.version
		for c, p := range s.disk.progress {
			if e.position <= p.checkpoint && p.audit[e.position] != 'o' {
				s.violate("LOST consumer %d stands at %d, and position %d appeared", c, p.checkpoint, e.position)
			}
		}
	}
	s.trace("%s is visible: %v", t.id, t.events)
}

// head is the highest visible position.
func (s *sim) head() (head int64) {
	for position := range s.disk.events {
		head = max(head, position)
	}
	return head
}

// pending are the events that a transaction may still make visible.
func (s *sim) pending() iter.Seq2[*transaction, event] {
	return func(yield func(*transaction, event) bool) {
		for _, t := range s.living() {
			for _, e := range t.events {
				if s.disk.events[e.position].uid != e.uid && !yield(t, e) {
					return
				}
			}
		}
	}
}

func (s *sim) release(t *transaction) {
	delete(s.running, t)
	for agg, owner := range s.aggLocks {
		if owner == t {
			delete(s.aggLocks, agg)
		}
	}
	s.trace("%s has ended", t.id)
}

// interrupted cleans up after a transaction that the run's end interrupted; a
// crash has done so already.
func (s *sim) interrupted(t *transaction) {
	if s.running[t] {
		s.release(t)
	}
}

// living are all transactions that may still commit, in the order of their ids.
func (s *sim) living() []*transaction {
	all := slices.Collect(maps.Keys(s.running))
	return slices.SortedFunc(slices.Values(slices.AppendSeq(all, maps.Keys(s.disk.prepared))), byID)
}

// wreak changes owners, resets consumers and crashes the server, and ends what
// a crash left prepared.
func (s *sim) wreak(a *actor) {
	for {
		a.pause(s.peace)
		a.yield()
		if !s.chaos {
			if left := slices.SortedFunc(maps.Keys(s.disk.prepared), byID); len(left) > 0 {
				s.resolve(a, left[0])
			}
			continue
		}
		c := s.choose(simConsumers)
		switch p := s.disk.progress[c]; s.choose(10) {
		case 0, 1, 2, 3, 4, 5:
			p.owner = s.choose(simFrontiers)
			s.log()
		case 6:
			if s.resets && !s.rowLocks[c] {
				s.reset(c, int64(s.choose(int(p.checkpoint)+1)))
			}
		case 7:
			if s.crashes {
				s.crash()
			}
		}
	}
}

func (s *sim) reset(c int, to int64) {
	p := s.disk.progress[c]
	p.checkpoint = to
	p.revision++
	p.ledger = slices.DeleteFunc(p.ledger, func(e event) bool { return e.position > to })
	if s.mistake != resetKeepsOpen {
		p.open = intersect(p.open, []store.Range{{First: 1, Last: to}})
	}
	maps.DeleteFunc(p.audit, func(position int64, _ byte) bool { return position > to })
	s.seen["reset"]++
	s.trace("consumer %d is reset to %d", c, to)
	s.log()
}

func (s *sim) crash() {
	at := len(s.history) - 1
	if s.async {
		at = s.choose(len(s.history))
	}
	s.disk = s.history[at].clone()
	s.steps += s.choose(300) // recovery takes its time
	s.history = s.history[:at+1]
	s.life++
	s.ids = max(0, s.ids-s.choose(10)) // some names come again
	if s.mistake != tokenOutlivesCrash {
		s.token = ""
	}
	s.running = map[*transaction]bool{}
	s.aggLocks = map[int]*transaction{}
	clear(s.rowLocks)
	for t := range s.disk.prepared {
		if !unnumbered(t.id) {
			s.rename(t)
		}
		for agg := range t.aggs {
			s.aggLocks[agg] = t
		}
	}
	s.checkSettled()
	s.seen["crash"]++
	s.trace("crash, back to sequence %d", s.disk.sequence)
}
