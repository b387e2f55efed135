package frontier

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/pgfrontier/worker/store"
)

// simFrontier is a real machine with simulated statements.
type simFrontier struct {
	worker      int
	incarnation int // of the server, when it connected
	machine     *machine
	value       *Value   // published
	copied      Value    // of value, to detect modifications
	from        *machine // the machine that made value

	followed bool // by a consumer

	// State that mutants keep.
	oldLocks   []sighting
	oldLast    int64
	frozen     map[string]sighting
	frozenFor  int
	newlyStale map[string]bool
	kept       *Value         // with an outdated tail cache
	tailed     map[int64]bool // by statements before the latest scan
}

func (s *sim) runFrontier(a *actor, f *simFrontier) {
	s.connect(f)
	for {
		a.yield()
		if f.incarnation != s.incarnation && !s.proxied {
			s.connect(f)
			continue
		}
		act := f.machine.next(s.now())
		if f.followed {
			f.followed = false
			f.machine.follow()
		}
		if act.at.After(s.now()) {
			if s.choose(20) == 0 {
				f.machine.wake(s.now())
			}
			continue
		}
		intact := a.session(func(step func()) { s.statement(f, act, step) })
		if lostReply := s.chaos && s.choose(300) == 0; !intact || lostReply {
			s.connect(f)
			continue
		}
		s.publish(f)
	}
}

// connect forgets everything but the published Value.
func (s *sim) connect(f *simFrontier) {
	f.incarnation = s.incarnation
	f.machine = newMachine(s.rules, func(d time.Duration) time.Duration { return d })
	f.frozen, f.newlyStale, f.tailed = nil, map[string]bool{}, map[int64]bool{}
	f.oldLocks, f.oldLast = s.locks(), s.disk.sequence
}

// statement runs a statement on the server and passes its answer to the machine. Its parts run
// one after another. Only a crash interrupts them.
func (s *sim) statement(f *simFrontier, act action, step func()) {
	m := f.machine
	if !s.named && (act.do == placeSettled || act.do == raiseSettled) {
		s.violate("STATEMENT %d on a log without a known sequence, which has no settled row", act.do)
	}
	switch act.do {
	case readStart:
		r := startRead{token: s.token, found: true}
		if s.named {
			r.settled, r.found = s.disk.settled, s.disk.settled >= 0
		}
		step()
		r.last = s.disk.sequence
		m.onStart(s.now(), r)
	case insertToken:
		if s.token == "" {
			s.tokens++
			s.token = "token " + strconv.Itoa(s.tokens)
		}
		step()
		m.onDone()
	case placeSettled:
		if s.disk.settled < 0 || s.disk.settled > act.last {
			s.disk.settled = 0
			s.log()
		}
		step()
		m.onDone()
	case readTail:
		s.tail(f, act, step)
	case readHead:
		s.seen["head"]++
		r := headRead{token: s.token, head: s.head()}
		step()
		s.afterRead(&r.token, step)
		r.last = s.last(f, r.head)
		m.onHead(s.now(), r)
	case readRows:
		s.readRows(f, act, step)
	case scanLocks:
		s.scan(f, step)
	case raiseSettled:
		if s.disk.settled >= 0 && (m.token == s.token || s.mutant == raisesUnderAnyToken) {
			s.disk.settled = max(s.disk.settled, act.settled)
			s.seen["raised"]++
			s.log()
			s.checkSettled()
		}
		step()
		m.onRaised(s.now(), act.settled)
	}
}

// afterRead reads the token for a log without a named sequence, in a separate statement.
func (s *sim) afterRead(token *string, step func()) {
	if !s.named {
		step()
		*token = s.token
	}
}

