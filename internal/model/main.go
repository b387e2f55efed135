// Command model searches random interleavings of the protocol (package frontier,
// the batch and its guard) for a lost, doubled, misordered or unaudited event.
// Every step between two yields is one atomic step: a draw, a commit becoming
// visible, a lock release, a scan, a read, a guard. It is terse on purpose, and
// no part of the library: a change of the protocol is tried here first, and the
// library's own tests drive its real state machine.
//
//	go run ./internal/model -d 60s                  the protocol as designed: expect violating=0
//	go run ./internal/model -d 60s -v base,async    with asynchronous commit
//	go run ./internal/model -d 10s -v base,xNoRev   a mistake: expect violations
//	go run ./internal/model -one -seed N -v ...     one run, traced
//
// Base are the faults, each in some of the runs: crash (of a backend, or of all
// of the server), reset, split (a lagging standby, and promotions or restores
// that leave the old primary alone: reads and frontiers may get there), cold (a
// copy made at rest is put back) and stay (one transaction stays open until
// everything else is handled: MaxOpenRanges must not stop the consumers).
//
// A server shows an incarnation: the token in the row, which recovery and
// promotion empty, and the start time of the process. Each read returns it,
// read after the rows and on the same server; a standby shows none. Reads under
// another one than the Value's are thrown away. The guard compares it on the
// real primary.
//
// Mistakes: xNoRev (guard compares the position only), xCacheL, xLbefore,
// xLhead (narrowing by a stale L, an early L, the visible head), xNoPrep
// (holders without pid ignored), xBackward (checkpoint may fall), xResetKeeps
// (reset keeps open ranges), xSpansAfter (doubts captured after the rows),
// xFrontierList (visible rows recorded as open), xCloseOnAnyFence (void by a
// fence that never waited for the stale holders).
// Of incarnations: xReadNoToken (reads are not tied to one; xRowsNoToken: of
// events only), xReadOtherConn (read on another connection than the rows),
// xTokenRestored (the token without the start time), xBackendCrash with async
// (the start time without the token), xRaiseAny with async (the settled row is
// raised under any).
// Of rest: xPrepEarly (a prepared holder narrowed by an L read before the scan
// that shows it so), xAbortedOver (an aborted one taken for one that never draws
// again), xPrepWide, xAbortedWide (these are not narrowed: a stall).
// Found harmless: xLoadNoToken (progress from any server: position and revision
// are compared on the primary), xNoLast (the guard does not ask whether the
// position is above the sequence's last value).
package main

import (
	"flag"
	"fmt"
	"iter"
	"math/rand"
	"os"
	"runtime/debug"
	"sort"
	"strings"
	"time"
)

type V map[string]bool

type Ev struct{ pos, agg, ver, uid int }
type Tx struct {
	id             int
	draws          []Ev
	sc             int
	idle, prepared bool
	aborted        bool // idle, to be rolled back to a savepoint
	aggs           map[int]bool
}
type DB struct { // durable
	events  map[int]Ev
	heads   []int
	cp      []int
	rev     []int
	open    []map[int]bool
	audit   []map[int]byte
	ledger  [][]Ev
	owner   []int
	seq     int
	prep    map[int]*Tx
	settled int
}

func (d *DB) clone() *DB {
	n := &DB{events: map[int]Ev{}, heads: append([]int{}, d.heads...), cp: append([]int{}, d.cp...), rev: append([]int{}, d.rev...), owner: append([]int{}, d.owner...), seq: d.seq, settled: d.settled, prep: map[int]*Tx{}}
	for k, v := range d.events {
		n.events[k] = v
	}
	for k, v := range d.prep {
		n.prep[k] = v
	}
	for c := range d.cp {
		o := map[int]bool{}
		for k := range d.open[c] {
			o[k] = true
		}
		a := map[int]byte{}
		for k, v := range d.audit[c] {
			a[k] = v
		}
		n.open = append(n.open, o)
		n.audit = append(n.audit, a)
		n.ledger = append(n.ledger, append([]Ev{}, d.ledger[c]...))
	}
	return n
}

type inc struct{ tok, start int } // zero: not to be seen, as on a standby
type Srv struct {
	d       *DB
	seq     int
	boot    int // true incarnation: changes cut connections
	inc     inc // what it shows
	holders map[int]*Tx
	aggLock map[int]*Tx
}
type S struct {
	*Srv         // the primary
	old     *Srv // the primary before the promotion, alive
	copy    *Srv // cold
	boots   int
	r       *rand.Rand
	v       V
	hist    []*DB
	rowLock []int // consumer -> batch id (0 free)
	left    *Tx   // stays open until everything else is handled
	relax   bool  // no longer
	maxOpen int
	nextID  int
	scN     int
	uid     int
	async   bool
	chaos   bool
	fr      []*F
	steps   int
	viol    []string
	trace   []string
	tr      bool
	cov     map[string]int
	thr     int
}

