package frontier

import (
	"fmt"
	"iter"
	"time"
)

// knobs are the settings drawn for a run.
type knobs struct {
	rules
	crashes  bool
	async    bool // a crash may lose the latest commits
	proxied  bool // connections of frontiers survive a crash unnoticed
	renames  bool // PREPARE TRANSACTION changes the virtualtransaction
	resets   bool
	stalls   int // one in this many turns is followed by a long wait; 0: none
	idling   int // one in this many transactions idles for long
	prepares int // one in this many transactions is prepared
	peace    int // most turns between two changes of owner or other faults
	rows     int // most rows of a statement
	mutant   mutant
	maxSteps int // most steps after the writers ended
}

// sim is one run.
type sim struct {
	knobs
	choose func(n int) int // in [0, n)

	disk    *disk
	history []*disk // the latest states of the log that a crash may return to, oldest first

	incarnation int // incarnations of the server
	token       string
	tokens      int
	running     map[*transaction]bool
	aggLocks    map[int]*transaction
	rowLocks    []bool // of the consumers' checkpoints
	ids         int    // falls after a crash, as virtualtransaction numbers do
	xids        int    // does not fall after a crash
	changes     int
	uids        int // of appends, from 1

	frontiers []*simFrontier
	writers   int // still running
	chaos     bool
	steps     int
	violation string
	seen      map[string]int // situations that runs reached, by name
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

// log records the state of the disk as a state that a crash may return to.
func (s *sim) log() {
	if !s.crashes {
		return
	}
	s.history = append(s.history, s.disk.clone())
	if len(s.history) > 20 {
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
	stalled  int // until this step
	ended    bool
}

type (
	crashed struct{} // step panics with it after a crash
	stopped struct{} // step panics with it when the run ends
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

// session runs f until f ends or a crash of the server interrupts f. It reports whether f
// ended.
func (a *actor) session(f func(step func())) (completed bool) {
	incarnation := a.s.incarnation
	defer func() {
		switch r := recover().(type) {
		case nil, crashed:
		default:
			panic(r)
		}
	}()
	f(func() {
		a.yield()
		if a.s.incarnation != incarnation {
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

// run lets the actors take turns until the simulation has converged.
func (s *sim) run() {
	var actors []*actor
	defer func() {
		for _, a := range actors {
			a.stop()
		}
	}()
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
	add(s.injectFaults)
	var a *actor
	calm := 0 // the step since which no fault occurs
	for s.steps = 1; s.violation == ""; s.steps++ {
		if a = s.nextActor(a, actors); a != nil {
			_, more := a.next()
			a.ended = !more
			if s.chaos && s.stalls > 0 && s.choose(s.stalls) == 0 {
				a.stalled = s.steps + s.choose(300)
			}
		}
		if s.chaos = s.writers > 0; s.chaos {
			calm = s.steps
		}
		if s.steps%100 == 0 && !s.chaos && s.converged() == "" {
			return
		}
		if s.steps-calm > s.maxSteps {
			s.violate("STUCK %s", s.converged())
		}
	}
}

// nextActor chooses the next actor, nil if all are stalled. Often nextActor chooses the last
// actor again, so that much happens while the others stand still.
func (s *sim) nextActor(last *actor, actors []*actor) *actor {
	ready := func(a *actor) bool { return !a.ended && s.steps >= a.stalled }
	if last != nil && ready(last) && s.choose(2) == 0 {
		return last
	}
	total := 0
	for _, a := range actors {
		if ready(a) {
			total += a.weight
		}
	}
	if total == 0 {
		return nil
	}
	k, i := s.choose(total), 0
	for ; !ready(actors[i]) || k >= actors[i].weight; i++ {
		if ready(actors[i]) {
			k -= actors[i].weight
		}
	}
	return actors[i]
}

// converged returns the work that is left, "" if none is.
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
	if s.named && s.disk.settled != head {
		return fmt.Sprintf("the settled row is at %d, the head is %d", s.disk.settled, head)
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