func (s *sim) tail(f *simFrontier, act action, step func()) {
	if act.limit == doubtTailLimit {
		s.seen["passes doubts"]++
	}
	r := tailRead{token: s.token}
	var positions []int64
	for position := range s.disk.events {
		if position > act.after {
			positions = append(positions, position)
		}
	}
	slices.Sort(positions)
	if limit := min(act.limit, s.rows); len(positions) >= limit {
		positions, r.full = positions[:limit], true
	}
	for _, position := range positions {
		r.runs = appendPosition(r.runs, position)
		f.tailed[position] = true
	}
	step()
	s.afterRead(&r.token, step)
	var head int64
	if len(positions) > 0 {
		head = positions[len(positions)-1]
	}
	r.last = s.last(f, head)
	f.machine.onTail(s.now(), r)
}

// readRows runs the consumers' statement on the frontier's connection. This statement does not
// return the token.
func (s *sim) readRows(f *simFrontier, act action, step func()) {
	s.seen["rows"]++
	rows, full := s.rowsOf(act.after, math.MaxInt64, nil)
	r := rowsRead{full: full}
	for _, e := range rows {
		r.events = append(r.events, e.persisted())
		if e.position > f.machine.safe { // positions up to safe are not recorded again
			f.tailed[e.position] = true
		}
	}
	step()
	f.machine.onRows(s.now(), r)
}

// last returns the sequence's last value as a statement that read the head returns it.
func (s *sim) last(f *simFrontier, head int64) int64 {
	if !s.named {
		return 0
	}
	old := f.oldLast
	f.oldLast = s.disk.sequence
	switch s.mutant {
	case lastBeforeScan:
		return max(old, f.machine.safe)
	case headForLast:
		return max(head, f.machine.safe)
	}
	return s.disk.sequence
}

func (s *sim) scan(f *simFrontier, step func()) {
	r := scanRead{token: s.token}
	activityFirst := s.choose(2) == 0
	var activity map[string]sighting
	if activityFirst {
		activity = s.activity(f)
		step()
	}
	r.holders = s.locks()
	if s.mutant == locksFirst {
		r.holders, f.oldLocks = f.oldLocks, slices.Clone(r.holders)
	}
	if !activityFirst {
		step()
		activity = s.activity(f)
	}
	for i, h := range r.holders {
		if s.mutant == preparedIsIdle && h.PID == 0 && f.machine.holders[h.ID] != nil {
			r.holders[i].Rest = f.machine.holders[h.ID].Rest
		}
		if h.PID != 0 {
			r.holders[i].Rest, r.holders[i].State = activity[h.ID].Rest, activity[h.ID].State
		}
		r.holders[i].Age = activity[h.ID].Age
	}
	if s.mutant == staleAreForgotten {
		r.holders = slices.DeleteFunc(r.holders, func(h sighting) bool { return f.newlyStale[h.ID] })
	}
	step()
	s.afterRead(&r.token, step)
	f.machine.onScan(s.now(), r)
	for _, h := range f.machine.takeNewlyStale() {
		f.newlyStale[h.VirtualTransaction] = true
		s.seen["stale"]++
	}
	if n := len(f.machine.fences); n > maxFences {
		s.violate("FENCES: %d", n)
	}
	for _, h := range f.machine.holders {
		switch {
		case !h.narrowed:
		case h.PID == 0:
			s.seen["narrowed, prepared"]++
		case h.State != "":
			s.seen["narrowed, aborted"]++
		default:
			s.seen["narrowed"]++
		}
	}
}

// locks returns the holders in pg_locks.
func (s *sim) locks() []sighting {
	var holders []sighting
	for _, t := range s.living() {
		h := sighting{ID: t.id, PID: 1}
		if t.prepared {
			h.PID, h.Rest = 0, "prepared"
		}
		switch {
		case s.named && !t.locked, s.mutant == onlyWithID && !t.wrote, s.mutant == noPrepared && t.prepared:
		default:
			holders = append(holders, h)
			if s.choose(10) == 0 {
				holders = append(holders, h) // moves from the fast path to the lock table
			}
		}
	}
	return holders
}