func (s *S) log(f string, a ...any) {
	if s.tr {
		s.trace = append(s.trace, fmt.Sprintf("%d ", s.steps)+fmt.Sprintf(f, a...))
	}
}
func (s *S) bad(f string, a ...any) {
	m := fmt.Sprintf(f, a...)
	s.viol = append(s.viol, m)
	s.log("VIOLATION %s", m)
}
func (s *S) wal() {
	s.d.seq = s.seq
	if s.v["crash"] {
		s.hist = append(s.hist, s.d.clone())
		if len(s.hist) > 4 {
			s.hist = s.hist[1:]
		}
	}
}

type Y func(struct{}) bool

// ---- servers
func (s *S) see(x *Srv) inc {
	i := x.inc
	if s.v["xTokenRestored"] {
		i.start = 0
	}
	if s.v["xBackendCrash"] {
		i.tok = 0
	}
	return i
}
func (s *S) next() int { s.boots++; return s.boots }

// where a read gets to; its connection stays there
func (s *S) route() *Srv {
	if s.chaos && s.v["split"] && s.r.Intn(4) == 0 {
		if s.old != nil && s.r.Intn(2) == 0 {
			s.cov["read of old primary"]++
			return s.old
		}
		if len(s.hist) > 0 {
			s.cov["read of standby"]++
			return &Srv{d: s.hist[s.r.Intn(len(s.hist))]}
		}
	}
	return s.Srv
}
func (s *S) dial() *Srv {
	if s.chaos && s.old != nil && s.r.Intn(3) == 0 {
		s.cov["frontier on old primary"]++
		return s.old
	}
	return s.Srv
}

// up lets x begin with d: no sessions, what is prepared holds its locks
func (s *S) up(x *Srv, d *DB, i inc) {
	x.d, x.seq, x.inc, x.boot = d, d.seq, i, s.next()
	x.holders, x.aggLock = map[int]*Tx{}, map[int]*Tx{}
	for id, t := range d.prep {
		x.holders[id] = t
		for a := range t.aggs {
			x.aggLock[a] = t
		}
	}
	s.Srv = x
	for k := range s.rowLock {
		s.rowLock[k] = 0
	}
}
func (s *S) crash() {
	i := len(s.hist) - 1
	if s.async {
		i = s.r.Intn(len(s.hist))
	}
	s.hist = s.hist[:i+1]
	x, to := s.Srv, inc{s.next(), s.inc.start}
	k := s.r.Intn(3)
	if k > 0 && !s.v["xBackendCrash"] || s.r.Intn(2) == 0 { // else only a backend was killed
		to.start = s.next()
	}
	if k == 2 && s.v["split"] {
		s.old, x, to.start = s.Srv, &Srv{}, s.next()
		if s.r.Intn(2) == 0 {
			s.old.holders = map[int]*Tx{}
		}
		s.cov["promotion"]++
	}
	s.up(x, s.hist[i].clone(), to)
	s.cov["crash"]++
	s.log("CRASH to seq %d: %v", s.seq, to)
}
func (s *S) cold() {
	if s.copy == nil || s.r.Intn(3) == 0 {
		s.d.seq = s.seq
		s.copy = &Srv{d: s.d.clone(), inc: s.inc}
		s.up(s.Srv, s.d, inc{s.inc.tok, s.next()})
		s.log("COPY at seq %d", s.seq)
	} else {
		x := s.Srv
		if s.v["split"] && s.r.Intn(2) == 0 {
			s.old, x = x, &Srv{}
		}
		s.up(x, s.copy.d.clone(), inc{s.copy.inc.tok, s.next()})
		s.cov["restore"]++
		s.log("RESTORE to seq %d", s.seq)
		s.hist = nil
	}
	s.wal()
}

