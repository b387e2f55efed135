package frontier

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
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
	prepared bool
	locked   bool // holds the lock on the sequence
	wrote    bool // has a transaction id
	idle     bool
	changed  int // state_change
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
	open       []Span
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

// knobs are drawn for every run.
type knobs struct {
	rules
	crashes  bool
	async    bool // a crash may lose the latest commits
	proxied  bool // connections of frontiers survive a crash unnoticed
	renames  bool // PREPARE TRANSACTION changes the virtualtransaction
	resets   bool
	rows     int // a statement returns at most
	mistake  mistake
	maxSteps int
}

// sim is one run.
type sim struct {
	knobs
	choose func(n int) int // in [0, n)

	disk    *disk
	history []*disk // the latest states of the log, oldest first

	life     int // of the server
	token    string
	planted  int
	running  map[*transaction]bool
	aggLocks map[int]*transaction
	rowLocks []bool // of the consumers' checkpoints
	ids      int    // begins anew after a crash, as virtualtransactions do
	changes  int
	uids     int // of appends, from 1

	frontiers []*simFrontier
	writers   int // still at work
	chaos     bool
	steps     int
	violation string
	seen      map[string]int // coverage
	trace     func(format string, args ...any)
}

const (
	simConsumers  = 2
	simFrontiers  = 2
	simAggregates = 3
	simWriters    = 4
	simAppends    = 6 // transactions of a writer
)

func newSim(k knobs, choose func(n int) int) *sim {
	s := &sim{
		knobs: k, choose: choose, seen: map[string]int{}, trace: func(string, ...any) {},
		running: map[*transaction]bool{}, aggLocks: map[int]*transaction{}, rowLocks: make([]bool, simConsumers),
		chaos: true,
		disk:  &disk{events: map[int64]event{}, versions: make([]int, simAggregates), settled: -1, prepared: map[*transaction]bool{}},
	}
	for c := range simConsumers {
		s.disk.progress = append(s.disk.progress, &progress{owner: c % simFrontiers, audit: map[int64]byte{}})
	}
	s.log()
	return s
}

func (s *sim) now() time.Time {
	return time.UnixMilli(0).Add(time.Duration(s.steps) * time.Millisecond)
}

func (s *sim) violate(format string, args ...any) {
	if s.violation == "" {
		s.violation = fmt.Sprintf(format, args...)
		s.trace("VIOLATION %s", s.violation)
	}
}

// log makes the present state of the disk one that a crash may return to.
func (s *sim) log() {
	if !s.crashes {
		return
	}
	s.history = append(s.history, s.disk.clone())
	if len(s.history) > 4 {
		s.history = s.history[1:]
	}
}

// actor is one thread of control.
type actor struct {
	s        *sim
	switchTo func(struct{}) bool
	next     func() (struct{}, bool)
	stop     func()
	weight   int
	ended    bool
}

type (
	crashed struct{} // panicked with by step
	stopped struct{} // panicked with when the run ends
)

func (a *actor) yield() {
	if !a.switchTo(struct{}{}) {
		panic(stopped{})
	}
}

// pause yields up to n times.
func (a *actor) pause(n int) {
	for range a.s.choose(n + 1) {
		a.yield()
	}
}

// session runs what a crash of the server, or f itself, interrupts. It
// reports whether it was run to its end.
func (a *actor) session(f func(step func())) (completed bool) {
	life := a.s.life
	defer func() {
		switch r := recover().(type) {
		case nil, crashed:
		default:
			panic(r)
		}
	}()
	f(func() {
		a.yield()
		if a.s.life != life {
			panic(crashed{})
		}
	})
	return true
}

func newActor(s *sim, body func(a *actor)) *actor {
	a := &actor{s: s, weight: 1 + s.choose(6)}
	a.next, a.stop = iter.Pull(func(y func(struct{}) bool) {
		defer func() {
			switch r := recover().(type) {
			case nil, stopped:
			default:
				panic(r)
			}
		}()
		a.switchTo = y
		body(a)
	})
	return a
}