// activity returns the contents of pg_stat_activity.
func (s *sim) activity(f *simFrontier) map[string]sighting {
	if s.mutant == oneTransaction && f.frozen != nil && f.frozenFor > 0 {
		f.frozenFor--
		return f.frozen
	}
	all := map[string]sighting{}
	for _, t := range s.living() {
		v := sighting{Age: s.now().Sub(t.age).Seconds()}
		if t.idle {
			v.Rest = strconv.Itoa(t.changed)
			if s.mutant == cachedLast {
				v.Rest = "idle"
			}
		}
		if t.aborted {
			v.State = "idle in transaction (aborted)"
			if s.mutant == abortedIsOver {
				v.Rest = "aborted"
			}
		}
		all[t.id] = v
	}
	f.frozen, f.frozenFor = all, 10
	return all
}

// publish publishes the machine's Value and checks it.
func (s *sim) publish(f *simFrontier) {
	v := f.machine.value
	if v == nil || v == f.value {
		return
	}
	old, same := f.value, f.from == f.machine && f.value.Token == v.Token
	if !reflect.DeepEqual(*old, f.copied) {
		s.violate("VALUE %+v was modified, it is %+v", f.copied, *old)
	}
	v.recent = s.misplaced(f, old, v)
	f.value, f.from = v, f.machine
	f.copied = *v
	f.copied.Doubts = slices.Clone(v.Doubts)
	f.copied.recent = &recent{v.recent.after, slices.Clone(v.recent.events)}
	s.trace("frontier %d publishes %+v", f.worker, *v)
	if len(v.Doubts) > 0 {
		s.seen["doubts"]++
	}
	if s.chaos && s.crashes && len(v.recent.events) > 0 && s.choose(30) == 0 {
		defer s.crash()
	}
	switch {
	case v.Token == "":
		s.violate("VALUE without a token: %+v", *v)
	case same && v.Settled == old.Settled && v.Safe == old.Safe && slices.Equal(v.Doubts, old.Doubts) && unsafe.SliceData(v.Doubts) == unsafe.SliceData(old.Doubts):
		s.violate("VALUE published again without a change: %+v", *v)
	case v.Settled > v.Safe:
		s.violate("VALUE settled above safe: %+v", *v)
	case s.strict && len(v.Doubts) > 0:
		s.violate("VALUE doubts of a strict frontier: %+v", *v)
	case same && (v.Safe < old.Safe || v.Settled < old.Settled):
		s.violate("VALUE went back from %+v to %+v", *old, *v)
	case same && len(v.Doubts) > 0 && v.Safe > old.Safe && v.Safe > s.head()-s.harborLag:
		s.violate("VALUE %+v is too near to the head %d", *v, s.head())
	case v.Token != s.token:
		return // the guard checks this
	}
	for t, e := range s.pending() {
		doubted := slices.ContainsFunc(v.Doubts, func(d store.Range) bool { return d.First <= e.position && e.position <= d.Last })
		if e.position <= v.Settled || e.position <= v.Safe && !doubted {
			s.violate("VALUE of frontier %d: %+v, but %s may still commit position %d", f.worker, *v, t.id, e.position)
		}
		// A renamed transaction joins fences that are older than its name.
		if age := s.now().Sub(t.age); e.position <= v.Safe && age < s.staleAfter && !unnumbered(t.id) {
			s.violate("VALUE of frontier %d: %+v goes past position %d of %s, which began %v ago", f.worker, *v, e.position, t.id, age)
		}
	}
}

func (s *sim) checkSettled() {
	if s.disk.settled > s.disk.sequence {
		s.violate("SETTLED row at %d, but the sequence has come to %d", s.disk.settled, s.disk.sequence)
	}
	for t, e := range s.pending() {
		if e.position <= s.disk.settled {
			s.violate("SETTLED row at %d, but %s may still commit position %d", s.disk.settled, t.id, e.position)
		}
	}
}