// ---- writers
func (s *S) writer(y Y, n int, stay string) {
	for i := 0; i < n; i++ {
		boot := s.boot
		s.nextID++
		t := &Tx{id: s.nextID, aggs: map[int]bool{}}
		gone := func() bool { return s.boot != boot }
		act := func() { s.scN++; t.sc = s.scN; t.idle = false; t.aborted = false }
		idl := func(aborted bool) { s.scN++; t.sc = s.scN; t.idle = true; t.aborted = aborted }
		k := 1 + s.r.Intn(4)
		long := s.r.Intn(5) == 0
		if stay != "" {
			k = 1
		} else if n > 6 {
			long = s.r.Intn(20) == 0
		}
		ok := true
		for j := 0; j < k && ok; j++ {
			act()
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			agg := s.r.Intn(len(s.d.heads))
			w := 0
			for s.aggLock[agg] != nil && s.aggLock[agg] != t && w < 30 {
				w++
				y(struct{}{})
				if gone() {
					break
				}
			}
			if gone() {
				ok = false
				break
			}
			if s.aggLock[agg] != nil && s.aggLock[agg] != t {
				idl(false)
				continue
			}
			s.aggLock[agg] = t
			t.aggs[agg] = true
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			s.holders[t.id] = t
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			s.seq++
			s.uid++
			ver := s.d.heads[agg] + 1
			for _, e := range t.draws {
				if e.agg == agg {
					ver = e.ver + 1
				}
			}
			sp := s.r.Intn(6) == 0
			if !sp {
				t.draws = append(t.draws, Ev{s.seq, agg, ver, s.uid})
			}
			s.log("tx%d draws %d agg%d v%d sp=%v", t.id, s.seq, agg, ver, sp)
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			idl(s.r.Intn(2) == 0)
			if long {
				for m := s.r.Intn(120); m > 0 && !gone(); m-- {
					y(struct{}{})
				}
			} else {
				y(struct{}{})
			}
		}
		if gone() {
			continue
		}
		stays := stay != "" && i > 0 && s.left == nil && s.holders[t.id] != nil
		if stays {
			s.left = t
			s.cov["stays "+stay]++
			if stay != "prepared" {
				act()
				y(struct{}{})
				for idl(stay == "aborted"); !s.relax && !gone(); {
					y(struct{}{})
				}
				s.left, s.relax = &Tx{}, true
				if gone() {
					continue
				}
			}
		}
		if stays && stay == "prepared" || !stays && s.r.Intn(8) == 0 && s.holders[t.id] != nil {
			t.prepared = true
			t.idle, t.aborted = false, false
			s.d.prep[t.id] = t
			s.wal()
			s.log("tx%d prepared", t.id)
			boot = -1
			for m := s.r.Intn(100); m > 0; m-- {
				y(struct{}{})
			}
			if s.left == t {
				for !s.relax && s.d.prep[t.id] != nil {
					y(struct{}{})
				}
				s.left, s.relax = &Tx{}, true
			}
			if s.d.prep[t.id] == nil {
				continue
			} // lost in async crash
		} else {
			act()
			y(struct{}{})
			if gone() {
				continue
			}
		}
		commit := s.r.Intn(10) < 7
		if commit {
			for _, e := range t.draws {
				s.d.events[e.pos] = e
				s.d.heads[e.agg] = e.ver
			}
			delete(s.d.prep, t.id)
			s.log("tx%d visible %v", t.id, t.draws)
			s.wal()
			b2 := s.boot
			y(struct{}{})
			if s.boot != b2 {
				continue
			}
		} else {
			delete(s.d.prep, t.id)
			s.log("tx%d rollback", t.id)
			s.wal()
		}
		delete(s.holders, t.id)
		for a := range t.aggs {
			if s.aggLock[a] == t {
				delete(s.aggLock, a)
			}
		}
		s.log("tx%d released", t.id)
	}
}

// ---- frontier
type fence struct {
	h      int
	hold   map[int]bool
	born   int
	scanNo int
}
type bnd struct {
	sc, L int
	haveL bool
	conf  bool
}
type F struct {
	w       int
	x       *Srv
	inc     inc
	boot    int
	lastL   int
	safe    int
	fences  []*fence
	stale   map[int]bool
	b       map[int]*bnd
	open    map[int]map[int]bool
	ring    map[int]Ev
	ringLow int
	gen     int
}

func (f *F) reset(s *S) {
	f.x = s.dial()
	f.inc, f.boot = s.see(f.x), f.x.boot
	f.safe, f.lastL = 0, 0
	if s.v["settled"] {
		f.safe = f.x.d.settled
		if f.safe > 0 {
			s.cov["began at settled"]++
		}
	}
	f.ringLow = f.safe
	f.fences = nil
	f.stale = map[int]bool{}
	f.b = map[int]*bnd{}
	f.open = map[int]map[int]bool{}
	f.ring = map[int]Ev{}
	f.gen++
}