// run lets the actors take turns until everything has converged.
func (s *sim) run() {
	var actors []*actor
	add := func(body func(a *actor)) { actors = append(actors, newActor(s, body)) }
	for range simWriters {
		s.writers++
		add(func(a *actor) { s.write(a); s.writers-- })
	}
	for w := range simFrontiers {
		f := &simFrontier{worker: w, value: &Value{}}
		s.frontiers = append(s.frontiers, f)
		add(func(a *actor) { s.runFrontier(a, f) })
		for c := range simConsumers {
			add(func(a *actor) { s.consume(a, f, c) })
		}
	}
	add(s.wreak)
	defer func() {
		for _, a := range actors {
			a.stop()
		}
	}()
	total := 0
	for _, a := range actors {
		total += a.weight
	}
	for s.steps = 1; s.violation == ""; s.steps++ {
		k, i := s.choose(total), 0
		for ; k >= actors[i].weight; i++ {
			k -= actors[i].weight
		}
		if a := actors[i]; !a.ended {
			_, more := a.next()
			a.ended = !more
		}
		s.chaos = s.writers > 0
		if s.steps%100 == 0 && !s.chaos && s.converged() == "" {
			return
		}
		if s.steps > s.maxSteps {
			s.violate("STUCK %s", s.converged())
		}
	}
}

// converged tells what is still to be done, "" if nothing is.
func (s *sim) converged() string {
	if s.chaos || len(s.running) > 0 || len(s.disk.prepared) > 0 {
		return "the writers"
	}
	head := s.head()
	for _, f := range s.frontiers {
		if v := f.value; v.Token != s.token || v.Safe != head || v.Settled != head {
			return fmt.Sprintf("frontier %d has %+v, the head is %d", f.worker, *v, head)
		}
	}
	for c, p := range s.disk.progress {
		switch {
		case len(p.ledger) != len(s.disk.events):
			return fmt.Sprintf("consumer %d has applied %d of %d events: %+v", c, len(p.ledger), len(s.disk.events), p)
		case len(p.open) > 0:
			return fmt.Sprintf("consumer %d has open ranges %v", c, p.open)
		}
		for position := range p.checkpoint {
			position++
			if _, visible := s.disk.events[position]; !visible && p.audit[position] != 'v' {
				return fmt.Sprintf("consumer %d passed position %d without an audit", c, position)
			}
		}
	}
	return ""
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
	t := &transaction{id: fmt.Sprintf("3/%d", s.ids), age: s.now(), aggs: map[int]bool{}}
	s.running[t] = true
	s.change(t, false)
	return t
}

func byID(a, b *transaction) int { return strings.Compare(a.id, b.id) }

// change gives the transaction's session another state.
func (s *sim) change(t *transaction, idle bool) {
	s.changes++
	t.idle, t.changed = idle, s.changes
}

// append draws and inserts some events, each in a statement of its own, with
// its session idle between them.
func (s *sim) append(a *actor, t *transaction, step func()) {
	long := s.choose(5) == 0
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
		step()
		t.wrote = true
		if savepoint && fresh {
			delete(s.aggLocks, agg)
		}
		step()
		s.change(t, true)
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
	if t.locked && s.choose(8) == 0 {
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
	t.prepared, t.idle = true, false
	if s.renames {
		s.rename(t)
	}
	s.disk.prepared[t] = true
	s.seen["prepared"]++
	s.trace("%s is prepared", t.id)
	s.log()
}

func (s *sim) rename(t *transaction) {
	t.id = "-1/" + t.id
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
		a.pause(70)
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
		p.open = intersect(p.open, []Span{{1, to}})
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
	s.history = s.history[:at+1]
	s.life++
	s.ids = s.choose(3)
	s.token = ""
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
