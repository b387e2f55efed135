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

// The simulated server: a sequence, transactions, crashes and the durable state. Transactions
// draw from the sequence, become visible, and then release their locks. The code between two
// calls of yield is one atomic step. The chooser interleaves the steps.

type event struct {
	position     int64
	agg, version int
	uid          int // identifies the append, since a position may be issued again after a crash
}

// transaction is a transaction of a writer.
type transaction struct {
	id       string // virtualtransaction
	xid      int
	prepared bool
	locked   bool // the transaction holds the lock on the sequence
	wrote    bool // the transaction has a transaction id
	idle     bool
	aborted  bool // idle, until a rollback to a savepoint
	changed  int  // state_change
	age      time.Time
	events   []event // visible after the commit
	aggs     map[int]bool
}

// disk is the durable state.
type disk struct {
	events   map[int64]event
	versions []int // of the aggregates
	sequence int64
	settled  int64 // -1: no row
	prepared map[*transaction]bool
	progress []*progress
}

// progress is the progress of one consumer, and the effects of its handlers.
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

// write runs a writer: transactions that append one or several events, slowly.
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

// append draws and inserts some events, each in a statement of its own. The session is idle
// between the statements.
func (s *sim) append(a *actor, t *transaction, step func()) {
	long := s.choose(s.idling) == 0
	for range 1 + s.choose(3) {
		s.change(t, false)
		step()
		agg := s.choose(simAggregates)
		for range 30 { // wait for the row lock of the aggregate
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
			s.disk.sequence += int64(s.choose(20)) // drawn by others that rolled back
		}
		s.uids++
		e := event{position: s.disk.sequence, agg: agg, version: s.version(t, agg) + 1, uid: s.uids}
		s.trace("%s draws %d (savepoint: %v)", t.id, e.position, savepoint)
		if !savepoint {
			t.events = append(t.events, e)
			t.aggs[agg] = true
		}
		for range 1 + s.choose(5) { // triggers run before the insert
			step()
		}
		t.wrote = true
		if savepoint && fresh {
			delete(s.aggLocks, agg)
		}
		step()
		s.change(t, true)
		t.aborted = s.choose(4) == 0 // aborted by a statement after a savepoint
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

// finish ends a transaction, sometimes after it was prepared.
func (s *sim) finish(a *actor, t *transaction, step func()) {
	s.change(t, false)
	step()
	if t.locked && s.choose(s.prepares) == 0 {
		s.prepare(t)
		a.pause(100) // a crash may occur meanwhile
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

// rename gives a prepared transaction another name. Some servers do so when they prepare it,
// and all servers when they recover it. The name contains the xid, because virtualtransaction
// numbers can repeat after a crash.
func (s *sim) rename(t *transaction) {
	t.id = fmt.Sprintf("-1/%d", t.xid)
	if s.mutant == renamedUnknown {
		t.id = "9" + t.id
	}
}

// resolve commits or rolls back a prepared transaction.
func (s *sim) resolve(a *actor, t *transaction) {
	if s.choose(10) < 7 {
		s.show(t)
		incarnation := s.incarnation
		delete(s.disk.prepared, t)
		s.running[t] = true // visible, and still locked
		s.log()
		a.yield()
		if s.incarnation != incarnation {
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

// head returns the highest visible position.
func (s *sim) head() (head int64) {
	for position := range s.disk.events {
		head = max(head, position)
	}
	return head
}

// pending returns the events that may still become visible, with their transactions.
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

// interrupted cleans up after a transaction that the end of the run interrupted. A crash has
// already cleaned up.
func (s *sim) interrupted(t *transaction) {
	if s.running[t] {
		s.release(t)
	}
}

// living returns all transactions that may still commit, in the order of their ids.
func (s *sim) living() []*transaction {
	all := slices.Collect(maps.Keys(s.running))
	return slices.SortedFunc(slices.Values(slices.AppendSeq(all, maps.Keys(s.disk.prepared))), byID)
}

// injectFaults changes owners, resets consumers, crashes the server, and ends transactions that a
// crash left prepared.
func (s *sim) injectFaults(a *actor) {
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
	if s.mutant != resetKeepsOpen {
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
	s.steps += s.choose(300) // duration of the recovery
	s.history = s.history[:at+1]
	s.incarnation++
	s.ids = max(0, s.ids-s.choose(10)) // some numbers repeat
	if s.mutant != tokenOutlivesCrash {
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