func (s *S) frontier(y Y, f *F) {
	f.reset(s)
	scanNo := 0
	for {
	top:
		y(struct{}{})
		check := func() bool {
			if f.boot != f.x.boot || !s.chaos && f.x != s.Srv {
				s.cov["frontier reset"]++
				for k := s.r.Intn(3) * s.r.Intn(60); k > 0; k-- { // what it found out stays published until then
					y(struct{}{})
				}
				f.reset(s)
				return false
			}
			return true
		}
		if !check() {
			goto top
		}
		if s.r.Intn(400) == 0 && s.chaos {
			f.reset(s)
			s.cov["worker restart"]++
			goto top
		} // connection error
		// 1 tail
		x := f.x
		low := f.safe
		vis := map[int]Ev{}
		h := 0
		for p, e := range x.d.events {
			if p > low {
				vis[p] = e
				if p > h {
					h = p
				}
			}
		}
		var l0 int
		if s.v["xLbefore"] {
			l0 = x.seq
		}
		for {
			e, ok := vis[f.safe+1]
			if !ok {
				break
			}
			f.safe++
			f.ring[e.pos] = e
		}
		y(struct{}{})
		if !check() {
			goto top
		}
		// 2 scan
		scanNo++
		H := map[int]*Tx{}
		for id, t := range x.holders {
			if s.v["xNoPrep"] && t.prepared {
				continue
			}
			H[id] = t
		}
		// quiet: it draws nothing while sc stays; negative: as it is prepared
		type act struct {
			quiet bool
			sc    int
		}
		A := map[int]act{}
		for id, t := range H {
			a := act{t.idle, t.sc}
			if t.prepared {
				a = act{!s.v["xPrepWide"], -1}
			} else if t.aborted && s.v["xAbortedOver"] {
				a.sc = -2
			} else if t.aborted && s.v["xAbortedWide"] {
				a.quiet = false
			}
			A[id] = a
		}
		if h > f.safe {
			hold := map[int]bool{}
			for id := range H {
				hold[id] = true
			}
			if len(f.fences) == 0 || f.fences[len(f.fences)-1].h < h {
				f.fences = append(f.fences, &fence{h, hold, s.steps, scanNo})
			}
		}
		for _, fe := range f.fences {
			for id := range fe.hold {
				if H[id] == nil {
					delete(fe.hold, id)
				}
			}
		}
		for id := range f.b {
			if H[id] == nil {
				delete(f.b, id)
			}
		}
		for id := range f.stale {
			if H[id] == nil {
				delete(f.stale, id)
			}
		}
		for _, fe := range f.fences {
			if s.steps-fe.born > s.thr {
				for id := range fe.hold {
					if !f.stale[id] {
						s.cov["stale holder"]++
					}
					f.stale[id] = true
				}
			}
		}
		if !s.v["noNarrow"] {
			for id, a := range A {
				b := f.b[id]
				if a.quiet && b != nil && b.sc == a.sc && b.haveL {
					if !b.conf {
						s.cov["narrowed"]++
						if H[id].aborted {
							s.cov["narrowed aborted"]++
						}
					}
					b.conf = true
					continue
				}
				if s.v["xCacheL"] && b != nil && b.conf {
					continue
				}
				if a.quiet && (b == nil || b.sc != a.sc) {
					f.b[id] = &bnd{sc: a.sc}
					if s.v["xPrepEarly"] && a.sc == -1 && f.lastL > 0 {
						f.b[id].L, f.b[id].haveL, f.b[id].conf = f.lastL, true, true
					}
					if s.v["xLbefore"] {
						f.b[id].L = l0
						f.b[id].haveL = true
					}
					if s.v["xLhead"] {
						f.b[id].L = h
						f.b[id].haveL = true
					}
				} else if !a.quiet {
					delete(f.b, id)
				}
			}
		}
		y(struct{}{})
		if !check() {
			goto top
		}
		// 2b last_value
		if s.r.Intn(2) == 0 {
			f.lastL = x.seq
			for _, b := range f.b {
				if !b.haveL {
					b.L = f.lastL
					b.haveL = true
					if b.sc == -1 { // no second scan: it cannot draw
						b.conf = true
						s.cov["narrowed prepared"]++
					}
				}
			}
			y(struct{}{})
			if !check() {
				goto top
			}
		}
		// 3 tail again; publish
		nowv := x.d.events
		may := func(id, m int) bool { // may holder id (alive at last scan) own m?
			b := f.b[id]
			return !(b != nil && b.conf && m > b.L)
		}
		var rest []*fence
		for _, fe := range f.fences {
			non := 0
			for id := range fe.hold {
				if !f.stale[id] {
					non++
				}
			}
			if non > 0 {
				rest = append(rest, fe)
				continue
			}
			if fe.h <= f.safe {
				continue
			}
			for m := f.safe + 1; m <= fe.h; m++ {
				if e, ok := nowv[m]; ok {
					f.ring[m] = e
					continue
				}
				own := map[int]bool{}
				for id := range fe.hold {
					if may(id, m) {
						own[id] = true
					}
				}
				if len(own) > 0 {
					f.open[m] = own
					s.log("w%d open %d by %v", f.w, m, own)
					s.cov["opened"]++
				} else {
					s.log("w%d void %d", f.w, m)
					for _, t := range x.holders {
						for _, e := range t.draws {
							if e.pos == m && x == s.Srv {
								s.cov["void but owned by live tx"]++
							}
						}
					}
				}
			}
			if s.v["xCloseOnAnyFence"] {
				for m := range f.open {
					if m <= f.safe {
						if _, ok := nowv[m]; !ok {
							delete(f.open, m)
							s.log("w%d void(open) %d", f.w, m)
						}
					}
				}
			}
			f.safe = fe.h
		}
		f.fences = rest
		defer0 := func() {
			if s.v["settled"] && s.r.Intn(3) == 0 {
				to := f.safe
				for m := range f.open {
					if m-1 < to {
						to = m - 1
					}
				}
				y(struct{}{}) // by way of a proxy: a crash does not cut it off
				if to > x.d.settled && (s.see(x) == f.inc || s.v["xRaiseAny"]) {
					x.d.settled = to
					if x == s.Srv {
						s.wal()
					}
				}
			}
		}
		for m, own := range f.open {
			if e, ok := nowv[m]; ok {
				delete(f.open, m)
				if !s.v["xRing"] {
					f.ring[m] = e
				}
				s.cov["open appeared (frontier)"]++
				continue
			}
			for id := range own {
				if H[id] == nil || !may(id, m) {
					delete(own, id)
				}
			}
			if len(own) == 0 {
				delete(f.open, m)
				s.log("w%d open %d now void", f.w, m)
				s.cov["open voided (frontier)"]++
			}
		}
		defer0()
	}
}

