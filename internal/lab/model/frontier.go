package main

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

// frontier scans, and computes what consumers may read.
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
