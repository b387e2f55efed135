package main

import "sort"

// consumer reads, and applies batches behind the guard.
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
			// close as void: frontier says settled at capture, read once more after it
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