// ---- consumer on a worker
func (s *S) consumer(y Y, f *F, c int) {
	w := f.w
	for {
	top:
		y(struct{}{})
		if s.d.owner[c] != w {
			continue
		}
		boot := s.boot
		lost := func() bool { return s.boot != boot }
		// a read returns the incarnation of its server, after it; 0: cut off
		proof := func(x *Srv, b int) (inc, bool) {
			y(struct{}{})
			return s.see(x), x.boot == b
		}
		// load
		x := s.route()
		xb := x.boot
		old, rev := x.d.cp[c], x.d.rev[c]
		var opens []int
		for p := range x.d.open[c] {
			opens = append(opens, p)
		}
		sort.Ints(opens)
		loaded, alive := proof(x, xb)
		if !alive {
			continue
		}
		for it := 0; it < 4; it++ {
			// capture the pair
			capture := func() (int, map[int]bool, inc) {
				o := map[int]bool{}
				for m := range f.open {
					o[m] = true
				}
				return f.safe, o, f.inc
			}
			safe, fo, finc := capture()
			if loaded != finc && !s.v["xReadNoToken"] && !s.v["xLoadNoToken"] {
				s.cov["load thrown away"]++
				goto top
			}
			gen := f.gen
			useRing := s.r.Intn(2) == 0
			if s.v["noRing"] || old < f.ringLow {
				useRing = false
			}
			if s.v["unified"] && len(opens) > 0 {
				useRing = false
			}
			lim := old + 1 + s.r.Intn(8)
			if lim > safe {
				lim = safe
			}
			if s.v["unified"] {
				for m := range fo {
					if m > old && m <= lim {
						useRing = false
					}
				}
			}
			rows := map[int]Ev{}
			var ulate []Ev
			if useRing {
				// the ring answers only if it covers (old, lim]: it begins where this frontier's life began (0 in the model)
				for p, e := range f.ring {
					if p > old && p <= lim {
						rows[p] = e
					}
				}
			} else {
				y(struct{}{})
				x := s.route()
				xb := x.boot
				for p, e := range x.d.events {
					if p > old && p <= lim {
						rows[p] = e
					}
				}
				if s.v["unified"] {
					for _, p := range opens {
						if e, ok := x.d.events[p]; ok {
							ulate = append(ulate, e)
						}
					}
				}
				if s.v["xReadOtherConn"] {
					x, xb = s.Srv, s.boot
				}
				i, alive := proof(x, xb)
				if !alive {
					goto top
				}
				if i != finc && !s.v["xReadNoToken"] && !s.v["xRowsNoToken"] {
					s.cov["read thrown away"]++
					goto top
				}
			}
			if s.v["xSpansAfter"] {
				y(struct{}{})
				_, fo, finc = capture()
			}
			if s.v["xFrontierList"] && !useRing {
			}
			// look up open positions, in a snapshot no older than the rows'
			if !s.v["noPrefetch"] {
				for m := s.r.Intn(4); m > 0; m-- {
					y(struct{}{})
				}
			}
			var late []Ev
			look := func() {
				late = nil
				for _, p := range opens {
					if e, ok := s.d.events[p]; ok {
						late = append(late, e)
					}
				}
			}
			if s.v["xLookEarly"] {
			} else {
				look()
			}
			if s.v["unified"] {
				late = nil
			}
			if useRing && !s.v["xRingOrder"] {
				for m := range fo {
					if m > old && m <= lim {
						if e, ok := s.d.events[m]; ok {
							if _, has := rows[m]; !has {
								rows[m] = e
								s.cov["crossing found in lookup"]++
							}
						}
					}
				}
			}
			// no more open ones than allowed
			for m, n := old+1, len(opens)-len(ulate); m <= lim; m++ {
				if _, ok := rows[m]; !ok && fo[m] {
					if n++; n > s.maxOpen {
						lim = m - 1
						s.cov["waits at MaxOpenRanges"]++
					}
				}
			}
			// voids among the open ones
			var dead []int
			{
				safe2, fo2 := safe, fo
				ul := map[int]bool{}
				for _, e := range ulate {
					ul[e.pos] = true
				}
				for _, p := range opens {
					if p <= safe2 && !fo2[p] && !ul[p] {
						dead = append(dead, p)
					}
				}
			}
			y(struct{}{})
			// tx
			bid := 0
			s.nextID++
			bid = s.nextID
			ownerAtSnap := s.d.owner[c]
			guard := func(nw int) (bool, bool) {
				for s.rowLock[c] != 0 {
					y(struct{}{})
					if lost() {
						return false, true
					}
				}
				if lost() {
					if s.boot != boot {
						return false, true
					}
				}
				if s.d.cp[c] != old || ownerAtSnap != w {
					return false, false
				}
				if !s.v["xNoRev"] && s.d.rev[c] != rev {
					return false, false
				}
				if finc != s.see(s.Srv) {
					s.cov["guard stopped other incarnation"]++
					return false, false
				}
				if nw > s.seq && !s.v["xNoLast"] {
					s.cov["guard stopped above last value"]++
					return false, false
				}
				s.rowLock[c] = bid
				return true, false
			}
			boot = s.boot // a fresh connection may be taken for the batch
			if len(late) > 0 {
				ok, _ := guard(old)
				if !ok {
					goto top
				}
				y(struct{}{})
				y(struct{}{})
				if lost() {
					goto top
				}
				unk := s.r.Intn(10)
				if unk == 0 && s.chaos {
					s.rowLock[c] = 0
					s.cov["late not committed"]++
					goto top
				}
				for _, e := range late {
					s.apply(c, e, "late")
					delete(s.d.open[c], e.pos)
					s.d.audit[c][e.pos] = 'l'
				}
				s.d.rev[c]++
				rev++
				s.cov["late delivered"] += len(late)
				s.wal()
				s.rowLock[c] = 0
				if unk == 1 && s.chaos {
					goto top
				}
				var no []int
				for _, p := range opens {
					if _, ok := s.d.open[c][p]; ok {
						no = append(no, p)
					}
				}
				opens = no
			}
			if s.v["unified"] && len(ulate) > 0 {
				if lim < old {
					lim = old
				}
			} else if lim <= old && len(dead) == 0 && !(s.v["xBackward"] && lim < old && lim > 0) {
				break
			}
			if lim < old && !s.v["xBackward"] {
				lim = old
			}
			{
				ownerAtSnap = s.d.owner[c]
				ok, _ := guard(lim)
				if !ok {
					goto top
				}
				y(struct{}{})
				if s.r.Intn(2) == 0 {
					y(struct{}{})
				}
				if lost() {
					goto top
				}
				if s.chaos && s.r.Intn(12) == 0 {
					s.rowLock[c] = 0
					s.cov["batch rolled back"]++
					goto top
				}
				var newOpen []int
				for _, e := range ulate {
					s.apply(c, e, "ulate")
					delete(s.d.open[c], e.pos)
					s.d.audit[c][e.pos] = 'l'
					s.cov["late delivered (unified)"]++
				}
				{
					var no []int
					for _, p := range opens {
						if s.d.open[c][p] {
							no = append(no, p)
						}
					}
					opens = no
				}
				for m := old + 1; m <= lim; m++ {
					if e, ok := rows[m]; ok {
						s.apply(c, e, "row")
						if s.v["xFrontierList"] && fo[m] {
							newOpen = append(newOpen, m)
						}
						continue
					}
					if fo[m] {
						newOpen = append(newOpen, m)
					} else {
						s.d.audit[c][m] = 'v'
					}
				}
				for _, m := range newOpen {
					s.d.open[c][m] = true
					s.d.audit[c][m] = 'o'
					opens = append(opens, m)
					s.cov["open recorded"]++
				}
				s.d.cp[c] = lim
				s.d.rev[c]++
				rev++
				s.log("w%d c%d batch (%d,%d] ring=%v open %v gen %d", w, c, old, lim, useRing, newOpen, gen)
				old = lim
				s.wal()
				s.rowLock[c] = 0
			}
			// close as void: frontier says settled at capture, look once more after it
			if len(dead) > 0 {
				y(struct{}{})
				if lost() {
					goto top
				}
				if s.d.rev[c] != rev || s.d.owner[c] != w || s.rowLock[c] != 0 || finc != s.see(s.Srv) {
					goto top
				}
				var no []int
				for _, p := range opens {
					isd := false
					for _, q := range dead {
						if p == q {
							isd = true
						}
					}
					if isd {
						if _, ok := s.d.events[p]; !ok || s.v["unified"] || s.v["xNoLastLook"] {
							delete(s.d.open[c], p)
							s.d.audit[c][p] = 'v'
							s.cov["open closed void"]++
							continue
						}
					}
					no = append(no, p)
				}
				opens = no
				s.d.rev[c]++
				rev++
				s.wal()
			}
			if s.chaos && s.r.Intn(6) == 0 {
				goto top
			}
			y(struct{}{})
		}
	}
}

func (s *S) apply(c int, e Ev, how string) {
	s.log("c%d %s %v", c, how, e)
	last := 0
	for _, x := range s.d.ledger[c] {
		if x.uid == e.uid {
			s.bad("DOUBLE c%d pos%d %s", c, e.pos, how)
			return
		}
		if x.pos == e.pos {
			s.bad("REISSUED c%d pos%d", c, e.pos)
		}
		if x.agg == e.agg {
			last = x.ver
		}
	}
	if e.ver <= last {
		s.bad("ORDER c%d agg%d v%d after v%d", c, e.agg, e.ver, last)
	}
	s.d.ledger[c] = append(s.d.ledger[c], e)
}

// ---- chaos
func (s *S) chaosActor(y Y) {
	for {
		for k := 5 + s.r.Intn(40); k > 0; k-- {
			y(struct{}{})
		}
		if !s.chaos { // orphans: prepared transactions that came back after an async crash
			for id, t := range s.d.prep {
				if t == s.left {
					continue
				}
				if s.r.Intn(2) == 0 {
					for _, e := range t.draws {
						s.d.events[e.pos] = e
						s.d.heads[e.agg] = e.ver
					}
				}
				delete(s.d.prep, id)
				y(struct{}{})
				delete(s.holders, id)
				for a := range t.aggs {
					if s.aggLock[a] == t {
						delete(s.aggLock, a)
					}
				}
			}
			continue
		}
		c := s.r.Intn(len(s.d.cp))
		switch p := s.r.Intn(10); {
		case p < 6:
			s.d.owner[c] = s.r.Intn(len(s.fr))
			s.wal()
			s.cov["owner change"]++
			s.log("owner c%d=w%d", c, s.d.owner[c])
		case p < 7 && s.v["reset"]:
			if s.rowLock[c] != 0 {
				continue
			}
			P := s.r.Intn(s.d.cp[c] + 1)
			s.d.cp[c] = P
			s.d.rev[c]++
			var l []Ev
			for _, e := range s.d.ledger[c] {
				if e.pos <= P {
					l = append(l, e)
				}
			}
			s.d.ledger[c] = l
			if !s.v["xResetKeeps"] {
				for m := range s.d.open[c] {
					if m > P {
						delete(s.d.open[c], m)
					}
				}
			}
			for m := range s.d.audit[c] {
				if m > P {
					delete(s.d.audit[c], m)
				}
			}
			s.cov["reset"]++
			s.log("reset c%d to %d", c, P)
			s.wal()
		case p < 8 && s.v["crash"] && len(s.hist) > 0:
			s.crash()
		case p < 10 && s.v["cold"]:
			s.cold()
		}
	}
}

func run(seed int64, v V, tr bool) *S {
	r := rand.New(rand.NewSource(seed))
	nc, nw, na, nwr := 2, 2, 3, 4
	s := &S{r: r, v: v, rowLock: make([]int, nc), chaos: true, tr: tr, cov: map[string]int{}, maxOpen: 40}
	s.thr = 20 + r.Intn(150)
	s.async = v["async"]
	s.up(&Srv{}, &DB{events: map[int]Ev{}, heads: make([]int, na), cp: make([]int, nc), rev: make([]int, nc), owner: make([]int, nc), prep: map[int]*Tx{}, ledger: make([][]Ev, nc)}, inc{s.next(), s.next()})
	for c := 0; c < nc; c++ {
		s.d.open = append(s.d.open, map[int]bool{})
		s.d.audit = append(s.d.audit, map[int]byte{})
		s.d.owner[c] = c % nw
	}
	s.wal()
	type actor struct {
		next     func() (struct{}, bool)
		stop     func()
		done, wr bool
		name     string
	}
	var as []*actor
	add := func(name string, wr bool, fn func(Y)) {
		n, st := iter.Pull(iter.Seq[struct{}](func(y func(struct{}) bool) {
			fn(func(x struct{}) bool {
				if !y(x) {
					panic(stopped{})
				}
				return true
			})
		}))
		as = append(as, &actor{next: n, stop: st, wr: wr, name: name})
	}
	s.v = V{}
	for x := range v { // not every fault in every run
		s.v[x] = true
	}
	for _, x := range []string{"crash", "reset", "split", "cold", "stay"} {
		if r.Intn(2) == 0 {
			delete(s.v, x)
		}
	}
	stay, nt, stays := "", 6, 0
	if s.v["stay"] {
		if k := r.Intn(18); k < 3 {
			stay, nt, stays = []string{"idle", "aborted", "prepared"}[k], 24, 1
		}
	}
	for i := 0; i < nwr; i++ {
		if i == 0 {
			add("wr", true, func(y Y) { s.writer(y, 6, stay) })
			continue
		}
		add("wr", true, func(y Y) { s.writer(y, nt, "") })
	}
	for w := 0; w < nw; w++ {
		f := &F{w: w}
		s.fr = append(s.fr, f)
		add("fr", false, func(y Y) { s.frontier(y, f) })
		for c := 0; c < nc; c++ {
			add("co", false, func(y Y) { s.consumer(y, f, c) })
		}
	}
	add("ch", false, func(y Y) { s.chaosActor(y) })
	defer func() {
		for _, a := range as {
			func() { defer func() { recover() }(); a.stop() }()
		}
	}()
	wleft := nwr
	// speeds differ per run
	wt := make([]int, len(as))
	tot := 0
	for i := range wt {
		wt[i] = 1 + r.Intn(6)
		tot += wt[i]
	}
	quiet := 0
	for s.steps = 0; s.steps < 60000+60000*stays && len(s.viol) == 0; s.steps++ {
		k := r.Intn(tot)
		i := 0
		for k >= wt[i] {
			k -= wt[i]
			i++
		}
		a := as[i]
		if a.done {
			continue
		}
		if _, ok := a.next(); !ok {
			a.done = true
			if a.wr {
				wleft--
			}
		}
		stay := s.left != nil && !s.relax
		s.chaos = wleft > 0 && s.left == nil
		if wleft == 0 || stay && wleft == 1 {
			quiet++
		}
		if stay && quiet > 0 && quiet%500 == 0 && s.handled() {
			s.relax = true
		}
		if quiet > 0 && quiet%500 == 0 && s.final() {
			break
		}
	}
	if len(s.viol) == 0 && !s.final() {
		for c := range s.d.cp {
			got := map[int]bool{}
			for _, e := range s.d.ledger[c] {
				got[e.uid] = true
			}
			for p, e := range s.d.events {
				if !got[e.uid] {
					if p <= s.d.cp[c] {
						s.bad("LOST c%d pos%d", c, p)
					} else if s.left != nil && !s.relax {
						s.bad("STALL c%d handled %d of %d, open %d", c, len(s.d.ledger[c]), len(s.d.events), len(s.d.open[c]))
						break
					} else {
						s.bad("STUCK c%d pos%d cp %d safe %v", c, p, s.d.cp[c], s.fr[s.d.owner[c]].safe)
					}
				}
			}
			for m := 1; m <= s.d.cp[c]; m++ {
				if _, ok := s.d.events[m]; !ok {
					if a := s.d.audit[c][m]; a == 0 {
						s.bad("UNAUDITED c%d pos%d", c, m)
					} else if a == 'o' && (s.left == nil || s.relax) {
						s.bad("OPEN FOREVER c%d pos%d", c, m)
					}
				}
			}
		}
	}
	return s
}

type stopped struct{}

func (s *S) handled() bool {
	for c := range s.d.cp {
		if len(s.d.ledger[c]) != len(s.d.events) {
			return false
		}
	}
	return true
}

func (s *S) final() bool {
	if len(s.holders) > 0 {
		return false
	}
	for c := range s.d.cp {
		if len(s.d.ledger[c]) != len(s.d.events) || len(s.d.open[c]) > 0 {
			return false
		}
		for m := 1; m <= s.d.cp[c]; m++ {
			if _, ok := s.d.events[m]; !ok {
				if a := s.d.audit[c][m]; a == 0 || a == 'o' {
					return false
				}
			}
		}
	}
	return true
}

func main() {
	vs := flag.String("v", "base", "variants, comma separated")
	seed := flag.Int64("seed", 1, "")
	d := flag.Duration("d", 10*time.Second, "")
	one := flag.Bool("one", false, "")
	flag.Parse()
	debug.SetGCPercent(400)
	v := V{}
	for _, x := range strings.Split(*vs, ",") {
		if x == "base" {
			for _, x := range []string{"unified", "settled", "crash", "reset", "split", "cold", "stay"} {
				v[x] = true
			}
		} else if x != "" {
			v[x] = true
		}
	}
	if *one {
		s := run(*seed, v, true)
		for _, l := range s.trace {
			fmt.Println(l)
		}
		fmt.Println(s.viol)
		return
	}
	t0 := time.Now()
	n, nv, steps := 0, 0, 0
	kinds := map[string]int{}
	cov := map[string]int{}
	first := int64(0)
	for i := *seed; time.Since(t0) < *d; i++ {
		s := run(i, v, false)
		n++
		steps += s.steps
		for k, x := range s.cov {
			cov[k] += x
		}
		if len(s.viol) > 0 {
			nv++
			kinds[strings.Fields(s.viol[0])[0]]++
			if first == 0 {
				first = i
				fmt.Println("first", i, s.viol)
			}
		}
	}
	fmt.Printf("v=%q runs=%d steps=%d violating=%d %v first=%d cov=%v\n", *vs, n, steps, nv, kinds, first, cov)
	if nv > 0 {
		os.Exit(1)
	}
}
